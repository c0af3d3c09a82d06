//! Servers of buckets that lose or damage what they accepted.

use esker_object_storage::StorageSettings;
use esker_store::{Cause, StorageProblem, StoreError, Swap};
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server};

use crate::buckets::{HEAD, key, object, open, settings};

const LIES: [S3Fault; 3] = [S3Fault::LosePut, S3Fault::DamagePut, S3Fault::ShortenPut];

fn is_object(request: &S3Request) -> bool {
    request.method == "PUT" && request.key.contains("/data/")
}

fn is_damage(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Bucket { problem: StorageProblem::Damaged(_), .. })
}

fn publish(settings: &StorageSettings) -> Result<Swap, StoreError> {
    let sink = open("s3://bucket/cvmfs/a.test", settings);
    // The first one shows which kind of versions the server has.
    for (name, bytes) in (0..6).map(object) {
        sink.put(&name, &bytes)?;
        sink.flush()?;
    }
    sink.replace_root(HEAD, b"new", None)
}

/// > U17: An object that object storage accepts and then lacks, or has with another length or checksum, is stored again, or no head follows; with `--storage-read-back` the bytes are compared.
#[test]
fn an_object_that_a_server_accepts_and_loses_or_damages_is_stored_again() {
    for lie in LIES {
        for read_back in [false, true] {
            let server = S3Server::start();
            let settings = StorageSettings { read_back, ..settings(&server) };
            // The second put of an object, and that of the repetition.
            let rule = server.fault_at(1..3, is_object, lie);
            assert_eq!(publish(&settings).unwrap(), Swap::Replaced);
            rule.assert_hit();
            for (name, bytes) in (0..6).map(object) {
                let stored = server.object(BUCKET, &key(&name)).map(|object| object.bytes);
                assert_eq!(stored, Some(bytes), "{lie:?}, {read_back}");
            }
        }
    }
}

#[test]
fn a_server_that_never_stores_what_it_accepts_gets_no_head() {
    for lie in LIES {
        let server = S3Server::start();
        let rule = server.fault_at(1..u64::MAX, is_object, lie);
        let error = publish(&settings(&server)).unwrap_err();
        rule.assert_hit();
        assert!(is_damage(&error), "{lie:?}: {error:?}");
        assert!(server.object(BUCKET, "cvmfs/a.test/.cvmfspublished").is_none(), "{lie:?}");
    }
}

#[test]
fn a_head_that_a_server_accepts_and_does_not_show_is_a_failure() {
    let server = S3Server::start();
    let is_head = |request: &S3Request| request.method == "PUT" && request.key.ends_with(HEAD);
    let rule = server.fault(is_head, S3Fault::LosePut);
    let error = publish(&settings(&server)).unwrap_err();
    rule.assert_hit();
    assert!(is_damage(&error), "{error:?}");
}

/// A listing that begins again ends with an error, however long the pages are.
#[test]
fn a_server_that_repeats_its_listings_is_found_out() {
    for page in [1, 3, 1000] {
        let server = S3Server::start();
        assert_eq!(publish(&settings(&server)).unwrap(), Swap::Replaced);
        server.set_page(page);
        server.repeat_listings();
        let sink = open("s3://bucket/cvmfs/a.test", &settings(&server));
        let mut listed = 0;
        let error = sink.list(&mut |_| listed += 1).unwrap_err();
        assert!(is_damage(&error), "{page}: {error:?}");
        assert!(listed < 100, "{page}: {listed}");
    }
}

/// Objects are removed in parts, and a server that only says so is found out.
#[test]
fn a_server_that_removes_nothing_is_found_out() {
    let server = S3Server::start();
    assert_eq!(publish(&settings(&server)).unwrap(), Swap::Replaced);
    server.refuse_batches();
    let rule = server.fault(|request| request.method == "DELETE", S3Fault::LosePut);
    let error = open("s3://bucket/cvmfs/a.test", &settings(&server)).remove_all().unwrap_err();
    rule.assert_hit();
    assert!(is_damage(&error), "{error:?}");
}
