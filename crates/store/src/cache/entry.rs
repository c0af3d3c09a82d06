//! Represents one cached object in memory, and the table of all objects.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::descriptors::Descriptors;
use crate::objects::request::CacheKey;

/// An object in the cache. Removed from disk only with its lock held and no user left.
pub(crate) struct Entry {
    pub(crate) key: CacheKey,
    pub(crate) plain_len: u64,
    /// Position in the order of last reads.
    last_read: AtomicU64,
    /// Prefetched stored bytes plus one until the first use; otherwise 0.
    prefetched: AtomicU64,
    /// Mappings and other uses that need the content but no descriptor.
    pins: AtomicU32,
    /// Counts open descriptors; the open file of this entry is one of them.
    descriptors: Arc<Descriptors>,
    pub(super) state: Mutex<State>,
}

/// The order of last reads: a clock, because a counter that all reads share makes them wait for its cache line.
pub(super) struct Reads {
    start: Instant,
    #[cfg(test)]
    skipped: AtomicU64,
}

/// First position by time; entries found at the start have lower positions.
const FIRST_READ: u64 = 1 << 40;
/// Number of positions in a second.
const SECOND: u64 = 1_000_000_000;
/// Time for which a comparison with the digest counts, in seconds: a day, less the time for which another process may use
/// the object without another request.
const CHECK_LIFETIME: u64 = 24 * 3600 - DESCRIPTOR_LIFETIME.as_secs();

/// Time for which a process may go on using a descriptor that the writer of the cache sent it. After that it requests the
/// object again, so that the writer compares it when that is due.
pub const DESCRIPTOR_LIFETIME: Duration = Duration::from_secs(3600);

impl Default for Reads {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(test)]
            skipped: AtomicU64::new(0),
        }
    }
}

impl Reads {
    /// Returns a position after all that were returned before.
    pub(super) fn now(&self) -> u64 {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2);
        #[cfg(test)]
        let nanos = nanos + self.skipped.load(Ordering::Relaxed);
        nanos.saturating_add(FIRST_READ)
    }

    /// Returns the time of a check that ends now.
    pub(super) fn checked_now(&self) -> CheckTime {
        CheckTime::of(self.now())
    }

    /// Lets this much time pass at once.
    #[cfg(test)]
    pub(super) fn skip(&self, seconds: u64) {
        self.skipped.fetch_add(seconds * SECOND, Ordering::Relaxed);
    }
}

/// Seconds from the start of the cache to a check, plus one. Small, because each entry has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckTime(NonZeroU32);

impl CheckTime {
    fn of(position: u64) -> Self {
        let seconds = u32::try_from(position.saturating_sub(FIRST_READ) / SECOND).unwrap_or(u32::MAX - 1);
        Self(NonZeroU32::MIN.saturating_add(seconds))
    }

    /// Returns true if the check still counts at a position.
    fn counts_at(self, position: u64) -> bool {
        // Another thread may have checked it since the position was taken.
        u64::from(Self::of(position).0.get().saturating_sub(self.0.get())) < CHECK_LIFETIME
    }
}

/// Mutable state of an entry.
#[derive(Debug)]
pub(super) struct State {
    /// Time at which this process compared the content with its digest, or wrote it. [`Table`] counts entries without.
    checked: Option<CheckTime>,
    /// True if the entry left the table and is no longer served.
    gone: bool,
    /// Uses of the descriptor.
    pub(super) users: u32,
    /// The single descriptor; without users it is idle and may be closed.
    pub(super) file: Option<Arc<File>>,
    /// True if [`Descriptors`] lists the entry as open.
    pub(super) listed: bool,
    /// Time of a reader's last report that the file can't be read.
    pub(super) doubted: Option<Instant>,
}

impl State {
    /// Returns whether the content needs no check at this position of [`Reads`].
    pub(super) fn is_checked(&self, now: u64) -> bool {
        self.checked.is_some_and(|at| at.counts_at(now))
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }
}

impl Entry {
    pub(super) fn new(
        key: CacheKey,
        plain_len: u64,
        last_read: u64,
        checked: Option<CheckTime>,
        descriptors: &Arc<Descriptors>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            plain_len,
            last_read: AtomicU64::new(last_read),
            prefetched: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            descriptors: descriptors.clone(),
            state: Mutex::new(State {
                checked,
                gone: false,
                users: 0,
                file: None,
                listed: false,
                doubted: None,
            }),
        })
    }

    pub(super) fn read_at(&self) -> u64 {
        self.last_read.load(Ordering::Relaxed)
    }

    /// Records a read at a position, which changes [`Self::read_at`].
    pub(super) fn read_now(&self, now: u64) {
        let before = self.last_read.load(Ordering::Relaxed);
        self.last_read.store(now.max(before + 1), Ordering::Relaxed);
    }

    pub(super) fn set_prefetched(&self, stored_bytes: Option<u64>) {
        self.prefetched.store(stored_bytes.map_or(0, |bytes| bytes + 1), Ordering::Relaxed);
    }

    /// Returns the stored bytes if this is the first use of a prefetched object.
    pub(crate) fn first_use(&self) -> Option<u64> {
        // Most uses are not; they cost no write.
        if self.prefetched.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.prefetched.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }
}

/// A use of an entry's descriptor; ends on drop.
pub(crate) struct EntryUse {
    entry: Arc<Entry>,
}

impl EntryUse {
    /// Creates the use that the state of the entry already counts.
    pub(super) fn counted(entry: Arc<Entry>) -> Self {
        Self { entry }
    }

    /// Returns the path of the entry's file.
    pub(crate) fn path(&self) -> PathBuf {
        self.entry.descriptors.layout().object(&self.entry.key)
    }

    /// Keeps the content without needing the descriptor.
    pub(crate) fn pin(&self) -> Pin {
        // A use is alive, so the entry can't be evicted before the pin counts.
        self.entry.pins.fetch_add(1, Ordering::AcqRel);
        Pin { entry: self.entry.clone() }
    }
}

impl Drop for EntryUse {
    fn drop(&mut self) {
        let mut state = self.entry.state.lock();
        state.users -= 1;
        let idle = state.users == 0;
        let closed = if idle && state.gone { state.file.take() } else { None };
        drop(state);
        if closed.is_some() {
            drop(closed);
            self.entry.descriptors.give_back();
        } else if idle {
            self.entry.descriptors.became_idle();
        }
    }
}

/// Keeps the content of an entry in the cache.
pub(crate) struct Pin {
    entry: Arc<Entry>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.entry.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

type Shard = RwLock<HashMap<CacheKey, Arc<Entry>>>;

/// All entries, in shards so that lookups rarely meet.
pub(crate) struct Table {
    shards: Box<[Shard]>,
    hasher: RandomState,
    /// Number of entries whose content this process has not compared with its digest yet, or doubts.
    unchecked: AtomicU64,
    /// Number of entries that walks over the whole table visited.
    walked: AtomicU64,
}

/// Number of shards: many more than threads, and few enough that empty ones cost little.
const SHARDS: usize = 128;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::new(),
            unchecked: AtomicU64::new(0),
            walked: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: &CacheKey) -> &Shard {
        let number = self.hasher.hash_one(key) % SHARDS as u64;
        &self.shards[usize::try_from(number).expect("a shard number is small because of the modulo")]
    }

    pub(super) fn find(&self, key: &CacheKey) -> Option<Arc<Entry>> {
        self.shard(key).read().get(key).cloned()
    }

    /// Adds a new entry; returns the entry it replaces.
    pub(super) fn insert(&self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        if entry.state.lock().checked.is_none() {
            self.unchecked.fetch_add(1, Ordering::Relaxed);
        }
        self.shard(&entry.key).write().insert(entry.key, entry)
    }

    /// Removes an entry, unless another took its place; returns whether it was there.
    pub(super) fn remove(&self, entry: &Arc<Entry>) -> bool {
        let mut shard = self.shard(&entry.key).write();
        let is_there = shard.get(&entry.key).is_some_and(|there| Arc::ptr_eq(there, entry));
        is_there && shard.remove(&entry.key).is_some()
    }

    /// Sets when the content of an entry, whose state this is, was compared with its digest.
    pub(super) fn set_checked(&self, state: &mut State, checked: Option<CheckTime>) {
        if state.gone {
            return;
        }
        let before = std::mem::replace(&mut state.checked, checked);
        match (before, checked) {
            (None, Some(_)) => _ = self.unchecked.fetch_sub(1, Ordering::Relaxed),
            (Some(_), None) => _ = self.unchecked.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Marks an entry, whose state this is, as no longer served; returns whether this call was the first.
    pub(super) fn set_gone(&self, state: &mut State) -> bool {
        if state.gone {
            return false;
        }
        // After that, no change of `checked` is counted.
        if state.checked.is_none() {
            self.unchecked.fetch_sub(1, Ordering::Relaxed);
        }
        state.gone = true;
        true
    }

    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    pub(super) fn unchecked(&self) -> u64 {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Returns the number of entries that walks over the whole table visited. Requests of users must not raise it.
    pub(super) fn walked(&self) -> u64 {
        self.walked.load(Ordering::Relaxed)
    }

    /// Returns all entries, least recently read first.
    pub(super) fn oldest_first(&self) -> Vec<(u64, Arc<Entry>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().values().map(|entry| (entry.read_at(), entry.clone())));
        }
        self.walked.fetch_add(all.len() as u64, Ordering::Relaxed);
        all.sort_unstable_by_key(|(read_at, entry)| (*read_at, entry.key));
        all
    }
}
