//! Counters of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::http::request::Parts;

use crate::access_log::{AccessLog, Line};
use crate::dashboard::Traffic;
use crate::metrics::{Kind, Metrics};

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of responses.
    pub requests: u64,
    /// Number of responses with status 400 and above.
    pub failures: u64,
    /// Number of incomplete responses: the client closed or was too slow, or the file became shorter.
    pub broken_off: u64,
    /// Number of bytes in bodies.
    pub bytes: u64,
    /// Number of connections closed by force at the end of the shutdown's time limit.
    pub cut: u64,
}

/// The counters, which all connections share, and the log of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    broken_off: AtomicU64,
    bytes: AtomicU64,
    open: AtomicU64,
    limits: [AtomicU64; Limit::ALL.len()],
    pub(crate) metrics: Metrics,
    /// Counters of the last minutes, for the dashboard.
    pub(crate) traffic: Arc<Traffic>,
    log: Option<AccessLog>,
}

/// A limit that refused a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests per second of one client.
    Rate,
    /// Connections of one client.
    Connections,
    /// Connections of all clients: a client waited for a slot.
    Slots,
    /// Event streams.
    Streams,
    /// Batches in progress.
    Batches,
    /// Networks of clients.
    Networks,
}

impl Limit {
    const ALL: [Self; 6] =
        [Self::Rate, Self::Connections, Self::Slots, Self::Streams, Self::Batches, Self::Networks];

    fn label(self) -> &'static str {
        match self {
            Self::Rate => "client_rate",
            Self::Connections => "client_connections",
            Self::Slots => "connections",
            Self::Streams => "event_streams",
            Self::Batches => "batches",
            Self::Networks => "client_networks",
        }
    }
}

/// A connection that is open; counted until it is dropped.
pub(crate) struct Open(std::sync::Arc<Counters>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn new(log: Option<AccessLog>) -> Self {
        Self { log, ..Self::default() }
    }

    pub(crate) fn connected(self: &std::sync::Arc<Self>) -> Open {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts a client that a limit refused or delayed.
    pub(crate) fn limited(&self, limit: Limit) {
        if let Some(count) = self.limits.get(limit as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn limits_hit(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.limits.iter().map(|count| count.load(Ordering::Relaxed));
        Limit::ALL.into_iter().map(Limit::label).zip(counts)
    }

    /// Returns the number of lines that the access log left out.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.log.as_ref().map_or(0, AccessLog::lost)
    }

    /// Counts an answer, and the bytes of its body if all of them were sent.
    pub(crate) fn answered(&self, kind: Kind, status: u16, sent: Option<u64>, took: Duration) {
        self.metrics.answered(kind, status, sent.unwrap_or(0), took);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(status >= 400), Ordering::Relaxed);
        self.broken_off.fetch_add(u64::from(sent.is_none()), Ordering::Relaxed);
        self.bytes.fetch_add(sent.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns true if each request is logged.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns what a log line says of a request; `None` without a log.
    pub(crate) fn line(&self, parts: &Parts, client: SocketAddr) -> Option<Box<Line>> {
        self.log.as_ref().map(|_| Box::new(Line::of(parts, client)))
    }

    /// Writes a request to the log.
    pub(crate) fn log(&self, line: &Line, status: u16, sent: u64, is_whole: bool, took: Duration) {
        if let Some(log) = &self.log {
            log.write(line, status, sent, is_whole, took);
        }
    }

    pub(crate) fn so_far(&self) -> Served {
        Served {
            connections: self.connections.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            broken_off: self.broken_off.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            cut: 0,
        }
    }
}
