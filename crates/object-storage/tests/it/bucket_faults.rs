//! Publishing to a bucket whose server fails at any request.

use std::time::Duration;

use esker_object_storage::StorageSettings;
use esker_store::{StoreError, Swap};
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server};

use crate::buckets::{HEAD, key, object, open, settings, sink};

const OBJECTS: u32 = 6;
const HEAD_KEY: &str = "cvmfs/a.test/.cvmfspublished";
const FAULTS: [S3Fault; 7] = [
    S3Fault::Drop,
    S3Fault::LoseAnswer,
    S3Fault::Cut,
    S3Fault::SlowDown,
    S3Fault::Conflict,
    S3Fault::Status(500),
    S3Fault::Delay(Duration::from_millis(20)),
];

/// Stores objects, then replaces the head.
fn publish(server: &S3Server, settings: &StorageSettings, old: Option<&[u8]>) -> Result<Swap, StoreError> {
    // The probe before the first publish is not what fails here.
    let state = tempfile::tempdir().unwrap();
    let place = format!("s3://bucket/cvmfs/a.test {}/bucket/cvmfs/a.test", server.endpoint());
    std::fs::write(state.path().join("conditional-puts"), format!("1 atomic {place}\n")).unwrap();
    let settings = StorageSettings { state: Some(state.path().to_owned()), ..settings.clone() };
    let sink = open("s3://bucket/cvmfs/a.test", &settings);
    for (name, bytes) in (0..OBJECTS).map(object) {
        sink.put(&name, &bytes)?;
    }
    sink.flush()?;
    sink.replace_root(HEAD, b"new", old)
}

fn check(server: &S3Server, outcome: &Result<Swap, StoreError>, old: Option<&[u8]>, what: &str) {
    let head = server.object(BUCKET, HEAD_KEY).map(|object| object.bytes);
    match head.as_deref() {
        Some(b"new") => {
            for (name, bytes) in (0..OBJECTS).map(object) {
                let stored = server.object(BUCKET, &key(&name));
                assert_eq!(stored.map(|object| object.bytes), Some(bytes), "{what}: below the new head");
            }
        }
        other => {
            assert_eq!(other, old, "{what}");
            assert!(outcome.is_err(), "{what}: {outcome:?}");
        }
    }
}

#[test]
fn one_failed_request_harms_no_publish() {
    for old in [None, Some(&b"old"[..])] {
        for fault in FAULTS {
            for number in 0.. {
                let server = S3Server::start();
                old.into_iter().for_each(|old| server.put(BUCKET, HEAD_KEY, old));
                let picks = move |request: &S3Request| fault != S3Fault::Conflict || request.method == "PUT";
                let rule = server.fault_at(number..number + 1, picks, fault);
                let outcome = publish(&server, &settings(&server), old);
                let what = format!("{fault:?} at request {number} of a publish over {old:?}");
                assert!(matches!(outcome, Ok(Swap::Replaced)), "{what}: {outcome:?}");
                check(&server, &outcome, old, &what);
                if rule.hits() == 0 {
                    assert!(number > u64::from(OBJECTS), "{what}: {number} requests");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_server_that_fails_for_good_leaves_the_old_or_the_new_head() {
    for old in [None, Some(&b"old"[..])] {
        for fault in [S3Fault::Drop, S3Fault::LoseAnswer, S3Fault::SlowDown, S3Fault::Status(403)] {
            for number in 0..u64::from(OBJECTS) + 3 {
                let server = S3Server::start();
                old.into_iter().for_each(|old| server.put(BUCKET, HEAD_KEY, old));
                let rule = server.fault_at(number..u64::MAX, |_| true, fault);
                let few = StorageSettings { retries: Some(0), ..settings(&server) };
                let outcome = publish(&server, &few, old);
                let what = format!("{fault:?} from request {number} of a publish over {old:?}");
                check(&server, &outcome, old, &what);
                assert!(outcome.is_err() == (rule.hits() > 0), "{what}: {outcome:?}");
            }
        }
    }
}

#[test]
fn a_lost_answer_to_a_conditional_put_is_settled_by_reading() {
    for old in [None, Some(&b"old"[..])] {
        for fault in [S3Fault::LoseAnswer, S3Fault::Conflict, S3Fault::Drop] {
            let server = S3Server::start();
            old.into_iter().for_each(|old| server.put(BUCKET, HEAD_KEY, old));
            let sink = sink(&server);
            sink.prepare().unwrap();
            let rule = server.fault_at(0..3, |request| request.is_conditional_put(), fault);
            assert_eq!(
                sink.replace_root(HEAD, b"new", old).unwrap(),
                Swap::Replaced,
                "{fault:?} over {old:?}"
            );
            rule.assert_hit();
            assert_eq!(server.object(BUCKET, HEAD_KEY).unwrap().bytes, b"new");
            assert_eq!(sink.replace_root(HEAD, b"newer", old).unwrap(), Swap::Moved);
        }
    }
}

#[test]
fn a_conflict_on_a_create_is_not_taken_for_a_head_of_others() {
    let server = S3Server::start();
    let sink = sink(&server);
    sink.prepare().unwrap();
    // The server is asked, and has no head; the second attempt stores it.
    let rule = server.fault_at(0..1, |request| request.is_conditional_put(), S3Fault::Conflict);
    assert_eq!(sink.replace_root(HEAD, b"new", None).unwrap(), Swap::Replaced);
    assert_eq!(rule.hits(), 1);
}

#[test]
fn a_large_object_survives_failures_of_each_request() {
    let bytes = vec![7; 33 << 20];
    let hash = esker_format::hash::ContentHash::of(esker_format::hash::HashAlgorithm::Rmd160, &bytes);
    let name = esker_format::object::ObjectName::new(hash, esker_format::object::ObjectKind::File);
    for fault in [S3Fault::Drop, S3Fault::LoseAnswer] {
        for number in 0..8 {
            let server = S3Server::start();
            let sink = sink(&server);
            let rule = server.fault_at(number..number + 1, |_| true, fault);
            sink.put(&name, &bytes).unwrap();
            sink.flush().unwrap();
            let what = format!("{fault:?} at request {number}");
            assert!(server.object(BUCKET, &key(&name)).unwrap().bytes == bytes, "{what}");
            if rule.hits() == 0 {
                assert!(number >= 5, "{what}");
                break;
            }
        }
    }
}

#[test]
fn a_reading_goes_on_where_it_broke_off() {
    let server = S3Server::start();
    let sink = sink(&server);
    let bytes: Vec<u8> = (0..3_u32 << 18).flat_map(u32::to_le_bytes).collect();
    server.put(BUCKET, "cvmfs/a.test/large", bytes.clone());
    let cut = server.fault_at(0..3, |request| request.key.ends_with("large"), S3Fault::Cut);
    let mut copy = Vec::new();
    assert_eq!(sink.read_to("large", &mut copy).unwrap(), Some(bytes.len() as u64));
    assert!(copy == bytes);
    assert_eq!(cut.hits(), 3);
    let cut = server.fault_at(0..2, |request| request.key.ends_with("large"), S3Fault::Cut);
    assert!(sink.read("large", u64::MAX).unwrap().unwrap() == bytes);
    cut.assert_hit();
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let server = S3Server::start();
    let short = StorageSettings { retries: Some(0), timeout: Some(1), ..settings(&server) };
    let sink = open("s3://bucket/cvmfs/a.test", &short);
    let late = server.fault(|_| true, S3Fault::Delay(Duration::from_secs(5)));
    let error = sink.read(HEAD, 10).unwrap_err();
    late.assert_hit();
    assert!(error.to_string().contains("no answer began within 1 s"), "{error}");
}

#[test]
fn a_server_that_accepts_requests_and_never_answers_is_an_error_after_the_deadline() {
    let server = S3Server::start();
    let rule = server.fault(|_| true, S3Fault::Delay(Duration::from_secs(600)));
    let sink = open("s3://bucket/cvmfs/a.test", &StorageSettings { timeout: Some(1), ..settings(&server) });
    let (name, bytes) = object(1);
    let operations: [&dyn Fn() -> Result<(), StoreError>; 4] = [
        &|| sink.read(HEAD, 1 << 20).map(drop),
        &|| sink.put(&name, &bytes).and_then(|_| sink.flush()),
        &|| sink.list(&mut |_| ()),
        &|| sink.delete(&[name]),
    ];
    for (number, operation) in operations.iter().enumerate() {
        let hits = rule.hits();
        let error = operation().unwrap_err();
        assert!(error.full_text().contains("no answer began within 1 s"), "{number}: {}", error.full_text());
        // A listing asks for several folders at once; with repetitions there would be dozens of requests.
        assert!((1..=16).contains(&(rule.hits() - hits)), "{number}: {} requests", rule.hits() - hits);
    }
}
