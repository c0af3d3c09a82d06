//! Accounts for the quota and reservations, and evicts objects on a thread.
//!
//! ```text
//!   0 ········ low ············ high ···· quota ············ hard limit
//!              ^ an eviction    ^ one     ^ reservations     ^ never exceeded;
//!                ends here        begins    wait for one       beyond it nothing is cached
//! ```
//!
//! Bytes are reserved before they are written. Above the quota a reservation waits for an eviction; if all remaining
//! objects are in use, it is granted up to the hard limit and counted as a warning.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Cause;

/// Thresholds of the picture above.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) quota: u64,
    pub(super) hard: u64,
    /// Pause after an eviction that could not make room.
    pub(super) patience: Duration,
}

impl Marks {
    pub(super) fn new(quota: u64, hard: u64, patience: Duration) -> Self {
        // A twentieth is enough for reservations to find room while an eviction that began at the high mark
        // asks the kernel; a tenth below that makes a scan of the table worth its while.
        let part = |percent: u64| quota / 100 * percent + quota % 100 * percent / 100;
        Self { low: part(85), high: part(95), quota, hard: hard.max(quota), patience }
    }
}

/// Time limit of an eviction for a full disk, after which no further holder is asked; and the age of a running one from which
/// nothing waits for it. Bytes that find no room pass through memory.
const URGENT_MAX: Duration = Duration::from_millis(300);
const URGENT_WAIT: Duration = Duration::from_millis(50);
/// Divisor of the cache: an eviction for a full disk frees at least this part. Such evictions are rare then; each
/// sorts all objects.
const URGENT_PART: u64 = 64;

/// Time after which an eviction that found everything in use is repeated.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

type Granted = Box<dyn FnOnce(Result<Reservation, Cause>) + Send>;
type Tried = Box<dyn FnOnce(bool) + Send>;

/// Account of used and reserved bytes.
pub(crate) struct Space {
    pub(super) marks: Marks,
    state: Mutex<State>,
    /// Wakes the evictor.
    work: Condvar,
    /// Wakes threads that wait for the evictor to become idle.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    used: u64,
    parked: VecDeque<(u64, Granted)>,
    /// Requests to evict so many bytes because the disk is full, regardless of the quota.
    urgent: Vec<(u64, Tried)>,
    /// Those of them that the eviction in progress is for.
    trying: Vec<Tried>,
    /// Time of the last eviction that was of no use to a full disk.
    no_room: Option<Instant>,
    /// Time of the last eviction that missed its goal, and the bytes in use then.
    stuck: Option<(Instant, u64)>,
    over_quota: u64,
    /// Start of the eviction in progress.
    busy: Option<Instant>,
    stopping: bool,
}

/// Next step of the evictor.
pub(super) enum Task {
    /// Evict until no more than this is used, or until this time.
    EvictTo(u64, Option<Instant>),
    /// Ends the thread.
    Stop,
}

/// Reserved bytes; released on drop unless they became an entry.
pub(crate) struct Reservation {
    space: Arc<Space>,
    bytes: u64,
}

impl Reservation {
    /// Returns the number of reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another reservation of the same account to this one.
    pub(crate) fn add(&mut self, mut more: Self) {
        self.bytes += std::mem::take(&mut more.bytes);
    }

    /// Releases a part.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let less = bytes.min(self.bytes);
        self.bytes -= less;
        self.space.release(less);
    }

    /// Converts the reservation into the charge of an entry, which may differ from the reserved bytes.
    pub(super) fn keep(mut self, charge: u64) {
        let reserved = std::mem::take(&mut self.bytes);
        let mut state = self.space.state.lock();
        state.used = state.used - reserved + charge;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.space.release(self.bytes);
        }
    }
}

impl Space {
    pub(super) fn new(marks: Marks) -> Arc<Self> {
        Arc::new(Self { marks, state: Mutex::default(), work: Condvar::new(), settled: Condvar::new() })
    }

    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Returns the maximum number of bytes that are ever reserved.
    pub(crate) fn hard(&self) -> u64 {
        self.marks.hard
    }

    pub(super) fn over_quota(&self) -> u64 {
        self.state.lock().over_quota
    }

    /// Counts the bytes of objects found at the start.
    pub(super) fn charge(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used += bytes;
        if self.has_work(&state) {
            self.work.notify_one();
        }
    }

    /// Releases bytes.
    pub(super) fn release(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used -= bytes;
    }

    /// Reserves bytes: at once, after an eviction, or not at all. `granted` is called on this thread or on the
    /// evictor's and must not block.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        granted: impl FnOnce(Result<Reservation, Cause>) + Send + 'static,
    ) {
        let mut state = self.state.lock();
        let after = state.used.saturating_add(bytes);
        self.forget_stuck(&mut state);
        // Earlier reservations go first.
        let fits = after <= self.marks.quota && state.parked.is_empty();
        if fits || (after <= self.marks.hard && state.stuck.is_some()) {
            state.used = after;
            if self.has_work(&state) {
                self.work.notify_one();
            }
            drop(state);
            return granted(Ok(Reservation { space: self.clone(), bytes }));
        }
        // If all objects are in use another eviction only delays; it is tried again after a while.
        if bytes > self.marks.hard || state.stopping || state.stuck.is_some() {
            let full = self.full(bytes, state.used);
            drop(state);
            return granted(Err(full));
        }
        state.parked.push_back((bytes, Box::new(granted)));
        self.work.notify_one();
    }

    /// Returns an empty reservation, to which others are added.
    pub(crate) fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { space: self.clone(), bytes: 0 }
    }

    /// Reserves bytes and waits for the answer. Not for the evictor's thread, nor one that it waits for.
    pub(crate) fn reserve_now(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Cause> {
        let (answer, answered) = channel();
        self.reserve(bytes, move |granted| _ = answer.send(granted));
        answered.recv().unwrap_or(Err(Cause::Closed))
    }

    /// Evicts so many bytes if possible, because the disk is full; then calls `tried` with the outcome. Where that was of no use
    /// a moment ago, or takes long now, `tried` is called at once: a full disk must not delay one object after the other.
    pub(crate) fn make_room(&self, bytes: u64, tried: impl FnOnce(bool) + Send + 'static) {
        let mut state = self.state.lock();
        let is_slow = state.busy.is_some_and(|since| since.elapsed() >= URGENT_WAIT);
        if !state.stopping && !is_slow && state.no_room.is_none() {
            state.urgent.push((bytes, Box::new(tried)));
            self.work.notify_one();
            return;
        }
        let is_due = state.no_room.is_some_and(|since| since.elapsed() >= self.marks.patience);
        if is_due && !state.stopping && state.urgent.is_empty() {
            // For the objects after this one; nothing waits for it.
            state.no_room = Some(Instant::now());
            state.urgent.push((bytes, Box::new(|_| ())));
            self.work.notify_one();
        }
        drop(state);
        tried(false);
    }

    /// Records that the disk was full even after room was made.
    pub(crate) fn is_of_no_use(&self) {
        self.state.lock().no_room = Some(Instant::now());
    }

    /// Waits until the evictor has nothing to do.
    pub(super) fn settle(&self) {
        let mut state = self.state.lock();
        while !state.stopping && (state.busy.is_some() || self.has_work(&state)) {
            self.settled.wait(&mut state);
        }
    }

    /// Stops the evictor; parked reservations are refused.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let parked = std::mem::take(&mut state.parked);
        let urgent = std::mem::take(&mut state.urgent);
        let used = state.used;
        drop(state);
        self.work.notify_all();
        self.settled.notify_all();
        for (bytes, granted) in parked {
            granted(Err(self.full(bytes, used)));
        }
        for (_, tried) in urgent {
            tried(false);
        }
    }

    /// Waits for a task. Called only by the evictor, which then calls [`Self::evicted`].
    pub(super) fn next_task(&self) -> Task {
        let mut state = self.state.lock();
        state.busy = None;
        while !state.stopping && !self.has_work(&state) {
            self.settled.notify_all();
            if state.stuck.is_some() {
                // Closing a file sends no notification, so the evictor looks again from time to time.
                if self.work.wait_for(&mut state, self.marks.patience.max(RECHECK_INTERVAL)).timed_out() {
                    state.stuck = None;
                }
            } else {
                self.work.wait(&mut state);
            }
        }
        if state.stopping {
            return Task::Stop;
        }
        let start = Instant::now();
        state.busy = Some(start);
        let parked = self.first_parked(&state);
        let mut goal = self.marks.low.min(self.marks.quota.saturating_sub(parked));
        let urgent = std::mem::take(&mut state.urgent);
        let bytes: u64 = urgent.iter().map(|(bytes, _)| *bytes).sum();
        if bytes == 0 {
            return Task::EvictTo(goal, None);
        }
        goal = goal.min(state.used.saturating_sub(bytes.max(state.used / URGENT_PART)));
        state.trying.extend(urgent.into_iter().map(|(_, tried)| tried));
        Task::EvictTo(goal, state.parked.is_empty().then(|| start + URGENT_MAX))
    }

    /// Returns the bytes of the parked reservations that the next eviction makes room for. Not all at once, or a burst
    /// of requests would empty the cache.
    fn first_parked(&self, state: &State) -> u64 {
        let mut sum: u64 = 0;
        for (bytes, _) in &state.parked {
            let with = sum.saturating_add(*bytes);
            if sum > 0 && with > self.marks.quota / 4 {
                break;
            }
            sum = with;
        }
        sum
    }

    /// Grants or refuses parked reservations, after an eviction reached its goal or found all remaining objects in
    /// use.
    pub(super) fn evicted(self: &Arc<Self>, reached: bool) {
        let mut state = self.state.lock();
        let trying = std::mem::take(&mut state.trying);
        if !trying.is_empty() {
            state.no_room = (!reached).then(Instant::now);
        }
        let mut outcomes = Vec::new();
        let most = if reached { self.marks.quota } else { self.marks.hard };
        while let Some((bytes, granted)) = state.parked.pop_front() {
            let after = state.used.saturating_add(bytes);
            if after <= most {
                state.used = after;
                outcomes.push((granted, Ok(Reservation { space: self.clone(), bytes })));
            } else if reached && bytes <= self.marks.quota {
                // Came during the eviction; the next one is for it.
                state.parked.push_front((bytes, granted));
                break;
            } else {
                outcomes.push((granted, Err(self.full(bytes, state.used))));
            }
        }
        if state.used > self.marks.quota {
            state.over_quota += 1;
        }
        let stuck = !reached && state.used > self.marks.high;
        state.stuck = stuck.then(|| (Instant::now(), state.used));
        drop(state);
        for (granted, outcome) in outcomes {
            granted(outcome);
        }
        for tried in trying {
            tried(reached);
        }
    }

    fn has_work(&self, state: &State) -> bool {
        !state.parked.is_empty()
            || !state.urgent.is_empty()
            || (state.used > self.marks.high && state.stuck.is_none())
    }

    /// Permits the next eviction, once enough time has passed or enough was added since a failed one.
    fn forget_stuck(&self, state: &mut State) {
        let used = state.used;
        state.stuck.take_if(|(since, then)| {
            since.elapsed() >= self.marks.patience || used > then.saturating_add(self.marks.quota / 16)
        });
    }

    fn full(&self, needed: u64, used: u64) -> Cause {
        Cause::Full { needed, used, limit: self.marks.hard }
    }
}
