//! The thread that watches those who wait: deadlines, signals that came while waiting, reads to be asked
//! again. It looks at all of them a few times a second, and sleeps while there are none.
//!
//! A deadline counts from when bytes that the request waits for last arrived ([`Request::quiet_since`]): what takes long
//! because a link is slow is no failure.
//!
//! A worker that is held up by the tree, because a disk doesn't answer, can't tell that its request waits. So while
//! requests come it looks about once a second, too; it sleeps soundly only when none came between two looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_vfs::ErrorKind;
use parking_lot::{Condvar, Mutex};

use crate::caller::{self, Reader, Signal};
use crate::connection::Connection;
use crate::options::Deadlines;
use crate::waiting::{Question, Request};

/// How often those who wait are looked at: a killed caller is gone well within a second, whatever happens.
const TICK: Duration = Duration::from_millis(100);
/// How often it is looked whether anybody waits, while requests come.
const LOOK: Duration = Duration::from_secs(1);
/// How often while a notification is inside the kernel.
const SHORT_TICK: Duration = Duration::from_millis(10);

/// When the thread runs.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    over: AtomicBool,
    asleep: AtomicBool,
    /// Whether it sleeps until it is woken.
    soundly: AtomicBool,
    /// Whether a request came since the last look.
    stirred: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Clock {
    /// A request came, and may turn out to wait. Writes nothing but for the first one after a look.
    pub(crate) fn stir(&self) {
        let first = !self.stirred.load(Ordering::SeqCst) && !self.stirred.swap(true, Ordering::SeqCst);
        if first && self.soundly.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Something waits now.
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            *self.woken.lock() = true;
            self.wake.notify_one();
        }
    }

    /// The mount is gone.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Sleeps for `tick`; if nothing waits, until something does, or for `look` if something may.
    fn sleep(&self, tick: Duration, look: Duration, idle: impl Fn() -> bool) {
        let mut woken = self.woken.lock();
        *woken = false;
        self.asleep.store(true, Ordering::SeqCst);
        // Whoever adds a request looks at `asleep` afterwards; so either it wakes us or we see the request.
        if idle() {
            if self.stirred.swap(false, Ordering::SeqCst) {
                if !*woken && !self.is_over() {
                    self.wake.wait_for(&mut woken, look);
                }
            } else {
                self.soundly.store(true, Ordering::SeqCst);
                // Whoever stirs looks at `soundly` afterwards.
                while !*woken && !self.is_over() && !self.stirred.load(Ordering::SeqCst) {
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
    const fn of(&self, question: &Question) -> Duration {
        match question {
            Question::Attributes | Question::Itself => self.attributes,
            Question::List { .. } => self.list,
            Question::Read { .. } => self.read,
            Question::Lookup { .. }
            | Question::LinkTarget
            | Question::Xattr { .. }
            | Question::XattrNames { .. } => self.lookup,
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
        let (tick, look) = (quarter.clamp(SHORT_TICK, TICK), quarter.clamp(SHORT_TICK, LOOK));
        while !self.clock.is_over() {
            let tick = if self.notices.any() { SHORT_TICK } else { tick };
            self.clock.sleep(tick, look, || self.waiting.len() == 0);
            self.unblock_notices();
            self.look_at_waiting();
            self.make_room();
        }
    }

    fn look_at_waiting(self: &Arc<Self>) {
        let now = Instant::now();
        let due = |r: &Request| {
            r.interrupted.load(Ordering::Relaxed)
                || r.patient.load(Ordering::Relaxed)
                || r.again.lock().is_some_and(|at| at <= now)
                || (!self.waits_on(r) && self.is_late(r, now))
        };
        for request in self.waiting.select(due) {
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

    /// Asks the tree once more, on another thread: this one must never wait.
    fn ask_elsewhere(self: &Arc<Self>, request: Arc<Request>, now: Instant) {
        let (conn, asked) = (Arc::clone(self), Arc::clone(&request));
        let errand = move || {
            // It may have waited until its deadline.
            if !asked.is_answered() {
                conn.guard("a request", || conn.ask(&asked));
            }
        };
        if !self.errands.send(errand) {
            *request.again.lock() = Some(now + TICK);
        }
    }

    /// A read behind a page fault without a deadline of its own.
    fn waits_on(&self, request: &Request) -> bool {
        request.patient.load(Ordering::Relaxed) && self.options.deadlines.fault.is_none()
    }

    fn is_late(&self, request: &Request, now: Instant) -> bool {
        let limit = if request.patient.load(Ordering::Relaxed) {
            self.options.deadlines.fault.unwrap_or(Duration::MAX)
        } else {
            self.options.deadlines.of(&request.question)
        };
        // Most are asked about long before, so what they wait for is looked at only then.
        now.saturating_duration_since(request.since) >= limit
            && now.saturating_duration_since(request.quiet_since()) >= limit
    }

    /// Ends the wait of a request whose time was over before it was asked: its caller has waited behind another one
    /// that failed.
    pub(crate) fn end_if_late(self: &Arc<Self>, request: &Arc<Request>) {
        if !request.is_answered() && self.is_late(request, Instant::now()) {
            self.give_up(request);
        }
    }

    fn give_up(self: &Arc<Self>, request: &Arc<Request>) {
        let patient = request.patient.load(Ordering::Relaxed);
        let reads = matches!(request.question, Question::Read { .. });
        if !patient && reads && self.reader(request) == Reader::Faults {
            request.patient.store(true, Ordering::Relaxed);
            return;
        }
        if self.waiting.claim(request) {
            self.expire(request);
        }
    }

    /// An INTERRUPT came for a request that waits.
    pub(crate) fn interrupted(&self, request: &Arc<Request>) {
        request.interrupted.store(true, Ordering::Relaxed);
        self.heed_signal(request);
        // The kernel announces only the first signal; later ones are looked for.
        self.clock.wake();
    }

    fn heed_signal(&self, request: &Arc<Request>) {
        let end = match caller::signal(self.options.proc.as_deref(), request.caller) {
            Signal::Fatal | Signal::Unseen => true,
            Signal::Passing => false,
            Signal::Deliberate => {
                !matches!(request.question, Question::Read { .. }) || self.reader(request) == Reader::Calls
            }
        };
        if end && self.waiting.claim(request) {
            self.fail(request, &ErrorKind::Interrupted.into());
        }
    }

    /// If requests that wait have taken up all room for new ones, ends the oldest.
    fn make_room(self: &Arc<Self>) {
        let few = self.channels.len();
        if self.arena.free_slots() >= few {
            return;
        }
        let mut all = self.waiting.select(|_| true);
        all.sort_by_key(|r| r.since);
        for request in all.into_iter().take(few) {
            if self.waiting.claim(&request) {
                self.expire(&request);
            }
        }
    }
}
