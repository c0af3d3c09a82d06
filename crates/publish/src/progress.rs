//! Progress of a publish.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval between two reports of progress.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Phase of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reads the source and compares it.
    Scan,
    /// Reading, compressing and storing files.
    Store,
    /// Writes catalogs.
    Catalogs,
    /// Makes all writes durable and signs the head.
    Commit,
}

/// Progress of a publish, for display.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Number of source entries compared.
    pub scanned: u64,
    /// Number of files read.
    pub files: u64,
    /// Number of files to read; 0 if unknown.
    pub files_total: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of bytes to read; 0 if unknown.
    pub bytes_total: u64,
    /// Time since the phase began.
    pub elapsed: Duration,
}

/// Counters of the threads of a publish.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) scanned: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) objects: AtomicU64,
    pub(crate) object_bytes: AtomicU64,
    pub(crate) present: AtomicU64,
    pub(crate) present_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn progress(
        &self,
        phase: Phase,
        files_total: u64,
        bytes_total: u64,
        elapsed: Duration,
    ) -> Progress {
        Progress {
            phase,
            scanned: self.scanned.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            files_total,
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_total,
            elapsed,
        }
    }
}
