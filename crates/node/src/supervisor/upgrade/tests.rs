//! Tests of requests to supervisors that lie.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::channel;

use esker_testkit::waiting::Pace;

use super::*;

const PROMPT: Duration = Duration::from_millis(200);
/// Far more than a request with a short deadline takes, on any machine.
const LONG: Duration = Duration::from_secs(20);

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn program() -> Replacement {
    Replacement::Program(std::fs::File::open("/proc/self/exe").expect("a program").into())
}

/// Asks a supervisor that does `serve` with each connection.
fn asked(serve: impl Fn(UnixStream) + Send + 'static) -> Result<u32, UpgradeError> {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    let began = Instant::now();
    let answer = request(&socket, me(), &program(), began + PROMPT);
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    answer
}

#[test]
fn a_supervisor_that_does_not_answer_is_left() {
    let silent = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let kept = silent.clone();
    let answer = asked(move |client| kept.lock().push(client));
    assert!(
        matches!(&answer, Err(UpgradeError::Unreachable(error)) if error.kind() == io::ErrorKind::TimedOut)
    );
    assert_eq!(silent.lock().len(), 1, "the fault was met");
}

/// Each byte comes in time, and the line never ends.
#[test]
fn an_answer_without_an_end_is_left() {
    let (met, was_met) = channel();
    let answer = asked(move |mut client| {
        let met = met.clone();
        std::thread::spawn(move || {
            // The wait between two bytes is shorter than the deadline.
            Pace::PROCESS.until_some(LONG, || client.write_all(b"x").is_err().then_some(()));
            let _ = met.send(());
        });
    });
    assert!(matches!(&answer, Err(UpgradeError::Unreachable(_))), "{answer:?}");
    was_met.recv_timeout(LONG).expect("bytes were sent until the client left");
}

#[test]
fn a_queue_that_is_full_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let (address, mut waiting) = (SocketAddrUnix::new(&socket).expect("an address"), Vec::new());
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        match connect(&client, &address) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN, "the queue is full"),
        }
    }
    let answer = request(&socket, me(), &program(), Instant::now() + LONG);
    assert!(
        matches!(&answer, Err(UpgradeError::Unreachable(error)) if error.kind() == io::ErrorKind::WouldBlock)
    );
}

#[test]
fn answers_say_what_became_of_the_mount() {
    let answer = |line: &'static str| {
        asked(move |mut client| {
            let _ = packets::receive(&client);
            let _ = client.write_all(line.as_bytes());
        })
    };
    assert_eq!(answer("ok 17\n").expect("upgraded"), 17);
    assert!(matches!(answer("failed why it is\n"), Err(UpgradeError::RolledBack(why)) if why == "why it is"));
    assert!(matches!(answer("lost both\n"), Err(UpgradeError::Lost(why)) if why == "both"));
    assert!(matches!(answer("ok soon\n"), Err(UpgradeError::Lost(_))));
    assert!(matches!(answer("\n"), Err(UpgradeError::Unreachable(_))));
}

#[test]
fn another_user_at_the_socket_is_not_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let answer = request(&socket, me() + 1, &program(), Instant::now() + LONG);
    assert!(
        matches!(&answer, Err(UpgradeError::Unreachable(error)) if error.to_string().contains("another user"))
    );
}
