//! The queues in which candidates wait, and the requests that are outstanding.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_store::CacheKey;

use crate::budget::Budget;
use crate::budgets::Budgets;
use crate::candidate::Candidate;
use crate::event::{Ended, Outcome};
use crate::folders::Folder;
use crate::pending::{Arrival, PendingArrivals, PrefetchEvent};
use crate::remaining::RemainingChunks;
use crate::world::World;

/// Maximum number of outstanding requests.
///
/// The store sends as many of them as the path to the server holds; the other candidates stay queued here, where
/// likelier ones can still overtake them.
const UNDER_WAY_MAX: usize = 256;
/// Maximum plain bytes of outstanding requests, so that few large ones don't delay many small ones.
const UNDER_WAY_BYTES: u64 = 256 << 20;
/// Maximum plain bytes of outstanding idle-time requests: later requests must not find the path full.
const IDLE_BYTES_MAX: u64 = 32 << 20;
/// Maximum number of queued high-confidence objects, and of queued low-confidence ones; the least likely ones of the
/// latter are dropped.
const QUEUE_MAX: usize = 1 << 16;
const LIKELY_MAX: usize = 1 << 15;
/// Number of consecutive failures after which prefetching stops until the next miss.
const FAILURES_MAX: u32 = 8;
/// Maximum number of entries of a folder that is reported to the listener: larger ones take too long to list.
const ANNOUNCED_FOLDER_MAX: usize = 1 << 12;

/// Candidates in the order in which they are fetched.
#[derive(Default)]
pub(crate) struct Queue {
    /// Candidates from sequences, in order; charged to a budget of their own.
    sequence_objects: VecDeque<Candidate>,
    /// Candidates from bundles, in order, the newest trigger first; charged to a budget of their own.
    bundle_objects: BTreeMap<(Reverse<u64>, usize, usize), Candidate>,
    /// Low-confidence candidates, most likely first; charged to a budget.
    likely: VecDeque<Candidate>,
    numbered_candidates: u64,
    /// Chunks of libraries and executables in use.
    pub(crate) remaining: RemainingChunks,
    /// Keys of all candidates; the sequence number of a low-confidence one.
    queued: HashMap<CacheKey, Option<u64>>,
    under_way: HashMap<CacheKey, u64>,
    /// File ranges of announced objects that are being fetched.
    pending: PendingArrivals,
    /// Folder that was reported last.
    last_folder: Option<Arc<Folder>>,
    failures: u32,
}

impl Queue {
    /// Records a miss of an object; returns true if it was a candidate or is being fetched.
    pub(crate) fn missed(&mut self, key: &CacheKey) -> bool {
        self.failures = 0;
        self.pending.take(key);
        // The demanded request has fetched it already.
        self.queued.remove(key).is_some() || self.is_under_way(key)
    }

    /// Returns true if a request for an object is outstanding.
    pub(crate) fn is_under_way(&self, key: &CacheKey) -> bool {
        self.under_way.contains_key(key)
    }

    /// Returns true if an object is neither queued nor requested.
    pub(crate) fn is_new(&self, key: &CacheKey) -> bool {
        !self.queued.contains_key(key) && !self.is_under_way(key)
    }

    /// Returns true if a high-confidence object should be queued. A queued low-confidence one is skipped in its queue.
    pub(crate) fn admit(&mut self, key: CacheKey) -> bool {
        let is_sure = self.queued.get(&key).is_some_and(Option::is_none);
        if is_sure || self.is_under_way(&key) || self.queued.len() >= QUEUE_MAX + LIKELY_MAX {
            return false;
        }
        self.queued.insert(key, None);
        true
    }

    /// Removes objects that another candidate replaces.
    pub(crate) fn withdraw(&mut self, keys: Vec<CacheKey>) {
        for key in keys {
            self.queued.remove(&key);
        }
    }

    /// Queues an object that the steps of a sequence lead to.
    pub(crate) fn push_learned(&mut self, candidate: Candidate) {
        if self.admit(candidate.wanted.key()) {
            self.sequence_objects.push_back(candidate);
        }
    }

    /// Queues an object of a bundle. `place` is the number of the bundle, of the read in it and of the object in that.
    pub(crate) fn push_published(&mut self, (serial, read, part): (u64, usize, usize), candidate: Candidate) {
        if self.admit(candidate.wanted.key()) {
            self.bundle_objects.insert((Reverse(serial), read, part), candidate);
        }
    }

    /// Queues a low-confidence candidate before all others.
    pub(crate) fn push_first(&mut self, candidate: Candidate) {
        if self.is_under_way(&candidate.wanted.key()) {
            return;
        }
        let candidate = self.numbered(candidate);
        self.likely.push_front(candidate);
        if self.likely.len() > LIKELY_MAX
            && let Some(last) = self.likely.pop_back()
            && self.queued.get(&last.wanted.key()) == Some(&Some(last.number))
        {
            self.queued.remove(&last.wanted.key());
        }
    }

    /// Queues a low-confidence candidate after all others.
    pub(crate) fn push_last(&mut self, candidate: Candidate) {
        if self.likely.len() < LIKELY_MAX {
            let candidate = self.numbered(candidate);
            self.likely.push_back(candidate);
        }
    }

    /// Numbers a low-confidence candidate. An earlier entry of the same object is skipped in the queue.
    fn numbered(&mut self, candidate: Candidate) -> Candidate {
        self.numbered_candidates += 1;
        let queued = self.queued.entry(candidate.wanted.key()).or_insert(Some(self.numbered_candidates));
        *queued = queued.map(|_| self.numbered_candidates);
        Candidate { number: self.numbered_candidates, ..candidate }
    }

    /// Records the announced range of an object, to be reported once the object has arrived.
    pub(crate) fn expect_arrival(&mut self, key: CacheKey, arrival: Arrival) {
        if !self.is_new(&key) {
            self.pending.expect(key, arrival);
        }
    }

    /// Removes and returns the next candidate that a budget allows; it counts as requested.
    pub(crate) fn next(&mut self, budgets: &Budgets) -> Option<Candidate> {
        let is_open = self.failures < FAILURES_MAX
            && self.under_way.len() < UNDER_WAY_MAX
            && self.bytes_under_way() < UNDER_WAY_BYTES;
        let candidate = if is_open { self.first(budgets)? } else { return None };
        self.under_way.insert(candidate.wanted.key(), candidate.size);
        Some(candidate)
    }

    fn first(&mut self, budgets: &Budgets) -> Option<Candidate> {
        let Budgets { learned, published, likely, is_starved } = budgets;
        let queued = &mut self.queued;
        if let Some(candidate) = affordable(&mut self.sequence_objects, learned, queued, is_starved)
            .or_else(|| affordable(&mut self.bundle_objects, published, queued, is_starved))
        {
            return Some(candidate);
        }
        while let Some(candidate) = self.remaining.take_soon() {
            if queued.remove(&candidate.wanted.key()).is_some() {
                return Some(candidate);
            }
        }
        if let Some(candidate) = affordable(&mut self.likely, likely, queued, is_starved) {
            return Some(candidate);
        }
        if self.bytes_under_way() >= IDLE_BYTES_MAX {
            return None;
        }
        self.remaining.take(|key| self.queued.contains_key(key) || self.under_way.contains_key(key))
    }

    fn bytes_under_way(&self) -> u64 {
        self.under_way.values().sum()
    }

    /// Reports that reads in the folder of a candidate are expected. Candidates of one folder mostly come one after the
    /// other.
    pub(crate) fn announce_folder(
        &mut self,
        candidate: &mut Candidate,
        announce: impl FnOnce(PrefetchEvent<'_>),
    ) {
        let Some(folder) = candidate.folder.take() else { return };
        let is_large = folder.files.len() + folder.folders.len() > ANNOUNCED_FOLDER_MAX;
        if !is_large && self.last_folder.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &folder)) {
            announce(PrefetchEvent::Folder(&folder.path));
        }
        self.last_folder = Some(folder);
    }

    /// Records the end of a request, and reports what has arrived. Returns true if prefetching stops after this
    /// failure.
    pub(crate) fn ended<C>(&mut self, ended: Ended, world: &dyn World<Catalog = C>) -> bool {
        self.under_way.remove(&ended.key);
        let arrival = self.pending.take(&ended.key);
        if ended.outcome != Outcome::Failed {
            arrival.iter().for_each(|arrival| world.announce(PrefetchEvent::Bytes(arrival)));
            self.failures = 0;
            return false;
        }
        self.failures += 1;
        self.failures >= FAILURES_MAX
    }

    /// Returns the idle time until the remaining chunks begin; `None` if there are none, or they have begun.
    pub(crate) fn quiet_period(&self) -> Option<Duration> {
        self.remaining.quiet_period()
    }

    /// Begins with the remaining chunks; returns false if there are none.
    pub(crate) fn begin_idle(&mut self) -> bool {
        self.remaining.begin()
    }

    /// Delays the remaining chunks again, since a program reads.
    pub(crate) fn hold_back(&mut self) {
        self.remaining.wait();
    }

    /// Removes all candidates.
    pub(crate) fn clear(&mut self) {
        self.sequence_objects.clear();
        self.bundle_objects.clear();
        self.likely.clear();
        self.remaining.clear();
        self.queued.clear();
        self.pending.clear();
    }
}

/// Candidates in the order of one queue.
trait Line {
    /// Returns the first candidate without removing it.
    fn first(&self) -> Option<&Candidate>;
    /// Removes the first candidate.
    fn take(&mut self) -> Option<Candidate>;
}

impl Line for VecDeque<Candidate> {
    fn first(&self) -> Option<&Candidate> {
        self.front()
    }

    fn take(&mut self) -> Option<Candidate> {
        self.pop_front()
    }
}

impl<K: Ord> Line for BTreeMap<K, Candidate> {
    fn first(&self) -> Option<&Candidate> {
        self.values().next()
    }

    fn take(&mut self) -> Option<Candidate> {
        Some(self.pop_first()?.1)
    }
}

/// Removes and returns the next candidate that is still queued and that the budget allows.
fn affordable(
    line: &mut impl Line,
    budget: &Budget,
    queued: &mut HashMap<CacheKey, Option<u64>>,
    starved: &AtomicBool,
) -> Option<Candidate> {
    loop {
        if !budget.allows(line.first()?.size) {
            starved.store(true, Ordering::Relaxed);
            return None;
        }
        let candidate = line.take()?;
        if queued.remove(&candidate.wanted.key()).is_some() {
            budget.spend(candidate.wanted.key(), candidate.size);
            return Some(candidate);
        }
    }
}
