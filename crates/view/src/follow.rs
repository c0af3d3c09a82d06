//! Follows the repository: a thread that checks for a new head and moves the view to it.
//!
//! The order matters. First the new versions of all catalogs in use are fetched; then the revision is exchanged; then
//! the thread waits until the last answer from the old one is sent; only then it reports the changes to the mounts. So
//! no answer from the old revision can arrive after its invalidation.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use esker_store::HeadKeeper;
use esker_vfs::{ErrorKind, TreeError};
use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::diff::{self, RevisionDiff};
use crate::head::Head;
use crate::records;
use crate::revision::{Label, Revision};
use crate::revision_hint::RevisionHint;

/// Pause between a failed check and the next one, as in the reference client.
const RETRY: Duration = Duration::from_secs(180);

/// Time limit for sending a reply whose value is known.
///
/// It never takes noticeable time, since threads that answer may not block; the limit only keeps a bug there from
/// stopping all updates.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a check for a new head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// Revision that is shown now.
    pub revision: u64,
    /// True if it differs from the revision shown before.
    pub changed: bool,
    /// Error of the check, if the view stays with the last known head.
    pub offline: Option<String>,
}

/// Handle of the follower's thread.
pub(crate) struct Follower {
    core: Arc<Core>,
    heads: Option<HeadKeeper>,
    ttl: Option<Duration>,
    ttl_max: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Number of requested and of finished checks.
    asked: u64,
    finished: u64,
    outcome: Result<Refreshed, TreeError>,
    /// Hint that a newer revision may exist.
    hint: RevisionHint,
    stop: bool,
}

impl Follower {
    /// Starts to follow; `heads` is `None` for a pinned view.
    pub(crate) fn start(
        core: Arc<Core>,
        heads: Option<HeadKeeper>,
        (ttl, ttl_max): (Option<Duration>, Option<Duration>),
        first: Duration,
    ) -> std::io::Result<Arc<Self>> {
        let nothing = Err(ErrorKind::Unsupported.into());
        let state = Mutex::new(State {
            asked: 0,
            finished: 0,
            outcome: nothing,
            hint: RevisionHint::default(),
            stop: false,
        });
        let ttl_max = ttl_max.unwrap_or(Duration::MAX);
        let follower = Arc::new(Self { core, heads, ttl, ttl_max, state, changed: Condvar::new() });
        if follower.heads.is_some() {
            let thread = Arc::clone(&follower);
            let first = if first == Duration::MAX { first } else { first.min(ttl_max) };
            std::thread::Builder::new().name("follow".into()).spawn(move || thread.run(first))?;
        }
        Ok(follower)
    }

    /// Checks for a new head now and waits for the result.
    ///
    /// Concurrent calls share one check, but none is answered by a check that began before the call.
    pub(crate) fn refresh(&self, deadline: Option<Instant>) -> Result<Refreshed, TreeError> {
        if self.heads.is_none() {
            let revision = self.core.current.load().label.number;
            return Ok(Refreshed { revision, changed: false, offline: None });
        }
        let mut state = self.state.lock();
        state.asked += 1;
        let mine = state.asked;
        self.changed.notify_all();
        while state.finished < mine && !state.stop {
            match deadline {
                Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => {
                    let what = format!("the head of {}", self.core.name);
                    return Err(TreeError::on(ErrorKind::TimedOut, what));
                }
                Some(_) => {}
                None => self.changed.wait(&mut state),
            }
        }
        if state.finished < mine { Err(ErrorKind::Interrupted.into()) } else { state.outcome.clone() }
    }

    /// Requests a check, without waiting for it.
    pub(crate) fn check_soon(&self) {
        self.state.lock().asked += 1;
        self.changed.notify_all();
    }

    /// Accepts an unverified hint that a revision was published; an unknown revision causes a check.
    pub(crate) fn hint_revision(&self, revision: Option<u64>) {
        let shown = self.core.current.load().label.number;
        self.state.lock().hint.heard(revision, shown, Instant::now());
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    fn run(&self, first: Duration) {
        let Some(heads) = &self.heads else { return };
        let _stopped = StopOnExit(self);
        let mut pause = first;
        loop {
            let Some(asked) = self.sleep(Instant::now().checked_add(pause)) else { return };
            let (outcome, next) = self.look(heads);
            pause = next;
            let mut state = self.state.lock();
            state.finished = asked;
            let changed = outcome.as_ref().is_ok_and(|refreshed| refreshed.changed);
            state.outcome = outcome;
            state.hint.looked(self.core.current.load().label.number, changed, Instant::now());
            self.changed.notify_all();
        }
    }

    /// Sleeps until a check is requested or due; returns how many requests it answers, or `None` to stop.
    fn sleep(&self, until: Option<Instant>) -> Option<u64> {
        let mut state = self.state.lock();
        while !state.stop && state.asked == state.finished {
            let due = state.hint.due().into_iter().chain(until).min();
            match due {
                Some(until) if self.changed.wait_until(&mut state, until).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(&mut state),
            }
        }
        (!state.stop).then_some(state.asked)
    }

    fn look(&self, heads: &HeadKeeper) -> (Result<Refreshed, TreeError>, Duration) {
        let outcome = Head::look(heads).and_then(|head| {
            self.core.note_sighting(&head);
            let pause = self.ttl.unwrap_or(head.ttl).min(self.ttl_max);
            let changed = self.core.switch_to(&head)?;
            let revision = self.core.current.load().label.number;
            let offline = head.offline.map(|offline| offline.reason);
            let pause = if offline.is_some() { pause.min(RETRY) } else { pause };
            Ok((Refreshed { revision, changed, offline }, pause))
        });
        match outcome {
            Ok((refreshed, pause)) => (Ok(refreshed), pause),
            Err(error) => {
                self.core.failures.add("the repository's head".to_owned(), &error, None);
                (Err(error), self.ttl.unwrap_or(RETRY).min(RETRY))
            }
        }
    }
}

/// Wakes all waiting calls, however the thread ends.
struct StopOnExit<'a>(&'a Follower);

impl Drop for StopOnExit<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Core {
    fn note_sighting(&self, head: &Head) {
        let mut head_status = self.head_status.lock();
        head_status.offline = head.offline.clone();
        if head.offline.is_none() {
            head_status.checked = SystemTime::now();
        }
    }

    /// Moves to the revision of a head; returns false if it is the present one.
    fn switch_to(self: &Arc<Self>, head: &Head) -> Result<bool, TreeError> {
        let old = self.current.load_full();
        if old.root_hash() == head.root && old.label.number == head.revision {
            return Ok(false);
        }
        let label = Label {
            serial: old.label.serial + 1,
            number: head.revision,
            published: head.published,
            tag: None,
            since: SystemTime::now(),
        };
        let root = self.catalogs.attach_soon(head.root_catalog()).wait()?;
        let new = Revision::new(label, root, &self.attribute_rules, self.attached_max)?;
        let vanished = self.vanished.lock();
        let diff = diff::compare(&self.attribute_rules, &self.catalogs, &old, &new, &vanished)?;
        drop(vanished);
        drop(old);
        self.switch(Arc::new(new), diff);
        Ok(true)
    }

    fn switch(&self, new: Arc<Revision>, diff: RevisionDiff) {
        if let Some(journal) = &self.journal {
            records::begin_change(journal);
        }
        let (sender, gone) = channel();
        let old = self.current.swap(Arc::clone(&new));
        let seen = old.seen();
        old.when_gone(sender);
        drop(old);
        if gone.recv_timeout(ANSWER_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let cause =
                "an answer from the previous revision is still outstanding; cached entries may be outdated";
            self.failures.add_text("the change of revision".to_owned(), cause.to_owned());
        }
        self.listings.clear();
        self.counters.switches.count();
        let changes = diff.complete(seen.by_path(), &new, &mut self.vanished.lock());
        if !changes.is_empty() {
            self.tell(&changes);
        }
        if let Some(journal) = &self.journal {
            new.record(journal, &self.catalogs, self.vanished.lock().keys());
        }
    }
}
