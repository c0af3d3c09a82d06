//! Streams of new revisions.

use std::io::BufRead;

use esker_server::Limits;
use esker_testkit::fixture::{FULL, Repository};
use esker_testkit::waiting::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::client::{Client, PATIENCE, Running};

const REVISIONS: &str = "/cvmfs/full.test/.esker/revisions";

fn listen(server: &Running) -> Client {
    let mut client = server.client();
    client.send(format!("GET {REVISIONS} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let head = client.head();
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")), "{head:?}");
    assert_eq!((head.field("cache-control"), head.field("content-length")), (Some("no-store"), None));
    client
}

/// The data of the next event.
fn event(client: &mut Client) -> serde_json::Value {
    let mut data = None;
    loop {
        let mut line = String::new();
        assert_ne!(client.0.read_line(&mut line).expect("a line in time"), 0, "the stream ended");
        match (line.trim_end().split_once(": "), data.take()) {
            (None, Some(data)) => return data,
            (Some(("data", text)), _) => data = Some(serde_json::from_str(text).expect("JSON")),
            (_, before) => data = before,
        }
    }
}

fn publish(repository: &Repository, tag: &str) {
    repository.publish(&repository.head_at(tag));
}

#[test]
fn every_listener_gets_each_revision_another_process_publishes() {
    let repository = FULL.unpack();
    publish(&repository, "v1");
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut clients: Vec<Client> = (0..5).map(|_| listen(&server)).collect();
    for (tag, revision) in [("v1", 1), ("v2", 2), ("v3", 3)] {
        publish(&repository, tag);
        for client in &mut clients {
            let event = event(client);
            assert_eq!((&event["repository"], &event["revision"]), (&"full.test".into(), &revision.into()));
            assert_eq!(event["root_hash"], repository.tag(tag).root);
        }
    }
    // A client that comes later gets the current revision.
    assert_eq!(event(&mut listen(&server))["revision"], 3);
    server.stop();
    for mut client in clients {
        let rest = client.rest();
        assert!(rest.ends_with(b"0\r\n\r\n"), "a stopped server ends its streams: {rest:?}");
    }
}

#[test]
fn the_number_of_streams_is_bounded() {
    let repository = FULL.unpack();
    let folders = [repository.document_root().to_owned()];
    let server = Running::start(&folders, Limits { listeners: 2, ..Limits::default() });
    let (mut first, second) = (listen(&server), listen(&server));
    assert_eq!(event(&mut first)["revision"], 3);
    assert_eq!(server.get(REVISIONS).status, 503);
    drop(second);
    let is_given = until(PATIENCE, || {
        let mut client = server.client();
        client.send(format!("GET {REVISIONS} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        client.head().status == 200
    });
    assert!(is_given, "a place that was left is not given to another");
    assert_eq!(server.get("/cvmfs/absent.test/.esker/revisions").status, 404);
}

/// A client takes 404 to mean that this server tells of nothing, and asks again after an hour.
#[test]
fn a_manifest_that_can_not_be_read_now_is_not_absent() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let manifest = repository.read(".cvmfspublished");
    repository.write(".cvmfspublished", b"half");
    assert_eq!(server.get(REVISIONS).status, 503);
    std::fs::remove_file(repository.path().join(".cvmfspublished")).expect("a file");
    assert_eq!(server.get(REVISIONS).status, 404);
    repository.write(".cvmfspublished", &manifest);
    assert_eq!(event(&mut listen(&server))["revision"], 3);
}

/// The publisher of one repository must not be able to stop the events of others.
#[test]
fn a_pipe_in_place_of_a_manifest_blocks_nothing() {
    const REQUESTS: usize = 8;
    let repository = FULL.unpack();
    let other = repository.document_root().join("other.test");
    std::fs::create_dir(&other).expect("a folder");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, other.join(".cvmfspublished"), FileType::Fifo, mode, 0).expect("a pipe");
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut clients: Vec<_> = (0..REQUESTS).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"GET /cvmfs/other.test/.esker/revisions HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    assert_eq!(event(&mut listen(&server))["revision"], 3);
    assert!(clients.iter_mut().all(|client| client.head().status == 404));
}
