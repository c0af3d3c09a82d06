use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use esker_testkit::skip;
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::runtime::RuntimeDir;
use crate::status::MountStatus;

const USER: u32 = 12_345;

/// Folders like those of a machine, of which the user has one below each.
struct Machine {
    base: tempfile::TempDir,
    places: Places,
}

impl Machine {
    /// Makes the machine; `None` without root's rights: only root can give files to users.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip!("only root can give files to users");
        }
        let base = tempfile::tempdir().expect("a directory");
        let temporary = ["tmp", "other-tmp"].map(|name| base.path().join(name)).into();
        let places = Places { run: base.path().join("run"), temporary };
        let machine = Self { base, places };
        for folder in ["run", "tmp", "other-tmp"].map(|place| machine.own(place)) {
            fs::create_dir_all(&folder).expect("a folder");
            machine.give(&folder);
        }
        machine.give(&machine.places.run.join(USER.to_string()));
        Some(machine)
    }

    fn own(&self, place: &str) -> PathBuf {
        match place {
            "run" => self.places.run.join(USER.to_string()).join("esker"),
            _ => self.base.path().join(place).join(format!("esker-{USER}")),
        }
    }

    fn give(&self, path: &Path) {
        chown(path, Some(USER), Some(USER)).expect("root gives files to users");
    }

    fn write(&self, place: &str, mountpoint: &str) -> PathBuf {
        let entry = Entry {
            supervisor: None,
            device: None,
            departed: false,
            mountpoint: mountpoint.into(),
            command: None,
            repository: "a.test".into(),
            url: "http://x/a.test".into(),
            cache: "/c".into(),
            pid: 1,
            started: 1,
        };
        let path = self.own(place).join(format!("{}.json", RuntimeDir::id(Path::new(mountpoint))));
        fs::write(&path, serde_json::to_vec(&entry).expect("JSON")).expect("writing");
        self.give(&path);
        path
    }

    fn found(&self) -> Vec<(u32, String, bool)> {
        let all = of_users(&self.places).into_iter();
        all.map(|one| (one.user, one.entry.mountpoint.display().to_string(), one.alive)).collect()
    }
}

#[test]
fn registries_of_users_are_read_from_all_folders() {
    let Some(machine) = Machine::new() else { return };
    let first = machine.write("run", "/one");
    machine.write("tmp", "/two");
    machine.write("other-tmp", "/three");
    let lock = File::open(first).expect("opening");
    flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("free");
    let expected = [("/one", true), ("/three", false), ("/two", false)];
    assert_eq!(machine.found(), expected.map(|(place, alive)| (USER, place.to_owned(), alive)));
}

/// A file that a user puts in the place of a registry is never followed, waited for or trusted.
#[test]
fn malicious_entries_in_a_registry_are_skipped() {
    let Some(machine) = Machine::new() else { return };
    let own = machine.own("run");
    let good = machine.write("run", "/good");
    let name = |at: usize| own.join(format!("{at:016x}.json"));
    symlink(&good, name(1)).expect("a link");
    // An entry of another user.
    fs::copy(&good, name(2)).expect("copying");
    rustix::fs::mknodat(rustix::fs::CWD, name(3), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    machine.give(&name(3));
    fs::create_dir(name(4)).expect("a folder");
    fs::write(name(5), vec![b' '; 2 * ENTRY_MAX as usize]).expect("writing");
    fs::write(name(6), "no JSON").expect("writing");
    fs::copy(&good, own.join("no-id.json")).expect("copying");
    for at in [5, 6] {
        machine.give(&name(at));
    }
    assert_eq!(machine.found(), [(USER, "/good".to_owned(), false)]);
    // The whole folder is a link, or another user's.
    let elsewhere = machine.base.path().join("elsewhere");
    fs::rename(&own, &elsewhere).expect("moving");
    symlink(&elsewhere, &own).expect("a link");
    assert_eq!(machine.found(), []);
    fs::remove_file(&own).expect("removing");
    fs::rename(&elsewhere, &own).expect("moving");
    chown(&own, Some(USER + 1), None).expect("giving");
    assert_eq!(machine.found(), []);
}

#[test]
fn only_the_first_entries_of_a_user_are_read() {
    let Some(machine) = Machine::new() else { return };
    for at in 0..2 * ENTRIES_MAX {
        machine.write("run", &format!("/m{at}"));
    }
    assert_eq!(machine.found().len(), ENTRIES_MAX);
}

/// A socket is used only if its user listens, and for no longer than the deadline, however the reply comes.
#[test]
fn sockets_of_users_are_verified_and_time_out() {
    let Some(machine) = Machine::new() else { return };
    let socket = machine.write("run", "/one").with_extension("sock");
    let ask = |patience: Duration| {
        let all = of_users(&machine.places);
        all[0].ask(Instant::now() + patience).map_err(|error| error.to_string())
    };
    let long = Duration::from_secs(30);
    assert_eq!(ask(long).expect_err("no socket"), "it has no socket");
    // Root listens at a socket that the user owns: not the user of the registry.
    let listener = UnixListener::bind(&socket).expect("listening");
    machine.give(&socket);
    assert_eq!(ask(long).expect_err("root"), "another user answers");
    drop(listener);
    fs::remove_file(&socket).expect("removing");
    // A link to a socket of another user.
    let target = machine.base.path().join("target");
    let _listener = UnixListener::bind(&target).expect("listening");
    symlink(&target, &socket).expect("a link");
    assert_eq!(ask(long).expect_err("a link"), "it has no socket");
}

/// A reply that comes byte by byte does not keep its reader beyond the deadline.
#[test]
fn reading_a_byte_by_byte_reply_times_out() {
    use std::io::Write;
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let drip = std::thread::spawn(move || {
        let goes_on = || ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout);
        while goes_on() && theirs.write_all(b" ").is_ok() {}
    });
    let error = control::ask_on(&ours, &Request::Status, Instant::now() + Duration::from_millis(50));
    assert_eq!(error.expect_err("too late").kind(), io::ErrorKind::WouldBlock);
    drop((ours, end));
    drip.join().expect("it ends");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let answer = serde_json::to_vec(&Response::Status(Box::<MountStatus>::default())).expect("JSON");
    theirs.write_all(&[answer.as_slice(), b"\n"].concat()).expect("writing");
    let status = control::ask_on(&ours, &Request::Status, Instant::now() + Duration::from_secs(30));
    assert!(matches!(status, Ok(Response::Status(_))), "{status:?}");
}
