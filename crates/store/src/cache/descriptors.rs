//! The bound on open files.
//!
//! Every open object counts against one limit, and a slot is taken before the file is opened, so the limit is
//! never exceeded. Objects that nobody uses stay open until their slot is needed; the longest unread are
//! closed first. If every slot is in use, requests park here and go on when one becomes free.
//!
//! Locking: parked requests before the list of open entries before an entry's state; never the other way round.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::entry::Entry;
use crate::pool::Pool;
use crate::urgency::Urgency;

/// A request that waits for a slot; it tries again when called, and may park again.
type Waiter = Box<dyn FnOnce() + Send>;

/// The slots.
pub(crate) struct Descriptors {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    waiting: AtomicUsize,
    waiters: Mutex<Waiters>,
    serving: AtomicBool,
    open: Mutex<Vec<Weak<Entry>>>,
    pool: Weak<Pool>,
}

#[derive(Default)]
struct Waiters {
    demand: VecDeque<Waiter>,
    prefetch: VecDeque<Waiter>,
    /// Nobody waits any more.
    closed: bool,
}

/// A slot taken; free again on drop.
pub(crate) struct Slot(Arc<Descriptors>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Files that a process needs besides cached objects: connections, spooled bodies, files being written, the
/// mount, the standard streams.
const KEPT_FOR_OTHERS: usize = 256;
/// Below this the cache would spend its time opening and closing.
const LEAST: usize = 16;
/// More open files than this save nothing measurable.
const MOST: usize = 16_384;

/// The bound that fits the process's limit on open files.
pub(super) fn default_limit() -> usize {
    let process = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let process = process.map_or(MOST * 2, |limit| usize::try_from(limit).unwrap_or(MOST * 2));
    // At most half, because the same process may hold several caches or mounts.
    process.saturating_sub(KEPT_FOR_OTHERS).min(process / 2).clamp(LEAST, MOST)
}

impl Descriptors {
    pub(super) fn new(limit: usize, pool: Weak<Pool>) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::default(),
            serving: AtomicBool::new(false),
            open: Mutex::default(),
            pool,
        })
    }

    /// How many are open, were open at once at most, and may be open.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let (used, peak) = (self.used.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        (used as u64, peak as u64, self.limit as u64)
    }

    /// Takes a slot, closing idle files if there is none. The caller holds no entry's lock.
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

    /// Parks a request that found no slot. Hands it back if one has become free meanwhile, so that no wake-up is
    /// lost: whoever frees one and doesn't see this count has freed it before this looks. Drops it if the cache is closed:
    /// then nobody may be left to wake it.
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

    /// Notes that an entry was opened with a slot that now belongs to it.
    pub(super) fn opened(&self, slot: Slot, entry: &Arc<Entry>) {
        // The entry gives the slot back when it is closed.
        std::mem::forget(slot);
        let mut open = self.open.lock();
        let mut state = entry.state.lock();
        if !std::mem::replace(&mut state.listed, true) {
            open.push(Arc::downgrade(entry));
        }
    }

    /// Frees the slot of a file that was closed.
    pub(super) fn give_back(self: &Arc<Self>) {
        self.used.fetch_sub(1, Ordering::SeqCst);
        self.became_idle();
    }

    /// Notes that a file has no user any more.
    pub(super) fn became_idle(self: &Arc<Self>) {
        // Nothing is written as long as nobody waits: every read that ends comes by here.
        if self.waiting.load(Ordering::SeqCst) > 0
            && !self.serving.swap(true, Ordering::SeqCst)
            && let Some(pool) = self.pool.upgrade()
        {
            // Not here: the caller may be anywhere, holding anything.
            let this = self.clone();
            pool.spawn(Urgency::Demand, move || this.serve());
        }
    }

    /// Drops all parked requests, and those that come, which answers them: each has the trip with it that it is for.
    pub(super) fn close(&self) {
        let closed = Waiters { closed: true, ..Waiters::default() };
        let dropped = std::mem::replace(&mut *self.waiters.lock(), closed);
        self.waiting.store(0, Ordering::SeqCst);
        drop(dropped);
    }

    /// Lets parked requests try again, as long as that brings slots in use. Runs on the pool.
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
        self.open.lock().iter().filter_map(Weak::upgrade).any(idle)
    }

    /// Closes the longest unread idle files; tells whether any was closed.
    fn close_idle(&self) -> bool {
        let mut open = self.open.lock();
        let mut idle = Vec::new();
        open.retain(|weak| {
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
        drop(open);
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
