//! Records failed operations of the disk of a cache.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock::unix_now;
use crate::error::is_full;

/// Minimum time between log lines about the same kind of failure.
const TOLD_EVERY: Duration = Duration::from_secs(600);

/// Failed operations of a disk.
#[derive(Default)]
pub(super) struct DiskFailures(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    count: u64,
    last: Option<DiskFailure>,
}

/// Latest failed operation on the disk.
struct DiskFailure {
    time: u64,
    kind: io::ErrorKind,
    /// Time of the last log line about this kind.
    told: Instant,
    text: String,
}

impl DiskFailures {
    /// Counts an operation that failed before the cache was open.
    pub(super) fn note_silently(&self) {
        self.0.lock().count += 1;
    }

    /// Counts a failed operation and keeps its text for the status.
    pub(super) fn note(&self, doing: &str, path: &Path, error: &io::Error) {
        let mend = if is_full(error) { ": make room there, or give it a smaller quota" } else { "" };
        let text = format!("{doing} `{}` failed: {error}{mend}", path.display());
        let mut failures = self.0.lock();
        failures.count += 1;
        let before = failures.last.as_ref().filter(|last| last.kind == error.kind());
        let told = before.map(|last| last.told).filter(|told| told.elapsed() < TOLD_EVERY);
        let line = text.clone();
        let time = unix_now();
        let failure = DiskFailure { time, kind: error.kind(), told: told.unwrap_or_else(Instant::now), text };
        failures.last = Some(failure);
        drop(failures);
        if told.is_none() {
            tracing::warn!(object = %path.display(), "the cache: {line}");
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Returns the time and the text of the latest failure.
    pub(super) fn last(&self) -> Option<(u64, String)> {
        self.0.lock().last.as_ref().map(|last| (last.time, last.text.clone()))
    }
}
