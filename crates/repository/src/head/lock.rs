//! The exclusive right to replace the head, or in object storage the attempt to do so.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::write::history::HistoryDraft;
use esker_store::{FileLock, LockHolder};

use crate::back_off::BackOff;
use crate::condemned::Condemned;
use crate::error::RepositoryError;
use crate::repository::{Base, ReadHead, Repository};
use crate::storage::Storage;

use super::history::read_history;
use super::lease::Lease;
use super::publication::Next;

/// Maximum number of attempts to replace the head under the lock. Another one is only needed if a program replaces it
/// without the lock. Without a lock there are more, until the longest wait for it is over.
pub const ATTEMPTS: u32 = 5;
/// First pause between two attempts to take the lock, and the longest one.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The lock of the head, and the head that was read under it. Object storage has no lock; there the head is the one that
/// the next head may replace.
pub struct HeadLock<'r> {
    pub(super) repository: &'r Repository,
    head: ReadHead,
    condemned: Option<Condemned>,
    collections: u64,
    attempts: u32,
    back_off: BackOff,
    begun: Instant,
    stop: &'r AtomicBool,
    lock: Option<RootLock>,
}

/// Exclusive right to replace the files in the root of a repository.
#[derive(Debug)]
pub struct RootLock(Held);

#[derive(Debug)]
enum Held {
    /// A locked file.
    File { _lock: FileLock },
    /// The lease of a replica in object storage.
    Lease(Lease),
}

impl RootLock {
    /// Fails if the lease may be over soon.
    pub fn confirm(&self) -> Result<(), RepositoryError> {
        match &self.0 {
            Held::File { .. } => Ok(()),
            Held::Lease(lease) => lease.confirm(),
        }
    }
}

impl Repository {
    /// Takes the lock of the head, after waiting for other publishers, and reads the head.
    pub fn lock_head<'r>(&'r self, stop: &'r AtomicBool) -> Result<HeadLock<'r>, RepositoryError> {
        self.require_keys()?;
        let lock = wait(&self.storage, self.is_replica(), (self.lock_wait, self.on_lock_wait), stop)?;
        // The list after the head: a collector lists objects first, and replaces the head then.
        let head = self.read_head()?;
        let condemned = self.condemned().read()?;
        let collections = self.condemned().collections()?;
        let (attempts, back_off, begun) = (0, BackOff::default(), Instant::now());
        Ok(HeadLock { repository: self, head, condemned, collections, attempts, back_off, begun, stop, lock })
    }
}

/// Takes the lock of the head, after waiting for other publishers. Object storage has a lock for replicas only; none for
/// a repository that is published there.
pub fn wait(
    storage: &Storage,
    is_replica: bool,
    (limit, begins): (Option<Duration>, fn(&RepositoryError)),
    stop: &AtomicBool,
) -> Result<Option<RootLock>, RepositoryError> {
    let mut waits = false;
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let Some(locking) = try_lock(storage, is_replica)? else { return Ok(None) };
        match locking {
            Ok(lock) => return Ok(Some(lock)),
            Err(holder) if limit.is_some_and(|limit| begun.elapsed() >= limit) => {
                return Err(RepositoryError::locked(storage.describe())(holder));
            }
            Err(_) if stop.load(Ordering::Relaxed) => return Err(RepositoryError::Interrupted),
            Err(holder) => {
                if !std::mem::replace(&mut waits, true) {
                    begins(&RepositoryError::locked(storage.describe())(holder));
                }
                // A blocking lock would neither end at the time limit nor at Ctrl-C.
                std::thread::sleep(pause);
            }
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Tries to take the lock of the head. The error is the process that has it; none if the storage has no lock.
fn try_lock(
    storage: &Storage,
    is_replica: bool,
) -> Result<Option<Result<RootLock, LockHolder>>, RepositoryError> {
    let locking = match storage.sink().lock_root()? {
        Some(locking) => locking.or_held(|holder| holder).map(|lock| RootLock(Held::File { _lock: lock })),
        None if is_replica => Lease::try_take(storage)?.map(|lease| RootLock(Held::Lease(lease))),
        None => return Ok(None),
    };
    Ok(Some(locking))
}

impl HeadLock<'_> {
    /// Returns the head.
    pub fn head(&self) -> &ReadHead {
        &self.head
    }

    /// Returns whether a head that was read before is still the published one.
    pub fn is_of(&self, head: &ReadHead) -> bool {
        self.head.bytes == head.bytes
    }

    /// Returns whether objects may be, or become, missing that were there when work on a base began.
    pub fn may_miss_objects_of(&self, base: &Base) -> bool {
        self.condemned.is_some() || self.collections != base.collections
    }

    /// Returns true if no other publisher can replace the head as long as this exists.
    pub fn is_exclusive(&self) -> bool {
        self.lock.is_some()
    }

    /// Reads the head again, after another publisher replaced it without the lock. Fails after too many attempts.
    pub fn read_again(&mut self) -> Result<(), RepositoryError> {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS && self.is_exclusive() {
            return Err(RepositoryError::Moving);
        }
        if !self.is_exclusive() {
            let is_over = self.repository.lock_wait.is_some_and(|limit| self.begun.elapsed() >= limit);
            if is_over && self.attempts >= ATTEMPTS {
                return Err(RepositoryError::Contended { attempts: self.attempts });
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted);
            }
            self.back_off.pause();
        }
        self.head = self.repository.read_head()?;
        self.condemned = self.repository.condemned().read()?;
        self.collections = self.repository.condemned().collections()?;
        Ok(())
    }

    /// Waits until a collect has deleted the objects of its list.
    fn wait_for_deletion(&mut self) -> Result<(), RepositoryError> {
        while self.condemned.is_some() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted);
            }
            if self.repository.lock_wait.is_some_and(|limit| self.begun.elapsed() >= limit) {
                return Ok(());
            }
            self.back_off.pause();
            self.condemned = self.repository.condemned().read()?;
        }
        Ok(())
    }

    /// Returns the published history, to continue it.
    pub fn history(&self) -> Result<HistoryDraft, RepositoryError> {
        read_history(self.repository, self.head.verified.history())
    }

    /// Takes the objects of a new revision off the list of condemned ones, and fails if one is deleted already.
    pub fn keep(&mut self, objects: &BTreeSet<ObjectName>) -> Result<(), RepositoryError> {
        if let Some(condemned) = &mut self.condemned {
            match condemned.revive(&objects.iter().copied().collect::<Vec<_>>()) {
                Err(RepositoryError::BeingDeleted { objects }) => {
                    self.wait_for_deletion()?;
                    return match self.condemned {
                        Some(_) => Err(RepositoryError::BeingDeleted { objects }),
                        None => Err(RepositoryError::Collected { objects }),
                    };
                }
                outcome => outcome?,
            }
        }
        let missing = self.repository.storage.missing(objects)?.len() as u64;
        if missing > 0 { Err(RepositoryError::Collected { objects: missing }) } else { Ok(()) }
    }

    /// Returns the published revision as the next one, for a change of history or signature only.
    pub fn same_revision(&self, now: UnixTime) -> Next {
        let head = &self.head.verified;
        Next {
            root: (head.root_catalog().hash, head.root_catalog_size().unwrap_or(0)),
            revision: head.revision(),
            ttl: head.ttl(),
            timestamp: now.max(head.timestamp()),
            history: None,
            forgotten: HashSet::new(),
            branch_root: None,
            garbage_collectable: None,
        }
    }
}
