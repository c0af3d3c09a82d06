//! Defines the output of `esker top` at one time. Field names are an interface.

use std::collections::BTreeMap;
use std::time::Instant;

use esker_node::trace::{Activity, TracedCall};
use serde::Serialize;

use super::known::{Key, Known};
use crate::commands::trace::full_path;
use crate::output::plain;

/// Time for which a slow request is shown, in nanoseconds.
const RECENT_NS: u64 = 10_000_000_000;
/// Maximum number of rows for slow and for waiting requests.
const ROWS_MAX: usize = 100;

/// State of all mounts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Snapshot {
    pub(super) mounts: Vec<MountRow>,
    pub(super) servers: Vec<ServerRow>,
    pub(super) waiting: Vec<WaitingRow>,
    pub(super) slowest: Vec<SlowRow>,
}

/// A mount. Rates are those between the last two replies of its daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct MountRow {
    pub(super) mountpoint: String,
    /// User of the mount, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<u32>,
    pub(super) repository: String,
    /// `serving`, `offline`, or `hanging`.
    pub(super) state: &'static str,
    /// Reason of that state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) requests_per_second: f64,
    /// Part of the reads whose objects were in the cache; absent without reads.
    pub(super) hit_rate: Option<f64>,
    pub(super) bytes_per_second: f64,
    pub(super) waiting: u64,
    pub(super) downloads: u64,
    pub(super) failures: u64,
}

/// Requests in flight to one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ServerRow {
    pub(super) server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy: Option<String>,
    /// Requests for which a program waits, and prefetches.
    pub(super) demands: u64,
    pub(super) prefetches: u64,
    /// Age of the oldest in microseconds, and its object.
    pub(super) oldest_us: u64,
    pub(super) oldest: String,
}

/// A process that waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WaitingRow {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) operation: &'static str,
    pub(super) path: String,
    pub(super) waited_us: u64,
}

/// A slow request of the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SlowRow {
    pub(super) path: String,
    pub(super) operation: &'static str,
    /// Time of the slowest request, and number of slow ones.
    pub(super) took_us: u64,
    pub(super) requests: u64,
    pub(super) source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    pub(super) command: String,
    pub(super) pid: u32,
}

fn full(mountpoint: &str, path: &str) -> String {
    plain(&full_path(mountpoint, path))
}

impl Snapshot {
    pub(super) fn of(mounts: &BTreeMap<Key, Known>, now: Instant) -> Self {
        let mut snapshot = Self::default();
        let mut servers = BTreeMap::new();
        let mut seen = Vec::new();
        for ((user, mountpoint, pid), known) in mounts {
            snapshot.mounts.push(mount(*user, mountpoint, known, now));
            let Some(activity) = &known.now else { continue };
            snapshot.waiting.extend(waiting(mountpoint, activity));
            snapshot.slowest.extend(slow(mountpoint, known, activity.at_ns));
            // Mounts of one process report the same downloads.
            if !seen.contains(&(*user, *pid)) {
                seen.push((*user, *pid));
                add_servers(&mut servers, activity);
            }
        }
        snapshot.servers = servers.into_values().collect();
        snapshot.servers.sort_by_key(|row| std::cmp::Reverse((row.demands, row.prefetches)));
        snapshot.waiting.sort_by_key(|row| std::cmp::Reverse(row.waited_us));
        snapshot.waiting.truncate(ROWS_MAX);
        snapshot.slowest.sort_by_key(|row| std::cmp::Reverse(row.took_us));
        snapshot.slowest.truncate(ROWS_MAX);
        snapshot
    }
}

fn requests(activity: &Activity) -> u64 {
    activity.requests.iter().map(|kind| kind.requests).sum()
}

fn mount(user: Option<u32>, mountpoint: &str, known: &Known, now: Instant) -> MountRow {
    let mut row = MountRow {
        mountpoint: plain(mountpoint),
        user,
        repository: plain(&known.repository),
        ..MountRow::default()
    };
    if let Some(command) = &known.command {
        row.mountpoint = format!("{} of {}", row.mountpoint, plain(command));
    }
    let silent =
        known.asked.map(|since| now.saturating_duration_since(since)).filter(|time| time.as_secs() >= 1);
    row.state = "serving";
    if let Some(time) = silent {
        row.state = "hanging";
        row.reason = Some(format!("no answer for {} s", time.as_secs()));
    } else if let Some(failure) = &known.failure {
        row.state = "hanging";
        row.reason = Some(plain(failure));
    } else if let Some(reason) = known.now.as_ref().and_then(|activity| activity.offline.as_ref()) {
        row.state = "offline";
        row.reason = Some(plain(reason));
    }
    let Some(now) = &known.now else { return row };
    (row.waiting, row.downloads, row.failures) = (now.waiting, now.downloads_total, now.failures);
    let none = Activity::default();
    let before = known.before.as_ref();
    if let Some(before) = before {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        if seconds > 0.0 {
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            row.requests_per_second = rate(requests(now), requests(before));
            row.bytes_per_second = rate(now.received_bytes, before.received_bytes);
        }
    }
    let since = |before: &Activity| {
        let (hits, misses) = (now.hits.saturating_sub(before.hits), now.misses.saturating_sub(before.misses));
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    };
    // Without reads in this interval, the rate since the mount began.
    row.hit_rate = before.and_then(since).or_else(|| since(&none));
    row
}

fn add_servers(servers: &mut BTreeMap<(String, Option<String>), ServerRow>, activity: &Activity) {
    for one in &activity.downloads {
        let (server, proxy) = (plain(&one.server), one.proxy.as_deref().map(plain));
        let row = servers.entry((server.clone(), proxy.clone())).or_default();
        (row.server, row.proxy) = (server, proxy);
        if one.prefetch {
            row.prefetches += 1;
        } else {
            row.demands += 1;
        }
        if one.age_us >= row.oldest_us {
            (row.oldest_us, row.oldest) = (one.age_us, plain(&one.object));
        }
    }
}

fn waiting(mountpoint: &str, activity: &Activity) -> impl Iterator<Item = WaitingRow> {
    activity.pending.iter().map(move |call| WaitingRow {
        pid: call.pid,
        command: plain(&call.command),
        operation: call.operation.name(),
        path: full(mountpoint, &call.path),
        waited_us: call.waited_us,
    })
}

/// Returns the recent slow requests of a mount, one row a path.
fn slow(mountpoint: &str, known: &Known, now_ns: u64) -> Vec<SlowRow> {
    let is_recent =
        |call: &&TracedCall| now_ns.saturating_sub(call.began_ns.saturating_add(call.took_ns)) < RECENT_NS;
    let mut rows: BTreeMap<&str, SlowRow> = BTreeMap::new();
    for call in known.slow.iter().filter(is_recent) {
        let took_us = call.took_ns / 1_000;
        let requests = rows.get(call.path.as_str()).map_or(0, |row| row.requests) + 1;
        let slowest = rows.get(call.path.as_str()).is_none_or(|row| took_us >= row.took_us);
        let row = rows.entry(&call.path).or_insert_with(|| row(mountpoint, call));
        if slowest {
            *row = self::row(mountpoint, call);
        }
        row.requests = requests;
    }
    rows.into_values().collect()
}

fn row(mountpoint: &str, call: &TracedCall) -> SlowRow {
    SlowRow {
        path: full(mountpoint, &call.path),
        operation: call.operation.name(),
        took_us: call.took_ns / 1_000,
        requests: 1,
        source: call.source.name(),
        place: call.place.as_deref().map(plain),
        command: plain(&call.command),
        pid: call.pid,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;

    #[test]
    fn rates_are_those_between_two_replies() {
        let snapshot = example();
        let [busy, hanging] = &snapshot.mounts[..] else { panic!("two mounts") };
        assert_eq!(
            (busy.requests_per_second, busy.bytes_per_second, busy.hit_rate),
            (100.0, 2048.0, Some(0.9))
        );
        assert_eq!((busy.state, busy.waiting, busy.failures), ("serving", 1, 2));
        assert_eq!((hanging.state, hanging.reason.as_deref()), ("hanging", Some("no answer for 3 s")));
    }

    #[test]
    fn requests_are_shown_by_server_process_and_path() {
        let snapshot = example();
        let server = &snapshot.servers[0];
        assert_eq!((server.demands, server.prefetches, server.oldest.as_str()), (1, 1, "/file-70"));
        assert_eq!(snapshot.servers.len(), 2);
        let waiting = &snapshot.waiting[0];
        assert_eq!(
            (waiting.pid, waiting.command.as_str(), waiting.path.as_str()),
            (4, "cat?", "/cvmfs/a.test/a")
        );
        let [slow] = &snapshot.slowest[..] else { panic!("old ones are gone: {:?}", snapshot.slowest) };
        assert_eq!((slow.path.as_str(), slow.took_us, slow.requests), ("/cvmfs/a.test/x", 5_000, 2));
    }

    /// Scripts read these names.
    #[test]
    fn the_json_of_top_keeps_its_field_names() {
        let json = serde_json::to_value(example()).expect("JSON");
        let names = |value: &serde_json::Value| {
            value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&json), "mounts servers slowest waiting");
        assert_eq!(
            names(&json["mounts"][1]),
            "bytes_per_second downloads failures hit_rate mountpoint reason repository requests_per_second state waiting"
        );
        assert_eq!(names(&json["servers"][0]), "demands oldest oldest_us prefetches server");
        assert_eq!(names(&json["waiting"][0]), "command operation path pid waited_us");
        assert_eq!(names(&json["slowest"][0]), "command operation path pid place requests source took_us");
    }
}
