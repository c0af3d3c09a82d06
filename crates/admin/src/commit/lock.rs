//! The exclusive right to replace the head.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::write::history::HistoryDraft;
use esker_store::{FileLock, LocalSink, Locking, Sink as _};

use crate::condemned::Condemned;
use crate::error::AdminError;
use crate::repository::{Base, ReadHead, Repository};

use super::kept_history::read_history;
use super::publication::Next;

/// Attempts to replace the head. Another one is only needed if a program replaces it without the lock.
pub(crate) const ATTEMPTS: u32 = 5;
/// First pause between two attempts to take the lock, and the longest one.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The lock of the head, and the head that was read under it.
pub(crate) struct HeadLock<'r> {
    pub(super) repository: &'r Repository,
    head: ReadHead,
    condemned: Option<Condemned>,
    collections: u64,
    _lock: FileLock,
}

impl Repository {
    /// Takes the lock of the head, after waiting for other publishers, and reads the head.
    pub(crate) fn lock_head(&self, stop: &AtomicBool) -> Result<HeadLock<'_>, AdminError> {
        let lock = wait(&self.sink, (self.lock_wait, self.on_lock_wait), stop)?;
        let head = self.read_head()?;
        let condemned = self.condemned().read()?;
        let collections = self.condemned().collections()?;
        Ok(HeadLock { repository: self, head, condemned, collections, _lock: lock })
    }
}

/// Takes the lock of the head, after waiting for other publishers.
pub(crate) fn wait(
    sink: &LocalSink,
    (limit, begins): (Option<Duration>, fn(&AdminError)),
    stop: &AtomicBool,
) -> Result<FileLock, AdminError> {
    let mut waits = false;
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        match sink.lock()? {
            Locking::Taken(lock) => return Ok(lock),
            Locking::Held(holder) if limit.is_some_and(|limit| begun.elapsed() >= limit) => {
                return Err(AdminError::locked(sink.describe())(holder));
            }
            Locking::Held(_) if stop.load(Ordering::Relaxed) => return Err(AdminError::Interrupted),
            Locking::Held(holder) => {
                if !std::mem::replace(&mut waits, true) {
                    begins(&AdminError::locked(sink.describe())(holder));
                }
                // A blocking lock would neither end at the time limit nor at Ctrl-C.
                std::thread::sleep(pause);
            }
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl HeadLock<'_> {
    /// Returns the head.
    pub(crate) fn head(&self) -> &ReadHead {
        &self.head
    }

    /// Returns whether a head that was read before is still the published one.
    pub(crate) fn is_of(&self, head: &ReadHead) -> bool {
        self.head.bytes == head.bytes
    }

    /// Returns whether objects may be, or become, missing that were there when work on a base began.
    pub(crate) fn may_miss_objects_of(&self, base: &Base) -> bool {
        self.condemned.is_some() || self.collections != base.collections
    }

    /// Reads the head again, after a program replaced it without the lock.
    pub(crate) fn read_again(&mut self) -> Result<(), AdminError> {
        self.head = self.repository.read_head()?;
        Ok(())
    }

    /// Returns the published history, to continue it.
    pub(crate) fn history(&self) -> Result<HistoryDraft, AdminError> {
        read_history(self.repository, self.head.verified.history())
    }

    /// Takes the objects of a new revision off the list of condemned ones, and fails if one is deleted already.
    pub(crate) fn keep(&mut self, objects: &BTreeSet<ObjectName>) -> Result<(), AdminError> {
        if let Some(condemned) = &mut self.condemned {
            condemned.revive(&objects.iter().copied().collect::<Vec<_>>())?;
        }
        let mut missing = 0;
        for object in objects {
            missing += u64::from(!self.repository.sink.is_there(object)?);
        }
        if missing > 0 { Err(AdminError::Collected { objects: missing }) } else { Ok(()) }
    }

    /// Returns the published revision as the next one, for a change of history or signature only.
    pub(crate) fn same_revision(&self, now: UnixTime) -> Next {
        let head = &self.head.verified;
        Next {
            root: (head.root_catalog().hash, head.root_catalog_size().unwrap_or(0)),
            revision: head.revision(),
            ttl: head.ttl(),
            timestamp: now.max(head.timestamp()),
            history: None,
            forgotten: HashSet::new(),
            branch_root: None,
        }
    }
}
