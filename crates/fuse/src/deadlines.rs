//! Watches requests in flight: deadlines, signals, and reads to retry. It checks all of them a few times a
//! second, and sleeps while there are none.
//!
//! A deadline counts from the last arrival of bytes that the request waits for ([`Request::quiet_since`]): a slow link
//! is no failure.
//!
//! A worker that the tree blocks, because a disk doesn't answer, can't report that its request waits. So while
//! requests come the thread also checks about once a second; it sleeps until woken only when none came between two
//! checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_vfs::ErrorKind;
use parking_lot::{Condvar, Mutex};

use crate::caller_state::{self, Reader, Signal};
use crate::connection::Connection;
use crate::inflight::{Request, TreeOp};
use crate::options::Deadlines;

/// Time between two checks of requests in flight: a killed caller is gone well within a second.
const TICK: Duration = Duration::from_millis(100);
/// Interval of checks for requests in flight, while requests arrive.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks while a notification is inside the kernel.
const SHORT_TICK: Duration = Duration::from_millis(10);

/// Timer of the thread.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    over: AtomicBool,
    asleep: AtomicBool,
    /// True if the thread sleeps until it is woken.
    soundly: AtomicBool,
    /// True if a request arrived since the last check.
    noted: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Timer {
    /// Records a request that may have to wait. Writes only for the first one after a check.
    pub(crate) fn note_activity(&self) {
        let first = !self.noted.load(Ordering::SeqCst) && !self.noted.swap(true, Ordering::SeqCst);
        if first && self.soundly.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the thread because a request waits now.
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            *self.woken.lock() = true;
            self.wake.notify_one();
        }
    }

    /// Ends the thread because the mount is gone.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Sleeps until the next check.
    fn sleep(&self, tick: Duration, look: Duration, idle: impl Fn() -> bool) {
        let mut woken = self.woken.lock();
        *woken = false;
        self.asleep.store(true, Ordering::SeqCst);
        // A worker that adds a request looks at `asleep` afterwards; so either it wakes this thread or this thread
        // sees the request.
        if idle() {
            if self.noted.swap(false, Ordering::SeqCst) {
                if !*woken && !self.is_over() {
                    self.wake.wait_for(&mut woken, look);
                }
            } else {
                self.soundly.store(true, Ordering::SeqCst);
                // A worker that notes activity looks at `soundly` afterwards.
                while !*woken && !self.is_over() && !self.noted.load(Ordering::SeqCst) {
                    self.wake.wait(&mut woken);
                }
                self.soundly.store(false, Ordering::SeqCst);
            }
        }
        self.asleep.store(false, Ordering::SeqCst);
        if !self.is_over() {
            self.wake.wait_for(&mut woken, tick);
        }
    }
}

impl Deadlines {
    const fn of(&self, op: &TreeOp) -> Duration {
        match op {
            TreeOp::Attributes | TreeOp::Itself => self.attributes,
            TreeOp::List { .. } => self.list,
            TreeOp::Read { .. } => self.read,
            TreeOp::Lookup { .. } | TreeOp::LinkTarget | TreeOp::Xattr { .. } | TreeOp::XattrNames { .. } => {
                self.lookup
            }
        }
    }

    fn shortest(&self) -> Duration {
        let all = [self.attributes, self.list, self.read, self.lookup];
        all.into_iter().chain(self.fault).min().unwrap_or(TICK)
    }
}

impl Connection {
    /// Runs until the mount is gone.
    pub(crate) fn watch_over(self: &Arc<Self>) {
        let quarter = self.options.deadlines.shortest() / 4;
        let (tick, look) = (quarter.clamp(SHORT_TICK, TICK), quarter.clamp(SHORT_TICK, POLL_INTERVAL));
        while !self.timer.is_over() {
            let tick = if self.invalidations.any() { SHORT_TICK } else { tick };
            self.timer.sleep(tick, look, || self.inflight.len() == 0);
            self.unblock_invalidations();
            self.check_inflight();
            self.make_room();
        }
    }

    fn check_inflight(self: &Arc<Self>) {
        let now = Instant::now();
        let due = |r: &Request| {
            r.interrupted.load(Ordering::Relaxed)
                || r.patient.load(Ordering::Relaxed)
                || r.again.lock().is_some_and(|at| at <= now)
                || (!self.waits_on(r) && self.is_late(r, now))
        };
        for request in self.inflight.select(due) {
            if request.interrupted.load(Ordering::Relaxed) {
                self.heed_signal(&request);
            }
            if request.patient.load(Ordering::Relaxed) {
                // The kernel says nothing of a reader that was killed while it waited for read-ahead.
                self.end_without_reader(&request);
            }
            if !self.waits_on(&request) && self.is_late(&request, now) {
                self.give_up(&request);
            }
            let again = request.again.lock().take_if(|at| *at <= now).is_some();
            if again && !request.is_answered() {
                self.ask_elsewhere(request, now);
            }
        }
    }

    /// Calls the tree again on another thread: this one must never wait.
    fn ask_elsewhere(self: &Arc<Self>, request: Arc<Request>, now: Instant) {
        let (conn, asked) = (Arc::clone(self), Arc::clone(&request));
        let task = move || {
            // It may have waited until its deadline.
            if !asked.is_answered() {
                conn.catch_panic("a request", || conn.ask(&asked));
            }
        };
        if !self.background.run(task) {
            *request.again.lock() = Some(now + TICK);
        }
    }

    /// Returns true if the request is a read for a page fault without a deadline.
    fn waits_on(&self, request: &Request) -> bool {
        request.patient.load(Ordering::Relaxed) && self.options.deadlines.fault.is_none()
    }

    fn is_late(&self, request: &Request, now: Instant) -> bool {
        let limit = if request.patient.load(Ordering::Relaxed) {
            self.options.deadlines.fault.unwrap_or(Duration::MAX)
        } else {
            self.options.deadlines.of(&request.op)
        };
        // Most requests are younger than their limit, so their progress is read only after it.
        now.saturating_duration_since(request.since) >= limit
            && now.saturating_duration_since(request.quiet_since()) >= limit
    }

    /// Ends a request whose inherited deadline has passed: its caller waited before, for another one that
    /// failed.
    pub(crate) fn end_if_late(self: &Arc<Self>, request: &Arc<Request>) {
        if !request.is_answered() && self.is_late(request, Instant::now()) {
            self.give_up(request);
        }
    }

    fn give_up(self: &Arc<Self>, request: &Arc<Request>) {
        let patient = request.patient.load(Ordering::Relaxed);
        let reads = matches!(request.op, TreeOp::Read { .. });
        if !patient && reads && self.reader(request) == Reader::Faults {
            request.patient.store(true, Ordering::Relaxed);
            return;
        }
        if self.inflight.claim(request) {
            self.expire(request);
        }
    }

    /// Handles an INTERRUPT for a request in flight.
    pub(crate) fn interrupted(&self, request: &Arc<Request>) {
        request.interrupted.store(true, Ordering::Relaxed);
        self.heed_signal(request);
        // The kernel announces only the first signal; later ones are looked for.
        self.timer.wake();
    }

    fn heed_signal(&self, request: &Arc<Request>) {
        let end = match caller_state::signal(self.options.proc.as_deref(), request.caller) {
            Signal::Fatal | Signal::Unseen => true,
            Signal::Passing => false,
            Signal::Deliberate => {
                !matches!(request.op, TreeOp::Read { .. }) || self.reader(request) == Reader::Calls
            }
        };
        if end && self.inflight.claim(request) {
            self.fail(request, &ErrorKind::Interrupted.into());
        }
    }

    /// Ends the oldest requests if requests in flight occupy all slots.
    fn make_room(self: &Arc<Self>) {
        let few = self.channels.len();
        if self.table.memory().free_slots() >= few {
            return;
        }
        let mut all = self.inflight.select(|_| true);
        all.sort_by_key(|r| r.since);
        for request in all.into_iter().take(few) {
            if self.inflight.claim(&request) {
                self.expire(&request);
            }
        }
    }
}
