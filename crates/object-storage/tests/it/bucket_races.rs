//! Publishers that replace a head in a bucket at once.

use std::sync::Barrier;
use std::thread;

use esker_store::Swap;
use esker_testkit::s3::{BUCKET, S3Fault, S3Server};

use crate::buckets::{HEAD, sink};

const WRITERS: usize = 12;
const ROUNDS: usize = 5;

/// Each writer adds its letter to the head, as often as there are rounds, and starts again if it lost.
fn race(server: &S3Server) {
    let barrier = Barrier::new(WRITERS);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let barrier = &barrier;
            scope.spawn(move || {
                let sink = sink(server);
                sink.prepare().unwrap();
                barrier.wait();
                for _ in 0..ROUNDS {
                    loop {
                        let old = sink.read(HEAD, 1000).unwrap();
                        let mut new = old.clone().unwrap_or_default();
                        new.push(b'a' + u8::try_from(writer).unwrap());
                        if sink.replace_root(HEAD, &new, old.as_deref()).unwrap() == Swap::Replaced {
                            break;
                        }
                        // The answer to this writer was lost, and another one wrote above it.
                        let now = sink.read(HEAD, 1000).unwrap().unwrap_or_default();
                        if now.starts_with(&new) {
                            break;
                        }
                    }
                }
            });
        }
    });
    let head = server.object(BUCKET, "cvmfs/a.test/.cvmfspublished").unwrap().bytes;
    for writer in 0..WRITERS {
        let letter = b'a' + u8::try_from(writer).unwrap();
        assert_eq!(
            head.iter().filter(|byte| **byte == letter).count(),
            ROUNDS,
            "writer {writer} in {head:?}"
        );
    }
    assert_eq!(head.len(), WRITERS * ROUNDS);
}

#[test]
fn no_change_of_racing_writers_is_lost() {
    race(&S3Server::start());
}

#[test]
fn no_change_of_racing_writers_is_lost_or_doubled_when_answers_are_lost() {
    let server = S3Server::start();
    let of_head = |request: &esker_testkit::s3::S3Request| {
        request.is_conditional_put() && request.key.ends_with(".cvmfspublished")
    };
    let lost: Vec<_> = [3..5, 11..12, 20..23]
        .into_iter()
        .map(|numbers| server.fault_at(numbers, of_head, S3Fault::LoseAnswer))
        .collect();
    let conflicts = server.fault_at(30..34, of_head, S3Fault::Conflict);
    race(&server);
    lost.iter().for_each(esker_testkit::s3::S3Rule::assert_hit);
    conflicts.assert_hit();
}
