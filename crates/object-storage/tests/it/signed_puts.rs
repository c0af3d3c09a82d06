//! Requests that others send without credentials: each stores one object, for some time.

use std::time::Duration;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_object_storage::StorageSettings;
use esker_store::{SignedPut, Sink};
use esker_testkit::s3::{BUCKET, S3Fault, S3Program, S3Server, put_signed};
use esker_testkit::skip_optional;
use esker_testkit::waiting::Pace;

use crate::buckets::{key, open, settings, sink};

const MINUTE: Duration = Duration::from_secs(60);

fn object(algorithm: HashAlgorithm) -> (ObjectName, &'static [u8]) {
    let bytes = b"the bytes of an object";
    (ObjectName::new(ContentHash::of(algorithm, bytes), ObjectKind::File), bytes)
}

fn signed(sink: &dyn Sink, name: &ObjectName, len: usize, valid: Duration) -> SignedPut {
    let signed = sink.signed_puts(&[(*name, len as u64)], valid).unwrap();
    signed.expect("S3 has such requests").remove(0)
}

#[test]
fn a_signed_request_stores_its_object_and_no_other() {
    let server = S3Server::start();
    let sink = sink(&server);
    let (name, bytes) = object(HashAlgorithm::Sha1);
    let request = signed(&*sink, &name, bytes.len(), MINUTE);
    assert_eq!(request.staged, None);
    let other = object(HashAlgorithm::Rmd160).0;
    let elsewhere = request.url.replace(&name.path(), &other.path());
    assert_ne!(elsewhere, request.url);
    let mut wrong = bytes.to_vec();
    wrong[0] ^= 1;
    assert_eq!(put_signed(&request.url, &request.fields, &wrong), 400);
    assert_eq!(put_signed(&request.url, &request.fields, &bytes[1..]), 403);
    assert_eq!(put_signed(&elsewhere, &request.fields, bytes), 403);
    assert_eq!(put_signed(&request.url, &[], bytes), 403);
    assert_eq!(server.objects(BUCKET).len(), 0, "the probe left nothing, and the requests stored nothing");
    assert_eq!(put_signed(&request.url, &request.fields, bytes), 200);
    let stored = server.object(BUCKET, &key(&name)).unwrap();
    assert_eq!(stored.bytes, bytes);
    sink.put_anew(&name, bytes).unwrap();
    sink.flush().unwrap();
    assert_eq!(server.object(BUCKET, &key(&name)).unwrap(), stored, "the fields are those of other objects");
}

#[test]
fn a_signed_request_is_refused_after_its_time() {
    let server = S3Server::start();
    let sink = sink(&server);
    let (name, bytes) = object(HashAlgorithm::Sha1);
    let request = signed(&*sink, &name, bytes.len(), Duration::from_secs(1));
    let is_refused = || put_signed(&request.url, &request.fields, bytes) == 403;
    assert!(Pace::LOOK.until(MINUTE, is_refused), "it is valid for ever");
}

/// Neither a server that ignores checksums, nor an object whose hash is of another kind, makes bytes an object unseen.
#[test]
fn bytes_that_the_server_does_not_compare_are_no_object() {
    for (algorithm, compares) in [(HashAlgorithm::Sha1, false), (HashAlgorithm::Rmd160, true)] {
        let server = S3Server::start();
        if !compares {
            server.ignore_checksums();
        }
        let sink = sink(&server);
        let (name, bytes) = object(algorithm);
        let request = signed(&*sink, &name, bytes.len(), MINUTE);
        let staged = request.staged.unwrap();
        assert_eq!(put_signed(&request.url, &request.fields, bytes), 200);
        assert_eq!(sink.len_of(&name).unwrap(), None);
        assert_eq!(sink.read(&staged, 100).unwrap().as_deref(), Some(bytes));
        sink.remove_root(&staged).unwrap();
        assert_eq!(server.objects(BUCKET).len(), 0);
    }
}

#[test]
fn a_server_without_signed_requests_says_so_and_others_have_none() {
    let server = S3Server::start();
    let rule = server.fault(|request| request.asks("X-Amz-Signature"), S3Fault::Status(403));
    let (name, bytes) = object(HashAlgorithm::Sha1);
    let objects = [(name, bytes.len() as u64)];
    let failed = sink(&server).signed_puts(&objects, MINUTE).unwrap_err();
    assert!(failed.full_text().contains("with status 403"), "{}", failed.full_text());
    assert_eq!(rule.hits(), 2);
    let public = StorageSettings { anonymous: true, ..settings(&server) };
    assert_eq!(open("s3://bucket/cvmfs/a.test", &public).signed_puts(&objects, MINUTE).unwrap(), None);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display().to_string();
    assert_eq!(open(&folder, &StorageSettings::default()).signed_puts(&objects, MINUTE).unwrap(), None);
}

/// Prefixes have characters that URLs escape.
#[test]
fn keys_of_all_prefixes_are_signed() {
    let server = S3Server::start();
    let sink = open("s3://bucket/a+b@c:d=e,f/r.test", &settings(&server));
    let (name, bytes) = object(HashAlgorithm::Sha1);
    let request = signed(&*sink, &name, bytes.len(), MINUTE);
    assert_eq!(put_signed(&request.url, &request.fields, bytes), 200);
    assert_eq!(sink.len_of(&name).unwrap(), Some(bytes.len() as u64));
}

#[test]
fn real_servers_take_signed_requests() {
    let servers = [S3Program::gofakes3(), S3Program::moto(), S3Program::versitygw()];
    if servers.iter().all(Option::is_none) {
        skip_optional!("no server of S3 is installed");
    }
    for server in servers.into_iter().flatten() {
        let environment =
            [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")].into_iter().collect();
        let endpoint = Some(server.endpoint());
        let settings = StorageSettings { endpoint, environment, ..StorageSettings::default() };
        let sink = open("s3://bucket/cvmfs/a.test", &settings);
        let (name, bytes) = object(HashAlgorithm::Sha1);
        let request = signed(&*sink, &name, bytes.len(), MINUTE);
        let path = request.staged.clone().unwrap_or_else(|| name.path());
        assert_eq!(put_signed(&request.url, &request.fields, bytes), 200);
        assert_eq!(sink.read(&path, 100).unwrap().as_deref(), Some(bytes));
        if request.staged.is_none() {
            assert!(put_signed(&request.url, &request.fields, &[7; 22]) >= 400);
            assert_eq!(sink.read(&path, 100).unwrap().as_deref(), Some(bytes));
        }
    }
}
