//! Faults of responses, and the conditions for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Fault of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Replies with this status and a short text.
    Status(u16),
    /// Answers with status 503 and a Retry-After of this many seconds.
    RetryAfter(u64),
    /// Answers with status 302 and points to this address.
    Redirect(String),
    /// Replies 404 although the file exists.
    Missing,
    /// Answers 200 with a web page, as login portals do.
    Html,
    /// Flips all bits of one byte (counted modulo the length).
    FlipByte(u64),
    /// Sends only this many bytes, and announces this length.
    Truncate(u64),
    /// Announces the full length and closes the connection after this many bytes.
    CloseAfter(u64),
    /// Announces the full length and stalls after this many bytes.
    StallAfter(u64),
    /// Reads the request and never replies.
    NoAnswer,
    /// Waits before the first byte.
    Delay(Duration),
    /// Sends at most this many bytes a second.
    Slow(u64),
    /// Announces the full length, sends at most this many bytes a second, and closes the connection before the last byte.
    SlowCut(u64),
    /// Serves the file at another path.
    Swap(String),
    /// Serves these bytes instead.
    Content(Vec<u8>),
    /// Serves the whole file, also if the request has a range.
    Whole,
    /// Serves the whole file with this status.
    Called(u16),
    /// Serves the first bytes of the file as a part of it (status 206), though the request has no range.
    Part(u64),
}

type Picks = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// A fault in force; its counter tells whether it was met.
#[derive(Clone, Debug)]
pub struct Rule {
    state: Arc<State>,
}

struct State {
    picks: Picks,
    fault: Fault,
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    left: u64,
    hits: u64,
    lifted: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl Rule {
    /// Returns the number of requests that the fault affected.
    pub fn hits(&self) -> u64 {
        self.progress().hits
    }

    /// Panics if the fault was never met, because then the test proves nothing.
    pub fn assert_hit(&self) {
        assert!(self.hits() > 0, "no request met the fault {:?}", self.state.fault);
    }

    /// Waits until `wanted` requests were struck; panics after a minute.
    pub fn wait_for_hits(&self, wanted: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut progress = self.progress();
        while progress.hits < wanted {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let hits = progress.hits;
                // The thread that replies needs it to end.
                drop(progress);
                panic!("{:?} struck {hits} times, not {wanted}", self.state.fault);
            }
            progress = self.state.changed.wait_timeout(progress, left).unwrap().0;
        }
    }

    /// Ends the fault: later requests are served normally, and held responses are sent.
    pub fn lift(&self) {
        self.progress().lifted = true;
        self.state.changed.notify_all();
    }

    /// Returns the fault that applies to a request.
    pub(crate) fn fault(&self) -> &Fault {
        &self.state.fault
    }

    /// Sleeps for `time`, or until the rule is lifted; returns whether it was.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut progress = self.progress();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if progress.lifted || left.is_zero() {
                return progress.lifted;
            }
            progress = self.state.changed.wait_timeout(progress, left).unwrap().0;
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.state.progress.lock().unwrap()
    }

    fn strikes(&self, path: &str) -> bool {
        if !(self.state.picks)(path) {
            return false;
        }
        let mut progress = self.progress();
        if progress.lifted || progress.left == 0 {
            return false;
        }
        progress.left -= 1;
        progress.hits += 1;
        self.state.changed.notify_all();
        true
    }
}

/// All rules of a mirror; the oldest that picks a request decides.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Mutex<Vec<Rule>>,
}

impl Rules {
    pub(crate) fn add(&self, picks: Picks, fault: Fault, times: u64) -> Rule {
        let progress = Mutex::new(Progress { left: times, hits: 0, lifted: false });
        let rule = Rule { state: Arc::new(State { picks, fault, progress, changed: Condvar::new() }) };
        let mut rules = self.rules.lock().unwrap();
        // A long test lifts many.
        rules.retain(|rule| !rule.progress().lifted);
        rules.push(rule.clone());
        rule
    }

    pub(crate) fn striking(&self, path: &str) -> Option<Rule> {
        self.rules.lock().unwrap().iter().find(|rule| rule.strikes(path)).cloned()
    }

    pub(crate) fn lift_all(&self) {
        self.rules.lock().unwrap().iter().for_each(Rule::lift);
    }
}
