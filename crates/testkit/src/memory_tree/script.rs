//! Script that makes calls of a [`super::MemoryTree`] slow, failing or panicking.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use esker_vfs::{ErrorKind, Requester};

/// Kind of a call on a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`esker_vfs::Tree::lookup`]; its path is that of the name to look up.
    Lookup,
    /// [`esker_vfs::Tree::attributes`].
    Attributes,
    /// [`esker_vfs::Tree::list`].
    List,
    /// [`esker_vfs::Tree::read`].
    Read,
    /// [`esker_vfs::Tree::link_target`].
    LinkTarget,
    /// [`esker_vfs::Tree::xattr`].
    Xattr,
    /// [`esker_vfs::Tree::xattr_names`].
    XattrNames,
}

/// Effect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call waits for [`Script::resume`] or [`Script::fail_parked`].
    Park,
    /// The call fails.
    Fail(ErrorKind),
    /// The call panics.
    Panic,
    /// The call blocks its thread, as on a hung disk, until [`Script::clear`]; then it completes.
    Hang,
}

/// Answers a parked call, with an error if one is given.
type Answer = Box<dyn FnOnce(Option<ErrorKind>) + Send>;

#[derive(Default)]
struct Plan {
    /// Next effect on each call; a count of `None` means every time.
    actions: HashMap<(Call, String), (Action, Option<usize>)>,
    parked: Vec<(Call, String, Answer)>,
    calls: HashMap<(Call, String), usize>,
}

/// Script of a tree's replies.
#[derive(Default)]
pub struct Script {
    plan: Mutex<Plan>,
    changed: Condvar,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// Arrival of bytes for parked calls.
#[derive(Default)]
enum Arrivals {
    #[default]
    None,
    Now,
    /// Bytes arrived until this time.
    Until(Instant),
}

impl Script {
    /// Simulates a continuous arrival of bytes for parked calls, or ends it.
    pub fn keep_arriving(&self, arriving: bool) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        *arrivals = if arriving { Arrivals::Now } else { Arrivals::Until(Instant::now()) };
    }

    /// Makes the deadline of a call follow the simulated arrivals.
    pub(super) fn follow_progress(&self, requester: &Requester) {
        let arrivals = Arc::clone(&self.arrivals);
        requester.follow(move || match *arrivals.lock().unwrap_or_else(PoisonError::into_inner) {
            Arrivals::None => None,
            Arrivals::Now => Some(Instant::now()),
            Arrivals::Until(last) => Some(last),
        });
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `action` to calls on `path` from now on.
    pub fn set(&self, call: Call, path: &str, action: Action) {
        self.plan().actions.insert((call, path.into()), (action, None));
    }

    /// Applies `action` to the next `times` calls on `path`.
    pub fn set_times(&self, call: Call, path: &str, action: Action, times: usize) {
        self.plan().actions.insert((call, path.into()), (action, Some(times)));
    }

    /// Answers new calls on `path` at once again. Parked calls stay parked; hanging calls continue.
    pub fn clear(&self, call: Call, path: &str) {
        self.plan().actions.remove(&(call, path.into()));
        self.changed.notify_all();
    }

    /// Returns the number of parked calls of this kind.
    pub fn parked(&self, call: Call) -> usize {
        self.plan().parked.iter().filter(|(c, ..)| *c == call).count()
    }

    /// Returns the number of calls of this kind on `path`.
    pub fn calls(&self, call: Call, path: &str) -> usize {
        self.plan().calls.get(&(call, path.into())).copied().unwrap_or_default()
    }

    /// Waits until `count` calls of this kind are parked; returns false after `limit`.
    pub fn until_parked(&self, call: Call, count: usize, limit: Duration) -> bool {
        self.until(limit, |plan| plan.parked.iter().filter(|(c, ..)| *c == call).count() >= count)
    }

    /// Waits until `count` calls of this kind were made on `path`; returns false after `limit`.
    pub fn until_called(&self, call: Call, path: &str, count: usize, limit: Duration) -> bool {
        let key = (call, path.to_owned());
        self.until(limit, |plan| plan.calls.get(&key).is_some_and(|&n| n >= count))
    }

    fn until(&self, limit: Duration, holds: impl Fn(&Plan) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut plan = self.plan();
        while !holds(&plan) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            plan = self.changed.wait_timeout(plan, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Answers all parked calls of this kind normally.
    pub fn resume(&self, call: Call) {
        self.answer(call, None);
    }

    /// Fails all parked calls of this kind.
    pub fn fail_parked(&self, call: Call, kind: ErrorKind) {
        self.answer(call, Some(kind));
    }

    fn answer(&self, call: Call, forced: Option<ErrorKind>) {
        let mut plan = self.plan();
        let (chosen, rest) = std::mem::take(&mut plan.parked).into_iter().partition(|(c, ..)| *c == call);
        plan.parked = rest;
        drop(plan);
        let chosen: Vec<(Call, String, Answer)> = chosen;
        for (_, _, answer) in chosen {
            answer(forced);
        }
    }

    pub(super) fn run(&self, call: Call, path: String, answer: Answer) {
        let key = (call, path);
        let mut plan = self.plan();
        *plan.calls.entry(key.clone()).or_default() += 1;
        self.changed.notify_all();
        let action = plan.actions.get_mut(&key).and_then(|(action, times)| match times {
            None => Some(*action),
            Some(0) => None,
            Some(left) => {
                *left -= 1;
                Some(*action)
            }
        });
        match action {
            None => {
                drop(plan);
                answer(None);
            }
            Some(Action::Fail(kind)) => {
                drop(plan);
                answer(Some(kind));
            }
            Some(Action::Hang) => {
                let hangs = |plan: &mut Plan| matches!(plan.actions.get(&key), Some((Action::Hang, _)));
                drop(self.changed.wait_while(plan, hangs).unwrap_or_else(PoisonError::into_inner));
                answer(None);
            }
            Some(Action::Park) => plan.parked.push((call, key.1, answer)),
            Some(Action::Panic) => {
                drop(plan);
                panic!("the script says so");
            }
        }
    }
}
