//! Example of a snapshot for tests.

use std::time::{Duration, Instant};

use esker_node::status::Requests;
use esker_node::trace::{Activity, Downloading, Operation, Source, TracedCall, WaitingCall, WaitsNs};

use super::known::Known;
use super::snapshot::Snapshot;

fn activity(at_ns: u64, lookups: u64) -> Activity {
    let kind = Requests { requests: lookups, ..Requests::from(&esker_fuse::OpcodeCounters::default()) };
    Activity { at_ns, requests: vec![kind], ..Activity::default() }
}

fn download(server: &str, age_us: u64, prefetch: bool) -> Downloading {
    let (server, object) = (server.to_owned(), format!("/file-{age_us}"));
    Downloading { server, proxy: None, object, age_us, prefetch }
}

fn call(path: &str, took_ns: u64, began_ns: u64) -> TracedCall {
    TracedCall {
        pid: 9,
        tid: 9,
        command: "py".into(),
        operation: Operation::Read,
        path: path.into(),
        began_ns,
        took_ns,
        errno: 0,
        offset: 0,
        bytes: 1,
        source: Source::Network,
        place: Some("http://s".into()),
        waits: WaitsNs::default(),
    }
}

/// Returns two mounts: a busy one, and one whose daemon hangs.
pub(super) fn example() -> Snapshot {
    let second = 1_000_000_000;
    let before = Activity { hits: 10, misses: 10, received_bytes: 0, ..activity(20 * second, 100) };
    let now = Activity {
        hits: 19,
        misses: 11,
        received_bytes: 4096,
        waiting: 1,
        failures: 2,
        downloads_total: 3,
        downloads: vec![
            download("http://s", 50, false),
            download("http://s", 70, true),
            download("http://t", 1, true),
        ],
        pending: vec![WaitingCall {
            pid: 4,
            tid: 5,
            command: "cat\u{7}".into(),
            operation: Operation::Read,
            path: "/a".into(),
            waited_us: 1_500,
        }],
        ..activity(22 * second, 300)
    };
    let busy = Known {
        repository: "a.test".into(),
        now: Some(now),
        before: Some(before),
        slow: [
            call("/old", 9, second),
            call("/x", 5_000_000, 21 * second),
            call("/x", 2_000_000, 21 * second),
        ]
        .into(),
        ..Known::default()
    };
    let started = Instant::now();
    let hanging = Known { repository: "b.test".into(), asked: Some(started), ..Known::default() };
    let mounts =
        [((None, "/cvmfs/a.test".to_owned(), 1), busy), ((None, "/cvmfs/b.test".to_owned(), 2), hanging)];
    Snapshot::of(&mounts.into(), started + Duration::from_secs(3))
}
