//! Notifications of new revisions, true and false ones.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use esker_testkit::fixture;
use rustix::process::Signal;

use crate::configuring::Site;
use crate::daemons::signal;
use crate::served::Served;
use crate::test_env::{Mounted, PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// Time to live longer than any test: a revision that arrives was pushed.
const TTL: [&str; 2] = ["--ttl", "7200"];
const FILE: &str = "data/hex.txt";

fn publish(world: &TestEnv, tag: &str) {
    world.repository.publish(&world.repository.head_at(tag));
}

fn wait_for_revision(mounted: &Mounted<'_>, revision: u64) {
    mounted.wait_until(&format!("revision {revision}"), |status| status["revision"] == revision);
}

/// > V7: Where a server tells of new revisions, they appear at once, whatever the time to live; what it says is never believed, and without it the time to live is as before.
#[test]
fn a_served_revision_arrives_long_before_the_ttl_ends() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        publish(&world, "v1");
        let server = Served::start(world.repository.document_root());
        let mounted = world.mount_of(&server.url(world.fixture().name()), &TTL);
        mounted.wait_until("an open stream", |status| status["push"]["connected"] == true);
        let before = mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
        for (tag, revision) in [("v2", 2), ("v3", 3)] {
            publish(&world, tag);
            wait_for_revision(&mounted, revision);
        }
        let after = mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
        assert_ne!(before, after, "the file did change");
        assert!(mounted.status()["push"]["events"].as_u64() >= Some(3));
    }
}

/// A server that freezes with its stream, and one that is gone, delay neither cached reads nor unmounting.
#[test]
fn a_frozen_or_dead_push_server_delays_nothing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    publish(&world, "v1");
    let server = Served::start(world.repository.document_root());
    let mounted = world.mount_of(&server.url(world.fixture().name()), &TTL);
    mounted.wait_until("an open stream", |status| status["push"]["connected"] == true);
    let before = mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
    signal(server.pid(), Signal::STOP);
    publish(&world, "v2");
    assert_eq!(mounted.does(|| fs::read(mounted.path(FILE))).expect("reading"), before);
    let status = mounted.status();
    assert_eq!((&status["revision"], &status["waiting"]), (&1.into(), &0.into()), "{status:#}");
    // It continues where it stopped: revisions published meanwhile arrive.
    signal(server.pid(), Signal::CONT);
    wait_for_revision(&mounted, 2);
    let after = mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
    assert_ne!(before, after, "the file did change");
    drop(server);
    let status = mounted.wait_until("word of the end", |status| status["push"]["connected"] == false);
    assert!(status["push"]["failure"].is_string(), "{status:#}");
    assert_eq!(mounted.does(|| fs::read(mounted.path(FILE))).expect("reading"), after);
}

/// A notification server of CernVM-FS, controlled by the test.
struct Notifier {
    url: String,
    streams: Receiver<TcpStream>,
}

impl Notifier {
    fn start(repository: &'static str) -> Notifier {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
        let url = format!("http://{}/api/v1", listener.local_addr().expect("an address"));
        let (sender, streams) = channel();
        std::thread::spawn(move || {
            // Until the end of the test.
            while let Ok((stream, _)) = listener.accept() {
                if subscribe(stream, repository, &sender).is_none() {
                    return;
                }
            }
        });
        Notifier { url, streams }
    }

    fn stream(&self) -> TcpStream {
        self.streams.recv_timeout(PATIENCE).expect("a client that listens")
    }
}

/// Reads a subscription and begins the answer.
fn subscribe(stream: TcpStream, repository: &str, sender: &Sender<TcpStream>) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).expect("a request");
    assert_eq!(line.trim_end(), "GET /api/v1/notifications/subscribe HTTP/1.1");
    while !line.trim_end().is_empty() {
        line.clear();
        reader.read_line(&mut line).expect("a field");
        if let Some(("content-length", value)) = line.to_ascii_lowercase().trim_end().split_once(": ") {
            length = value.parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((&body["version"], &body["repository"]), (&1.into(), &repository.into()));
    let mut stream = reader.into_inner();
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n";
    stream.write_all(head).expect("answering");
    sender.send(stream).ok()
}

fn message(manifest: &[u8]) -> Vec<u8> {
    let manifest = base64(manifest);
    let message = serde_json::json!({
        "version": 1, "timestamp": "now", "type": "activity", "repository": "full.test", "manifest": manifest,
    });
    format!("data: {message}\n\n").into_bytes()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            text.push(if at > group.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[test]
fn notifications_are_followed_and_false_ones_change_nothing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    publish(&world, "v1");
    let notifier = Notifier::start(world.fixture().name());
    let mounted = world.mount(&[&TTL[..], &["--push", &notifier.url]].concat());
    let mut stream = notifier.stream();
    // The content of each connection's event is known already.
    stream.write_all(&message(&world.repository.head_at("v1"))).expect("telling");
    publish(&world, "v2");
    stream.write_all(&message(&world.repository.head_at("v2"))).expect("telling");
    wait_for_revision(&mounted, 2);

    // False events: nonsense, another repository, and an impossible revision.
    stream
        .write_all(b"data: {\"repository\":\"other.test\",\"revision\":9}\n\ndata: \xff\xfe\n\n")
        .expect("telling");
    let looks = || world.mirror.count(|path| path.ends_with("/.cvmfspublished"));
    let before = looks();
    stream.write_all(b"data: {\"repository\":\"full.test\",\"revision\":999}\n\n").expect("telling");
    world.mirror.wait_for(before + 1, |path| path.ends_with("/.cvmfspublished"));
    mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
    assert_eq!(mounted.status()["revision"], 2);
    // Endless talk ends the stream, and another is opened.
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    let mut stream = notifier.stream();
    publish(&world, "v3");
    stream.write_all(&message(&world.repository.head_at("v3"))).expect("telling");
    wait_for_revision(&mounted, 3);
}

/// A mount by name gets notifications from `CVMFS_NOTIFICATION_SERVER`.
#[test]
fn a_configured_notification_server_announces_revisions() {
    let site = Site::new(TestUser::ordinary());
    let world = &site.world;
    publish(world, "v1");
    let notifier = Notifier::start(world.fixture().name());
    site.write(
        "/etc/cvmfs/config.d/full.test.local",
        &format!("CVMFS_NOTIFICATION_SERVER={}\n", notifier.url),
    );
    let mountpoint = world.mountpoint();
    let place = [mountpoint.to_str().expect("UTF-8")];
    let output = site.call(&[&["mount", "full.test"], &place[..], &TTL].concat());
    assert!(output.status.success(), "{}", words(&output));
    let mounted = world.mounted();
    let mut stream = notifier.stream();
    publish(world, "v2");
    stream.write_all(&message(&world.repository.head_at("v2"))).expect("telling");
    wait_for_revision(&mounted, 2);
}
