//! Random requests while the storage fails at random: each answer is right or a failure that may pass.

use std::time::Duration;

use esker_testkit::s3::S3Fault;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::bucket::Stored;

/// Number of requests of one client.
const REQUESTS: usize = 20;
/// Number of clients at once.
const CLIENTS: usize = 3;

#[test]
fn an_answer_is_right_or_a_failure_that_may_pass_whatever_the_storage_does() {
    let mut runner = TestRunner::new(Config { cases: 2, ..Config::default() });
    let picks = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), REQUESTS);
    let faults = prop::collection::vec(
        prop_oneof![
            Just(S3Fault::Drop),
            Just(S3Fault::Cut),
            Just(S3Fault::LoseAnswer),
            Just(S3Fault::SlowDown),
            Just(S3Fault::Status(500)),
            Just(S3Fault::Delay(Duration::from_millis(20))),
        ],
        12,
    );
    let outcome = runner.run(&(prop::collection::vec(picks, CLIENTS), faults), |(clients, faults)| {
        let stored = Stored::start();
        let rules: Vec<_> = (0..)
            .zip(&faults)
            .map(|(at, fault)| stored.server.fault_at(3 * at..3 * at + 2, |_| true, *fault))
            .collect();
        let server = stored.serve();
        let paths = stored.paths();
        std::thread::scope(|scope| {
            for picks in &clients {
                let (server, paths, stored) = (&server, &paths, &stored);
                scope.spawn(move || {
                    let mut client = server.client();
                    for (pick, is_fresh) in picks {
                        let path = pick.get(paths);
                        let fields = if *is_fresh { "Cache-Control: no-cache\r\n" } else { "" };
                        let answer = client.ask("GET", path, fields);
                        match answer.status {
                            200 => assert_eq!(answer.body, stored.bytes(path), "{path}"),
                            502 | 503 => assert!(answer.field("Retry-After").is_some(), "{answer:?}"),
                            other => panic!("{path}: {other}"),
                        }
                    }
                });
            }
        });
        prop_assert!(rules.iter().any(|rule| rule.hits() > 0));
        // The faults are over: everything is served.
        for path in &paths {
            let answer = server.get(path);
            prop_assert_eq!((answer.status, &answer.body), (200, &stored.bytes(path)), "{}", path);
        }
        Ok(())
    });
    outcome.expect("right answers");
}
