//! Activity of a mount now, for `esker top`. Field names are an interface.

use std::time::Duration;

use esker_fuse::Session;
use esker_store::downloads_in_flight;
use serde::{Deserialize, Serialize};

use super::family::Family;
use super::paths::Paths;
use super::subscriber::monotonic_nanos;
use super::wire::{Operation, TraceScope};
use crate::status::{Presentation, Requests};

/// Maximum number of waiting requests, and of downloads, in a reply.
const SHOWN_MAX: usize = 256;

/// Counters of a mount since its start, and what happens now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Time of the reply, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Mount point.
    pub mountpoint: String,
    /// Command of `esker run` for which alone it is mounted.
    pub command: Option<String>,
    /// Name of the repository or image.
    pub repository: String,
    /// Process id of the daemon.
    pub daemon: u32,
    /// File system through which programs see it.
    pub shown_with: Presentation,
    /// Requests of the kernel, by kind.
    pub requests: Vec<Requests>,
    /// Number of requests without a reply.
    pub waiting: u64,
    /// Requests for objects that were in the cache.
    pub hits: u64,
    /// Requests for objects that were not.
    pub misses: u64,
    /// Bytes received from servers, or read from an image.
    pub received_bytes: u64,
    /// Reason why no newer revision can be found.
    pub offline: Option<String>,
    /// Failed requests of programs.
    pub failures: u64,
    /// Requests without a reply, oldest first.
    pub pending: Vec<WaitingCall>,
    /// Requests to servers without a complete answer, oldest first.
    pub downloads: Vec<Downloading>,
    /// Number of all requests to servers without a complete answer.
    pub downloads_total: u64,
}

/// A request of a program without a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingCall {
    /// Process of the request, 0 if unknown.
    pub pid: u32,
    /// Thread of the request, 0 if unknown.
    pub tid: u32,
    /// Name of the process.
    pub command: String,
    /// Kind of the request.
    pub operation: Operation,
    /// Path below the mount point.
    pub path: String,
    /// Time since the request began, in microseconds.
    pub waited_us: u64,
}

/// A request to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downloading {
    /// URL of the repository on the server.
    pub server: String,
    /// Address of the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Description of the object.
    pub object: String,
    /// Time since the request began, in microseconds.
    pub age_us: u64,
    /// True for a prefetch, for which no program waits.
    pub prefetch: bool,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Activity {
    /// Adds what happens now to counters of a session.
    pub(crate) fn now(self, session: &Session) -> Self {
        let counters = session.counters();
        let mut paths = Paths::new(session);
        let family = Family::new(session.proc(), TraceScope::All, 0);
        let pending = session.pending(SHOWN_MAX).into_iter().map(|call| {
            let member = family.find(call.caller);
            WaitingCall {
                pid: member.as_ref().map_or(0, |member| member.pid),
                tid: call.caller,
                command: member.map_or_else(|| "?".to_owned(), |member| member.command.to_string()),
                operation: call.kind.into(),
                path: paths.of_call(call.kind, &call.node, call.name.as_deref(), None),
                waited_us: micros(call.since.elapsed()),
            }
        });
        let pending = pending.collect();
        let (downloads, total) = downloads_in_flight(SHOWN_MAX);
        let downloads = downloads.into_iter().map(|one| Downloading {
            server: one.server,
            proxy: one.proxy,
            object: one.what.to_string(),
            age_us: micros(one.age),
            prefetch: one.prefetch,
        });
        Self {
            at_ns: monotonic_nanos(),
            daemon: std::process::id(),
            requests: counters.opcodes.iter().map(Requests::from).collect(),
            waiting: counters.waiting,
            pending,
            downloads: downloads.collect(),
            downloads_total: total as u64,
            ..self
        }
    }
}
