//! State of an open cache, shared by all its users.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};

use super::descriptors::{Descriptors, Slot};
use super::disk::Disk;
use super::disk_failures::DiskFailures;
use super::drafts::Drafts;
use super::entry::{Entry, Reads, Table};
use super::layout::Layout;
use super::occupation::Occupation;
use super::pins::Pins;
use super::space::Space;
use super::status::{CacheStatus, LowerStatus, Room};
use super::trailer::TRAILER_LEN;
use super::uncached::UncachedAccount;
use crate::counter::Counter;
use crate::error::Cause;
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
    pub(super) occupation: Occupation,
    /// True if the cache is closed; held for reading while a file gets its name.
    pub(super) gate: RwLock<bool>,
    pub(super) reads: Reads,
    pub(super) drafts: Drafts,
    pub(super) counts: CacheCounts,
    pub(super) disk_failures: DiskFailures,
    /// Set when a file without an entry is left; the next start has to scan for it.
    pub(super) no_index: AtomicBool,
    pub(super) found: Found,
}

/// Condition of the folder when the cache was opened.
pub(super) struct Found {
    /// Number of unfinished files.
    pub(super) leftovers: u64,
    /// True if the index was missing.
    pub(super) unclean: bool,
}

/// Counts of objects.
#[derive(Default)]
pub(super) struct CacheCounts {
    pub(super) evicted: Counter,
    /// Objects that were not evicted because they are in use.
    pub(super) spared: Counter,
    pub(super) damaged: Counter,
}

impl CacheState {
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
        self.disk_failures.note(doing, path, &source);
        Cause::Disk { doing, path: path.to_owned(), source }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.occupation.is_lost()
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
            evicted: self.counts.evicted.value(),
            spared: self.counts.spared.value(),
            over_quota: self.space.over_quota(),
            unkept: self.uncached_files.served() + self.uncached_memory.served(),
            disk_errors: self.disk_failures.count(),
            disk_failure: self.disk_failures.last(),
            damaged: self.counts.damaged.value(),
            unchecked: self.table.unchecked(),
            walked: self.table.walked(),
            opened_unclean: self.found.unclean,
            leftovers: self.found.leftovers,
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
