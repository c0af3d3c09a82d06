//! How far a publish is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the progress is told.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// What a publish is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Walking over the source and comparing it.
    Scan,
    /// Reading, compressing and storing files.
    Store,
    /// Writing catalogs.
    Catalogs,
    /// Making everything durable, and signing.
    Commit,
}

/// How far a publish is, for people who wait for it.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Entries of the source that were looked at.
    pub scanned: u64,
    /// Files that were read.
    pub files: u64,
    /// Files that have to be read; 0 if nobody knows.
    pub files_total: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes that have to be read; 0 if nobody knows.
    pub bytes_total: u64,
    /// Since the phase began.
    pub elapsed: Duration,
}

/// What the threads of a publish count.
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
