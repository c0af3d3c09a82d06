//! Parses a client's status in the form of `esker status --json`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Counts of answered FUSE requests, by name of the request in the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callbacks(pub BTreeMap<String, Callback>);

/// Counts of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that waited for the network.
    pub parked: u64,
    /// Microseconds the client's threads spent on them.
    pub busy_us: u64,
}

/// Bytes that a client fetched since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fetched {
    /// Number of objects.
    pub objects: u64,
    /// Stored size of the objects in bytes.
    pub bytes: u64,
    /// Stored size of prefetched objects in bytes.
    pub prefetched_bytes: u64,
    /// Of the prefetched bytes, those that were used since.
    pub prefetched_used_bytes: u64,
}

impl Fetched {
    /// Returns the bytes that were used.
    pub fn used(&self) -> u64 {
        self.bytes.saturating_sub(self.wasted())
    }

    /// Returns the bytes that were not used.
    pub fn wasted(&self) -> u64 {
        self.prefetched_bytes.saturating_sub(self.prefetched_used_bytes)
    }
}

/// A client's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Process id of the client.
    pub pid: Option<u32>,
    /// FUSE requests that the client answered.
    pub callbacks: Callbacks,
    /// Bytes that the client fetched.
    pub fetched: Option<Fetched>,
}

#[derive(Deserialize)]
struct All {
    mounts: Vec<Mount>,
}

#[derive(Deserialize)]
struct Mount {
    pid: Option<u32>,
    requests: Vec<Request>,
    fetched: Option<Fetched>,
}

#[derive(Deserialize)]
struct Request {
    name: String,
    requests: u64,
    parked: u64,
    busy_us: u64,
}

impl Status {
    /// Parses the output of `esker status --json` for one mount.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let all: All = serde_json::from_slice(json).context("the status isn't what `esker status` prints")?;
        let mount = all.mounts.into_iter().next().context("the status has no mount")?;
        let callbacks = mount.requests.into_iter().map(|request| {
            let Request { name, requests, parked, busy_us } = request;
            (name, Callback { requests, parked, busy_us })
        });
        Ok(Self { pid: mount.pid, callbacks: Callbacks(callbacks.collect()), fetched: mount.fetched })
    }

    /// Returns the processor seconds of the client's process, if it is known and alive.
    pub fn cpu(&self) -> Option<f64> {
        cpu_of(self.pid?)
    }
}

/// Returns the processor seconds of a process, if it is alive.
pub fn cpu_of(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks(&text).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the processor seconds of the machine, including interrupts.
pub fn cpu_of_machine() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    busy_ticks(text.lines().next()?)
        .map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns all but idle and stolen time of the first line of `/proc/stat`.
fn busy_ticks(line: &str) -> Option<u64> {
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, interrupts, soft_interrupts, ..] = fields[..] else {
        return None;
    };
    Some(user + nice + system + interrupts + soft_interrupts)
}

/// Returns user and system time of a line of `/proc/PID/stat`; the name in it may hold any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

impl Callbacks {
    /// Returns the difference to `before`.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |(name, now): (&String, &Callback)| {
            let then = before.0.get(name).copied().unwrap_or_default();
            let callback = Callback {
                requests: now.requests.saturating_sub(then.requests),
                parked: now.parked.saturating_sub(then.parked),
                busy_us: now.busy_us.saturating_sub(then.busy_us),
            };
            (callback != Callback::default()).then(|| (name.clone(), callback))
        };
        Self(self.0.iter().filter_map(difference).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_differences() {
        let status = |reads: u64| {
            let text = format!(
                r#"{{"mounts":[{{"pid":7,"requests":[{{"name":"READ","requests":{reads},"parked":1,"busy_us":{}}},
                {{"name":"INIT","requests":1,"parked":0,"busy_us":3}}],
                "fetched":{{"objects":3,"bytes":100,"prefetched_bytes":40,"prefetched_used_bytes":30}}}}]}}"#,
                reads * 10
            );
            Status::parse(text.as_bytes()).expect("a status")
        };
        let since = status(7).callbacks.since(&status(5).callbacks);
        assert_eq!(since.0.len(), 1, "what didn't happen isn't told");
        assert_eq!(since.0["READ"], Callback { requests: 2, parked: 0, busy_us: 20 });
        let fetched = status(7).fetched.expect("told");
        assert_eq!((fetched.used(), fetched.wasted()), (90, 10));
        assert!(Status::parse(b"{}").is_err());
    }

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 110 25 0 0 20 0 3 0 5 6 7";
        assert_eq!(ticks(line), Some(135));
        assert_eq!(ticks("42 (a"), None);
        let own = Status { pid: Some(std::process::id()), ..Status::default() };
        assert!(own.cpu().is_some());
    }

    #[test]
    fn processor_time_of_the_machine_excludes_idle_time() {
        assert_eq!(busy_ticks("cpu  100 20 30 4000 500 6 7 80 90 10"), Some(163));
        assert_eq!(busy_ticks("cpu0 100 20"), None);
        assert!(cpu_of_machine().is_some());
    }
}
