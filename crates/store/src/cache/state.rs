//! State of an open cache, shared by all its users.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::descriptors::{Descriptors, Slot};
use super::disk::Disk;
use super::entry::{Entry, Reads, Table};
use super::layout::Layout;
use super::pins::Pins;
use super::space::Space;
use super::status::{CacheStatus, LowerStatus, Room};
use super::trailer::TRAILER_LEN;
use super::uncached::UncachedAccount;
use crate::clock::unix_now;
use crate::error::{Cause, is_full};
use crate::file_lock::FileLock;
use crate::objects::object_store::Holder;
use crate::objects::request::CacheKey;
use crate::pool::Pool;
use crate::priority::Urgency;

/// Minimum for the size limit of objects of unknown size, in bytes.
const UNSTATED_MIN: u64 = 64 << 20;

/// Interface of the lower tiers to the cache, which reports their counters and stops them when it closes.
pub(super) trait LowerCache: Send + Sync {
    /// Returns the counters of all tiers.
    fn status(&self) -> LowerStatus;

    /// Stops accepting requests; requests in progress continue with the network.
    fn stop(&self);
}

/// State of an open cache, shared by all its users.
pub(crate) struct CacheState {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    pub(super) block: u64,
    pub(super) table: Table,
    pub(crate) space: Arc<Space>,
    pub(crate) uncached_files: Arc<UncachedAccount>,
    pub(crate) uncached_memory: Arc<UncachedAccount>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(super) holders: Mutex<Vec<Weak<dyn Holder>>>,
    pub(super) pins: Pins,
    /// Lower tiers, to report on and to stop.
    pub(super) lower: Option<Arc<dyn LowerCache>>,
    pub(crate) streaming: bool,
    pub(crate) pool: Arc<Pool>,
    pub(super) evictor: Mutex<Option<JoinHandle<()>>>,
    pub(super) lock: Mutex<Option<FileLock>>,
    /// Open folder, so that it is not cleaned up by age.
    pub(super) _folder: Option<std::fs::File>,
    /// Whether the cache is closed; held for reading while a file gets its name.
    pub(super) gate: RwLock<bool>,
    pub(super) reads: Reads,
    pub(super) next_file: AtomicU64,
    /// Whether new files are unnamed.
    pub(super) nameless: bool,
    pub(super) evicted: AtomicU64,
    pub(super) spared: AtomicU64,
    pub(super) disk_errors: AtomicU64,
    pub(super) disk_failure: Mutex<Option<DiskFailure>>,
    pub(super) damaged: AtomicU64,
    /// Set when a file without an entry is left; the next start has to scan for it.
    pub(super) no_index: AtomicBool,
    pub(super) opened_unclean: bool,
    pub(super) leftovers: u64,
}

/// Minimum time between log lines about the same kind of failure.
const TOLD_EVERY: Duration = Duration::from_secs(600);

/// Latest failed operation on the disk.
pub(super) struct DiskFailure {
    time: u64,
    kind: io::ErrorKind,
    /// Time of the last log line about this kind.
    told: Instant,
    text: String,
}

impl DiskFailure {
    /// Replaces the last failure; returns whether to log this one.
    fn replace(mut self, last: &mut Option<Self>) -> bool {
        let before = last.as_ref().filter(|last| last.kind == self.kind);
        let told = before.map(|last| last.told).filter(|told| told.elapsed() < TOLD_EVERY);
        self.told = told.unwrap_or(self.told);
        *last = Some(self);
        told.is_none()
    }
}

impl CacheState {
    /// Makes an unnamed file; none where the file system needs a name.
    pub(super) fn begin_nameless(&self) -> io::Result<Option<std::fs::File>> {
        if self.nameless { self.disk.create_nameless(&self.layout.txn) } else { Ok(None) }
    }

    /// Returns a new name in `txn/`.
    pub(super) fn draft(&self) -> PathBuf {
        self.layout.txn.join(self.next_file.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(crate) fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.holders.lock().push(holder);
    }

    /// Returns the maximum plain size of an object of unknown size: half of the quota, at least an amount that
    /// fits memory.
    pub(crate) fn unstated_limit(&self) -> u64 {
        (self.space.marks.quota / 2).max(UNSTATED_MIN)
    }

    /// Refuses an object that is larger than the cache may store or serve uncached.
    pub(crate) fn check_size(&self, plain_len: u64, is_kept: bool) -> Result<(), Cause> {
        let kept = if is_kept { self.space.marks.hard } else { 0 };
        let limit = kept.max(self.uncached_files.limit());
        if self.charge_of(plain_len) > limit {
            return Err(Cause::LargerThanCache { needed: plain_len, limit });
        }
        Ok(())
    }

    /// Returns the bytes that an object is charged with.
    pub(crate) fn charge_of(&self, plain_len: u64) -> u64 {
        let len = plain_len.saturating_add(TRAILER_LEN as u64);
        len.div_ceil(self.block).saturating_mul(self.block)
    }

    pub(crate) fn find(&self, key: &CacheKey) -> Option<Arc<Entry>> {
        self.table.find(key)
    }

    /// Takes a slot for an open file, now or when one becomes free.
    pub(crate) fn with_slot(self: &Arc<Self>, urgency: Urgency, then: impl FnOnce(Slot) + Send + 'static) {
        if let Some(slot) = self.descriptors.take() {
            return then(slot);
        }
        let cache = self.clone();
        let again = Box::new(move || cache.with_slot(urgency, then));
        if let Err(again) = self.descriptors.park(urgency, again) {
            self.pool.spawn(urgency, again);
        }
    }

    pub(super) fn failed(&self, doing: &'static str, path: &Path, source: io::Error) -> Cause {
        self.note_failure(doing, path, &source);
        Cause::Disk { doing, path: path.to_owned(), source }
    }

    /// Counts a failed disk operation and keeps its text for the status.
    pub(super) fn note_failure(&self, doing: &str, path: &Path, error: &io::Error) {
        self.disk_errors.fetch_add(1, Ordering::Relaxed);
        let mend = if is_full(error) { ": make room there, or give it a smaller quota" } else { "" };
        let text = format!("{doing} `{}` failed: {error}{mend}", path.display());
        let failure = DiskFailure { time: unix_now(), kind: error.kind(), told: Instant::now(), text };
        let line = failure.text.clone();
        let is_news = failure.replace(&mut self.disk_failure.lock());
        if is_news {
            tracing::warn!(object = %path.display(), "the cache: {line}");
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lock.lock().as_ref().is_some_and(|lock| lock.is_lost_at(&self.layout.lock))
    }

    pub(super) fn keep_no_index(&self) {
        self.no_index.store(true, Ordering::Relaxed);
    }

    pub(super) fn stop_evictor(&self) {
        if let Some(evictor) = self.evictor.lock().take()
            // The evictor itself may be the last to let go of the cache; it ends right after.
            && evictor.thread().id() != std::thread::current().id()
        {
            let _ = evictor.join();
        }
    }

    pub(crate) fn room(&self) -> Room {
        Room { quota: self.space.marks.quota, used: self.space.used() }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (descriptors, descriptors_peak, descriptors_limit) = self.descriptors.counts();
        let (pinned, pinned_objects) = self.pins.cached();
        CacheStatus {
            quota: self.space.marks.quota,
            hard_limit: self.space.marks.hard,
            used: self.space.used(),
            objects: self.table.len(),
            pinned,
            pinned_objects,
            descriptors,
            descriptors_peak,
            descriptors_limit,
            evicted: get(&self.evicted),
            spared: get(&self.spared),
            over_quota: self.space.over_quota(),
            unkept: self.uncached_files.served() + self.uncached_memory.served(),
            disk_errors: get(&self.disk_errors),
            disk_failure: self.disk_failure.lock().as_ref().map(|last| (last.time, last.text.clone())),
            damaged: get(&self.damaged),
            unchecked: self.table.unchecked(),
            walked: self.table.walked(),
            opened_unclean: self.opened_unclean,
            leftovers: self.leftovers,
            lower: self.lower.as_ref().map(|lower| lower.status()).unwrap_or_default(),
        }
    }
}

impl Drop for CacheState {
    fn drop(&mut self) {
        // Without a clean mark the next start checks every entry; nothing else is lost.
        let _ = self.close();
    }
}
