//! Deletes the objects that only dropped revisions name.
//!
//! ```text
//! prune tags ─► mark: lists of kept roots, lists of dropped roots ─► condemn: list on disk, reflog, head
//!                                                                     └─ grace time ─► sweep: delete, remove the list
//! ```
//!
//! Every step can be repeated: whatever ends a collect, the next one goes on. Nothing is deleted that is not on the list
//! of condemned objects, and what the kept revisions of that moment name is taken off it first.

mod act;
mod deletion_log;
mod error;
mod largest;
mod marks;
mod orphans;
mod plan;
mod revisions;
mod sweep;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::time::UnixTime;
use esker_repository::{Repository, RepositoryError};
use serde::Serialize;

use crate::status_file;

pub use error::CollectError;
pub use plan::{CollectPlan, DroppedRevision, KeptRevision, Waiting};
pub use sweep::Deleted;

/// Default seconds for which revisions before the head are kept.
pub(crate) const KEEP_SECONDS: i64 = 3 * esker_repository::settings::DAY;
/// Default seconds between condemning an object and deleting it.
pub(crate) const GRACE_SECONDS: i64 = 3600;
/// Minimum age of an object without a revision that counts as left over.
pub(crate) const ORPHAN_SECONDS: i64 = esker_repository::settings::DAY;

/// Which revisions are kept besides the head and the tagged ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Those that are younger than this many seconds, and the one before the oldest of them.
    Age(i64),
    /// This many before the head.
    Last(u64),
    /// No others: only the head and the tagged revisions stay.
    Tags,
}

impl Default for Keep {
    fn default() -> Self {
        Self::Age(KEEP_SECONDS)
    }
}

/// Phase of a collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectProgress {
    /// Reads the catalogs of this many revisions.
    Mark {
        /// Kept revisions.
        kept: u64,
        /// Dropped revisions.
        dropped: u64,
    },
    /// Deletes objects.
    Delete {
        /// Objects deleted so far.
        done: u64,
        /// Objects to delete.
        total: u64,
    },
}

/// Options of a collect.
pub struct Collect<'c> {
    /// Which revisions are kept.
    pub keep: Keep,
    /// Seconds after which automatic tags are removed; none keeps them.
    pub automatic_tags: Option<i64>,
    /// Seconds between condemning an object and deleting it; 0 deletes at once.
    pub grace: i64,
    /// Minimum age in seconds at which objects without a revision are collected, too; `None` leaves them.
    pub orphans: Option<i64>,
    /// File to which the names of deleted objects are appended, with times and causes.
    pub log: Option<PathBuf>,
    /// Number of threads.
    pub threads: usize,
    /// Records that are sorted in memory, 25 bytes each.
    pub buffer: usize,
    /// Set to stop early.
    pub stop: Arc<AtomicBool>,
    /// Called from time to time with the progress.
    pub progress: &'c (dyn Fn(CollectProgress) + Sync),
}

impl<'c> Collect<'c> {
    /// Returns the defaults.
    pub fn new(progress: &'c (dyn Fn(CollectProgress) + Sync)) -> Self {
        Self {
            keep: Keep::default(),
            automatic_tags: None,
            grace: GRACE_SECONDS,
            orphans: None,
            log: None,
            threads: 1,
            buffer: crate::hash_lists::sorter::RECORDS,
            stop: Arc::new(AtomicBool::new(false)),
            progress,
        }
    }

    /// Returns the terms of the collect after a publish, from the settings.
    pub fn automatic(repository: &Repository, progress: &'c (dyn Fn(CollectProgress) + Sync)) -> Self {
        let settings = repository.settings();
        Self {
            keep: Keep::Age(i64::from(settings.automatic_collect.keep)),
            automatic_tags: settings.automatic_tags_age(),
            ..Self::new(progress)
        }
    }

    /// Returns true if the settings ask for a collect after a publish, and the last one is long enough ago.
    ///
    /// As in CernVM-FS, a collect is due if there is no time of the last one, or none that can be read.
    pub fn is_due(repository: &Repository, now: UnixTime) -> Result<bool, RepositoryError> {
        let Some(every) = repository.settings().automatic_collect.every else { return Ok(false) };
        if !repository.head().manifest().garbage_collectable {
            return Ok(false);
        }
        let last = status_file::time(repository.sink(), "last_gc")?;
        Ok(last.is_none_or(|last| last.0 < now.0.saturating_sub(i64::from(every))))
    }

    /// Returns the least age of objects that no revision names, for `orphans`.
    pub fn orphan_age(&self) -> i64 {
        self.grace.max(ORPHAN_SECONDS)
    }
}

/// Result of a collect.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Collected {
    /// Executed plan.
    pub plan: CollectPlan,
    /// Deleted objects that an earlier collect or this one had condemned.
    pub deleted: Deleted,
    /// Objects that wait for their deletion, and until when.
    pub waiting: Option<Waiting>,
}
