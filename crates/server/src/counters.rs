//! Counters of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::http::request::Parts;

use crate::access_log::{AccessLog, Line};
use crate::dashboard::Traffic;

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
    /// Counters of the last minutes, for the dashboard.
    pub(crate) traffic: Arc<Traffic>,
    log: Option<AccessLog>,
}

impl Counters {
    pub(crate) fn new(log: Option<AccessLog>) -> Self {
        Self { log, ..Self::default() }
    }

    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer, and the bytes of its body if all of them were sent.
    pub(crate) fn answered(&self, status: u16, sent: Option<u64>, _took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(status >= 400), Ordering::Relaxed);
        self.broken_off.fetch_add(u64::from(sent.is_none()), Ordering::Relaxed);
        self.bytes.fetch_add(sent.unwrap_or(0), Ordering::Relaxed);
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
