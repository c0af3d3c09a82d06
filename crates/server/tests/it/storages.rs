//! Repositories in object storage, served through a cache folder.

mod bucket;
mod faults;

use std::fs::File;
use std::time::{Duration, SystemTime};

use esker_format::batch;
use esker_format::manifest::Manifest;
use esker_server::{Repositories, RootError, ServeError, Server};
use esker_testkit::fixture::FULL;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::s3::{BUCKET, S3Fault};

use crate::client::Running;
use crate::monitoring::assert_dashboard_is_served;
use bucket::{KEY, MANIFEST, Stored};

fn revision(manifest: &[u8]) -> u64 {
    Manifest::parse(manifest).expect("a manifest").revision
}

/// Every object and file has the same bytes and the same meaning as in a folder.
#[test]
fn a_bucket_is_served_like_a_folder() {
    let stored = Stored::start();
    let folder = Running::of(&[stored.repository.document_root().to_owned()]);
    let server = stored.serve();
    let (mut ours, mut theirs) = (server.client(), folder.client());
    let paths = stored.paths();
    assert!(paths.len() > 30);
    let fields = ["Content-Type", "Content-Length", "ETag", "Accept-Ranges", "Esker-Batch"];
    for path in paths.iter().chain(["/cvmfs/full.test/.cvmfsnothing".to_owned()].iter()) {
        for (method, extra) in [("GET", ""), ("HEAD", ""), ("GET", "Range: bytes=3-9\r\n")] {
            let is_object = path.contains("/data/");
            if !is_object && extra.starts_with("Range") {
                // A file that changes is small: it is sent whole.
                continue;
            }
            let (found, expected) = (ours.ask(method, path, extra), theirs.ask(method, path, extra));
            assert_eq!(found.status, expected.status, "{method} {path}");
            if found.status >= 400 {
                continue;
            }
            assert_eq!(found.body, expected.body, "{method} {path}");
            for field in fields.iter().filter(|field| is_object || **field != "Accept-Ranges") {
                assert_eq!(found.field(field), expected.field(field), "{method} {path} {field}");
            }
            assert_eq!(found.field("Cache-Control"), expected.field("Cache-Control"), "{method} {path}");
        }
    }
    for path in ["/cvmfs/info/v1/repositories.json", "/cvmfs/info/v1/meta.json"] {
        assert_eq!(ours.ask("GET", path, "").body, theirs.ask("GET", path, "").body, "{path}");
    }
}

#[test]
fn each_object_is_asked_for_once() {
    let stored = Stored::start();
    let server = stored.serve();
    let path = stored.object_path();
    let key = stored.key_of(&path);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..32).map(|_| scope.spawn(|| server.get(&path))).collect();
        for client in clients {
            let answer = client.join().expect("a client");
            assert_eq!((answer.status, &answer.body), (200, &stored.bytes(&path)));
        }
    });
    assert_eq!(stored.asked(&key), 1);
    server.stop();
    // The cache outlives the server.
    let server = stored.serve();
    assert_eq!(server.get(&path).field("x-cache"), Some("HIT"));
    assert_eq!(stored.asked(&key), 1);
}

#[test]
fn objects_of_the_cache_are_served_while_the_storage_is_away() {
    let stored = Stored::start();
    let server = stored.serve();
    let paths = stored.paths();
    let mut objects = paths.iter().filter(|path| path.contains("/data/"));
    let (known, other) = (objects.next().expect("an object"), objects.next().expect("another"));
    assert_eq!((server.get(known).status, server.get(MANIFEST).status), (200, 200));
    let rule = stored.leave();
    let found = server.get(known);
    assert_eq!((found.status, &found.body), (200, &stored.bytes(known)));
    let failed = server.get(other);
    assert_eq!((failed.status, failed.field("Cache-Control")), (503, Some("no-store")));
    assert!(failed.field("Retry-After").is_some_and(|seconds| seconds.parse::<u8>().is_ok()));
    let text = failed.text();
    assert!(!text.contains(BUCKET) && !text.contains("127.0.0.1"), "{text}");
    rule.assert_hit();
    // The manifest was confirmed a moment ago.
    let manifest = server.get(MANIFEST);
    assert_eq!((manifest.status, manifest.field("Cache-Control")), (200, Some("max-age=61")));
    assert!(manifest.field("Age").is_some_and(|age| age.parse::<u64>().is_ok_and(|age| age <= 61)));
    assert_eq!(server.get("/readyz").status, 200, "clients get the manifest");
    let up = |value: u8| format!("esker_serve_upstream_up{{repository=\"full.test\"}} {value}\n");
    assert!(server.get("/metrics").text().contains(&up(0)), "{}", server.get("/metrics").text());
    let is_of_storage = |name: &str| name.contains("_serve_upstream_");
    assert_dashboard_is_served(server.get("/metrics").text(), is_of_storage);
    stored.come_back();
    assert_eq!(server.get(other).body, stored.bytes(other));
    assert_eq!(server.get(MANIFEST).status, 200);
    assert!(server.get("/metrics").text().contains(&up(1)));
}

/// A manifest that the storage confirmed longer than its lifetime ago is no answer: a client then uses another server.
#[test]
fn a_manifest_is_never_served_beyond_its_lifetime() {
    let stored = Stored::start();
    let server = stored.serve();
    assert_eq!(server.get(MANIFEST).status, 200);
    server.stop();
    let saved = stored.cache.path().join("heads/storage/full.test/.cvmfspublished");
    let file = File::options().write(true).open(&saved).expect("the saved manifest");
    let rule = stored.leave();
    for (age, status) in [(30, 200), (62, 503)] {
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("a time");
        let server = stored.serve();
        let answer = server.get(MANIFEST);
        assert_eq!(answer.status, status, "{age} s");
        if status == 200 {
            let age = answer.field("Age").and_then(|age| age.parse::<u64>().ok());
            assert!(age.is_some_and(|age| (30..=61).contains(&age)), "{answer:?}");
        }
        assert_eq!(server.get("/readyz").status, status, "{age} s");
        server.stop();
    }
    rule.assert_hit();
}

#[test]
fn damaged_objects_reach_no_client() {
    let stored = Stored::start();
    let path = stored.object_path();
    let key = stored.key_of(&path);
    let mut bytes = stored.bytes(&path);
    bytes[7] ^= 1;
    stored.server.put(BUCKET, &key, bytes);
    let server = stored.serve();
    assert_eq!(server.get(&path).status, 502);
    stored.server.put(BUCKET, &key, stored.bytes(&path));
    assert_eq!(server.get(&path).body, stored.bytes(&path));
}

#[test]
fn a_new_revision_is_served_and_an_older_one_refused() {
    let stored = Stored::start();
    let server = stored.serve();
    let first = server.get(MANIFEST).body;
    RevisionBuilder::of(&stored.repository).publish(&stored.repository);
    stored.upload();
    let second = server.get(MANIFEST).body;
    assert_eq!(revision(&second), revision(&first) + 1);
    stored.server.put(BUCKET, &format!("{KEY}/.cvmfspublished"), first);
    assert_eq!(revision(&server.get(MANIFEST).body), revision(&second));
}

#[test]
fn a_batch_has_the_objects_of_the_bucket() {
    let stored = Stored::start();
    let server = stored.serve();
    let paths = stored.paths();
    let small = paths.iter().filter(|path| path.contains("/data/") && stored.bytes(path).len() < 10_000);
    let small: Vec<_> = small.take(8).collect();
    let names: Vec<_> = small.iter().map(|path| bucket::name_of(path)).collect();
    let answer = server.get(&format!("/cvmfs/full.test/{}", batch::path(&names)));
    assert_eq!((answer.status, answer.field("Cache-Control")), (200, Some("max-age=259200")));
    let parts = batch::split(&answer.body, names.len()).expect("a batch");
    assert!(small.iter().zip(parts).all(|(path, part)| part == Some(stored.bytes(path).as_slice())));
}

#[test]
fn monitoring_and_pages_know_the_repositories_of_a_bucket() {
    let stored = Stored::start();
    let server = stored.serve();
    let manifest = Manifest::parse(&stored.repository.read(".cvmfspublished")).expect("a manifest");
    let metrics = server.get("/metrics");
    let revision = format!("esker_repository_revision{{repository=\"full.test\"}} {}", manifest.revision);
    for line in [revision.as_str(), "esker_serve_cache_bytes ", "esker_serve_objects_total{result=\"miss\"} "]
    {
        assert!(metrics.text().lines().any(|known| known.starts_with(line)), "{line}: {}", metrics.text());
    }
    assert_eq!(metrics.text().matches("# EOF").count(), 1);
    for path in ["/", "/dashboard/", "/healthz", "/readyz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert!(server.get("/").text().contains("full.test"));
}

#[test]
fn events_of_a_bucket_announce_its_revision() {
    let stored = Stored::start();
    let server = stored.serve();
    let mut client = server.client();
    client.send(b"GET /cvmfs/full.test/.esker/revisions HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().status, 200);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut client.0, &mut line).expect("an event") > 0);
    }
    assert!(line.contains("\"repository\":\"full.test\""), "{line}");
}

#[test]
fn a_repository_in_a_folder_and_in_a_bucket_is_refused() {
    let stored = Stored::start();
    let listener = Server::listen("127.0.0.1:0".parse().expect("an address")).expect("listening");
    let folder = FULL.unpack();
    let repositories = Repositories::open(&[folder.path()]).expect("a folder");
    match Server::new(vec![listener], repositories, stored.options()) {
        Err(ServeError::Repositories(RootError::Twice { name, .. })) => assert_eq!(name, "full.test"),
        other => panic!("{:?}", other.map(drop)),
    }
}

/// A large body that is cut arrives whole: the rest is asked for again.
#[test]
fn an_answer_that_breaks_off_is_asked_for_again() {
    let stored = Stored::start();
    let (path, bytes) = stored.add(&bucket::noise(1 << 20));
    let key = stored.key_of(&path);
    let picked = key.clone();
    let rule = stored.server.fault_at(0..1, move |request| request.key == picked, S3Fault::Cut);
    let server = stored.serve();
    assert_eq!(server.get(&path).body, bytes);
    rule.assert_hit();
    assert!(stored.asked(&key) > 1);
}
