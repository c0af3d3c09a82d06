//! `esker serve` as a service: sockets of systemd, readiness, access log, TLS, metrics.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_testkit::fixture;
use esker_testkit::waiting::until;
use esker_testkit::web::Authority;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::test_env::{esker_binary, words};
use crate::test_user::TestUser;

const PATIENCE: Duration = Duration::from_secs(60);
const TOP: &str = "/cvmfs/full.test/.cvmfspublished";

/// A server that ends when it is dropped.
struct Serving {
    child: Child,
    ready: Value,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("esker serve");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        Self { ready: serde_json::from_str(&line).expect(&line), child }
    }

    fn address(&self) -> &str {
        let url = self.ready["url"].as_str().expect("a URL");
        url.split("//").nth(1).expect("an address")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).expect("a process"), signal)
            .expect("a signal");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn esker(folder: &Path, options: &[&str]) -> Command {
    let mut command = TestUser::myself().command(esker_binary());
    command.arg("serve").arg(folder).args(options).arg("--json");
    if rustix::process::geteuid().is_root() {
        command.args(["--user", "root"]);
    }
    command.env_clear().env("HOME", "/");
    command
}

/// Returns the whole answer of a server to a request.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connecting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_socket_of_the_service_manager_is_used_and_readiness_is_told() {
    let repository = fixture::FULL.unpack();
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("notify");
    let manager = UnixDatagram::bind(&told).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address").to_string();
    let call = esker(&repository.path(), &[]);
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"", "sh"])
        .arg(call.get_program())
        .args(call.get_args())
        .env_clear()
        .env("HOME", "/")
        .env("NOTIFY_SOCKET", &told)
        .stdin(OwnedFd::from(listener));
    let mut serving = Serving::start(&mut shell);
    assert_eq!(serving.address(), address);
    let mut state = [0; 64];
    let len = manager.recv(&mut state).expect("a message");
    assert_eq!(&state[..len], b"READY=1");
    assert!(get(&address, TOP).starts_with("HTTP/1.1 200"));
    serving.signal(Signal::TERM);
    let len = manager.recv(&mut state).expect("a message");
    assert_eq!(&state[..len], b"STOPPING=1");
    assert!(serving.child.wait().expect("its end").success());
}

#[test]
fn a_hangup_opens_the_access_log_again_and_reads_the_certificate_again() {
    let repository = fixture::FULL.unpack();
    let folder = tempfile::tempdir().expect("a folder");
    let (log, moved) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--access-log",
        log.to_str().expect("text"),
        "--access-log-format",
        "json",
    ];
    let mut serving = Serving::start(&mut esker(&repository.path(), &options));
    let address = serving.address().to_owned();
    assert!(get(&address, TOP).starts_with("HTTP/1.1 200"));
    let is_one = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.lines().count() == 1);
    assert!(until(PATIENCE, || is_one(&log)), "the request is logged");
    let line: Value = serde_json::from_str(&fs::read_to_string(&log).expect("a log")).expect("JSON");
    assert_eq!(
        (&line["target"], &line["status"], &line["client"]),
        (&TOP.into(), &200.into(), &"127.0.0.1".into())
    );
    fs::rename(&log, &moved).expect("a file");
    serving.signal(Signal::HUP);
    assert!(until(PATIENCE, || log.exists()), "the log is opened again");
    assert!(get(&address, "/healthz").ends_with("ok\n"));
    assert!(until(PATIENCE, || is_one(&log)) && is_one(&moved));
    serving.signal(Signal::TERM);
    assert!(serving.child.wait().expect("its end").success());
}

#[test]
fn a_server_listens_at_several_addresses_and_a_hangup_never_ends_it() {
    let repository = fixture::FULL.unpack();
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (certificate, key) = (text(&certificate), text(&key));
    let two = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let mut serving = Serving::start(&mut esker(&repository.path(), &two));
    serving.signal(Signal::HUP);
    let address = |serving: &Serving, at: usize, scheme: &str| {
        let url = serving.ready["urls"][at].as_str().expect("a URL");
        url.strip_prefix(scheme).expect(url).to_owned()
    };
    for at in 0..2 {
        assert!(get(&address(&serving, at, "http://"), TOP).starts_with("HTTP/1.1 200"), "{at}");
    }
    serving.signal(Signal::TERM);
    assert!(serving.child.wait().expect("its end").success());
    let both = ["--listen", "127.0.0.1:0", "--listen", "http://127.0.0.1:0"];
    let secure = [&both[..], &["--tls-cert", &certificate, "--tls-key", &key]].concat();
    let serving = Serving::start(&mut esker(&repository.path(), &secure));
    address(&serving, 0, "https://");
    assert!(get(&address(&serving, 1, "http://"), TOP).starts_with("HTTP/1.1 200"));
    let refused = esker(&repository.path(), &["--listen", "https://127.0.0.1:0"]).output().expect("esker");
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
}

#[test]
fn serve_prints_https_and_metrics_addresses() {
    let repository = fixture::FULL.unpack();
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (certificate, key) = (text(&certificate), text(&key));
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--client-rate",
        "1000",
        "--client-connections",
        "100",
    ];
    let serving = Serving::start(&mut esker(&repository.path(), &options));
    let url = serving.ready["repositories"][0]["url"].as_str().expect("a URL");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let metrics =
        serving.ready["metrics"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a URL");
    let (address, path) = metrics.split_once('/').expect("a path");
    let answer = get(address, &format!("/{path}"));
    assert!(answer.contains("esker_repository_revision{repository=\"full.test\"} 3\n"), "{answer}");
    let refused =
        esker(&repository.path(), &["--tls-cert", &certificate, "--tls-key", &certificate]).output();
    let refused = refused.expect("running esker");
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    assert!(words(&refused).contains("no private key in PEM form"), "{}", words(&refused));
}
