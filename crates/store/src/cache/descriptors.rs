//! Limits open files.
//!
//! Every open object counts against one limit, and a slot is taken before the file is opened, so the limit is never
//! exceeded. Unused objects stay open until their slot is needed; the least recently read are closed first. If every
//! slot is in use, requests park here and continue when one becomes free.
//!
//! Lock order: parked requests, then the list of open entries, then an entry's state.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::Entry;
use super::layout::Layout;
use crate::pool::Pool;
use crate::priority::Urgency;

/// A parked request for a slot; it tries again when called, and may park again.
type Waiter = Box<dyn FnOnce() + Send>;

/// Slots for open files.
pub(crate) struct Descriptors {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    waiting: AtomicUsize,
    waiters: Mutex<Waiters>,
    serving: AtomicBool,
    open: Mutex<Open>,
    pool: Weak<Pool>,
    layout: Layout,
}

/// Opened entries, some of which may be closed or evicted by now.
#[derive(Default)]
struct Open {
    entries: Vec<Weak<Entry>>,
    /// Length of the list from which on it is scanned for closed entries.
    full: usize,
}

#[derive(Default)]
struct Waiters {
    demand: VecDeque<Waiter>,
    prefetch: VecDeque<Waiter>,
    /// True if the cache is closed; requests are dropped instead of parked.
    closed: bool,
}

/// A slot in use, which is freed on drop.
pub(crate) struct Slot(Arc<Descriptors>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Number of descriptors reserved for other files: connections, spooled bodies, files being written, the mount,
/// the standard streams.
const KEPT_FOR_OTHERS: usize = 256;
/// Minimum number of slots.
const LEAST: usize = 16;
/// Maximum number of open files: more have no measurable benefit.
const OPEN_MAX: usize = 16_384;

/// List length below which no scan is needed.
const FEW: usize = 64;

/// Returns the default limit, from the process's limit on open files.
pub(super) fn default_limit() -> usize {
    let process = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let process = process.map_or(OPEN_MAX * 2, |limit| usize::try_from(limit).unwrap_or(OPEN_MAX * 2));
    // At most half, because the same process may hold several caches or mounts.
    process.saturating_sub(KEPT_FOR_OTHERS).min(process / 2).clamp(LEAST, OPEN_MAX)
}

impl Open {
    /// Removes closed entries; returns the unused ones with the time of their last read.
    fn forget_closed(&mut self) -> Vec<(u64, Arc<Entry>)> {
        let mut idle = Vec::new();
        self.entries.retain(|weak| {
            let Some(entry) = weak.upgrade() else { return false };
            let mut state = entry.state.lock();
            if state.file.is_none() {
                state.listed = false;
                return false;
            }
            if state.users == 0 {
                idle.push((entry.read_at(), entry.clone()));
            }
            true
        });
        idle
    }
}

impl Descriptors {
    pub(super) fn new(limit: usize, pool: Weak<Pool>, layout: Layout) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::default(),
            serving: AtomicBool::new(false),
            open: Mutex::default(),
            pool,
            layout,
        })
    }

    /// Returns the layout of the folder that contains the files of entries.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number open now, the highest number ever open, and the limit.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let (used, peak) = (self.used.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        (used as u64, peak as u64, self.limit as u64)
    }

    /// Takes a slot, and closes idle files if none is free. The caller must not hold the lock of an entry.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        if self.take_free() || (self.close_idle() && self.take_free()) {
            return Some(Slot(self.clone()));
        }
        None
    }

    fn take_free(&self) -> bool {
        let taken = self
            .used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| (used < self.limit).then_some(used + 1));
        if let Ok(before) = taken {
            self.peak.fetch_max(before + 1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Parks a request that found no slot; returns it if a slot has become free. Returns it if a slot has
    /// become free meanwhile, so that no wake-up is lost: a thread that frees a slot without seeing this count
    /// has freed it before the check here. Drops it if the cache is closed, since no thread may be left to wake
    /// it.
    pub(super) fn park(&self, urgency: Urgency, waiter: Waiter) -> Result<(), Waiter> {
        let mut waiters = self.waiters.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.used.load(Ordering::SeqCst) < self.limit || self.has_idle() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(waiter);
        }
        if waiters.closed {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            drop(waiters);
            drop(waiter);
            return Ok(());
        }
        match urgency {
            Urgency::Demand => waiters.demand.push_back(waiter),
            Urgency::Prefetch => waiters.prefetch.push_back(waiter),
        }
        Ok(())
    }

    /// Records that an entry was opened with a slot, which the entry owns from now on.
    pub(super) fn opened(&self, slot: Slot, entry: &Arc<Entry>) {
        // The entry gives the slot back when it is closed.
        std::mem::forget(slot);
        let mut open = self.open.lock();
        let mut state = entry.state.lock();
        if !std::mem::replace(&mut state.listed, true) {
            open.entries.push(Arc::downgrade(entry));
        }
        drop(state);
        // Where slots never run out the list is never scanned for a slot, and evicted entries would stay in it.
        // Doubling the threshold spreads the cost over many opens.
        if open.entries.len() > open.full.max(FEW) {
            open.forget_closed();
            open.full = open.entries.len() * 2;
        }
    }

    /// Frees the slot of a file that was closed.
    pub(super) fn give_back(self: &Arc<Self>) {
        self.used.fetch_sub(1, Ordering::SeqCst);
        self.became_idle();
    }

    /// Records that a file has no users any more.
    pub(super) fn became_idle(self: &Arc<Self>) {
        // Writes nothing while no request is parked: every read that ends comes through here.
        if self.waiting.load(Ordering::SeqCst) > 0
            && !self.serving.swap(true, Ordering::SeqCst)
            && let Some(pool) = self.pool.upgrade()
        {
            // Not here: the caller may be anywhere, holding anything.
            let this = self.clone();
            pool.spawn(Urgency::Demand, move || this.serve());
        }
    }

    /// Drops all parked and later requests, which completes their jobs.
    pub(super) fn close(&self) {
        let closed = Waiters { closed: true, ..Waiters::default() };
        let dropped = std::mem::replace(&mut *self.waiters.lock(), closed);
        self.waiting.store(0, Ordering::SeqCst);
        drop(dropped);
    }

    /// Lets parked requests try again while slots can be found. Runs on the pool.
    fn serve(&self) {
        loop {
            self.serving.store(false, Ordering::SeqCst);
            let before = self.waiting.load(Ordering::SeqCst);
            let next = {
                let mut waiters = self.waiters.lock();
                let next = waiters.demand.pop_front().or_else(|| waiters.prefetch.pop_front());
                if next.is_some() {
                    self.waiting.fetch_sub(1, Ordering::SeqCst);
                }
                next
            };
            let Some(next) = next else { return };
            next();
            // Parked again: nothing is free for the others either.
            if self.waiting.load(Ordering::SeqCst) >= before {
                return;
            }
        }
    }

    fn has_idle(&self) -> bool {
        let idle = |entry: Arc<Entry>| {
            let state = entry.state.lock();
            state.users == 0 && state.file.is_some()
        };
        self.open.lock().entries.iter().filter_map(Weak::upgrade).any(idle)
    }

    /// Closes the least recently read idle files; returns whether any was closed.
    fn close_idle(&self) -> bool {
        let mut idle = self.open.lock().forget_closed();
        idle.sort_unstable_by_key(|(read_at, _)| *read_at);
        // A batch, so that the scan above is paid for once in many opens.
        let batch = (self.limit / 16).max(1);
        let mut closed = 0;
        for (_, entry) in idle {
            if closed == batch {
                break;
            }
            let mut state = entry.state.lock();
            if state.users == 0
                && let Some(file) = state.file.take()
            {
                drop(state);
                drop(file);
                self.used.fetch_sub(1, Ordering::AcqRel);
                closed += 1;
            }
        }
        closed > 0
    }
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::object::{ObjectKind, ObjectName};

    use super::*;
    use crate::cache::admin::Goal;
    use crate::cache::{Cache, CacheOptions};
    use crate::callback::Callback;
    use crate::engine::{Engine, EngineOptions};
    use crate::objects::Objects;
    use crate::objects::object_store::ObjectStore;
    use crate::objects::request::ObjectRequest;
    use crate::transport::source::{Fetch, Source, Stored};

    /// An object whose content is its own name.
    struct Echo;

    impl Source for Echo {
        fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
            let name = fetch.what.split(' ').next().unwrap_or_default();
            done.ok(Stored::in_memory(name.as_bytes().to_vec()));
        }

        fn describe(&self) -> String {
            "a test".to_owned()
        }
    }

    #[test]
    fn open_objects_are_forgotten_on_eviction() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let options = CacheOptions { descriptors: Some(1000), ..CacheOptions::with_quota(1 << 30) };
        let cache = Cache::open(&engine, folder.path(), options).unwrap();
        let store = Objects::new(&cache, Arc::new(Echo));
        for number in 0..500 {
            let text = format!("object{number}");
            let hash = ContentHash::of(HashAlgorithm::Sha1, text.as_bytes());
            let wanted =
                ObjectRequest::new(ObjectName::new(hash, ObjectKind::File), Compression::Stored, text);
            drop(Callback::wait(|done| store.get(wanted, done)).unwrap());
            if number % 50 == 49 {
                cache.evict(Goal::Everything { even_pinned: false }).unwrap();
            }
        }
        let (used, ..) = cache.state.descriptors.counts();
        let remembered = cache.state.descriptors.open.lock().entries.len();
        assert!(remembered <= 2 * FEW, "{remembered} entries are remembered as open, and {used} are");
    }
}
