//! Demand before prefetch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::errand::Errand;

/// How much somebody waits for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody yet; it must not delay anything that somebody waits for.
    Prefetch,
    /// A program waits.
    Demand,
}

/// The urgency of one request on its way. It rises when a demand joins a prefetch, unless the prefetch was
/// given up before.
#[derive(Clone)]
pub struct Priority(Arc<Inner>);

struct Inner {
    demand: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The user who demanded it first.
    user: Option<u32>,
    on_join: Vec<Box<dyn Fn(Option<u32>) + Send>>,
    on_raise: Vec<Box<dyn FnOnce() + Send>>,
    /// What it is prefetched for. Without any it is never pointless.
    errands: Vec<Errand>,
    given_up: bool,
    /// Whether a server did not answer it in time and others went first.
    withheld: bool,
}

impl Priority {
    /// Starts with an urgency.
    pub fn new(urgency: Urgency) -> Self {
        let demand = AtomicBool::new(urgency == Urgency::Demand);
        Self(Arc::new(Inner { demand, state: Mutex::default() }))
    }

    /// A demand of this user.
    pub(crate) fn demand(user: Option<u32>) -> Self {
        let priority = Self::new(Urgency::Demand);
        priority.0.state.lock().user = user;
        priority
    }

    /// The user whose share of a server it counts against; none for the node itself and for prefetches.
    pub(crate) fn user(&self) -> Option<u32> {
        self.0.state.lock().user
    }

    /// Makes it a demand of a further user: raises it, and tells everyone who queues it.
    pub(crate) fn joined(&self, user: Option<u32>) {
        let mut state = self.0.state.lock();
        if self.urgency() == Urgency::Prefetch {
            state.user = user;
            drop(state);
            return self.raise();
        }
        if state.user != user {
            state.on_join.iter().for_each(|tell| tell(user));
        }
    }

    /// Counts it against the share of this user from now on.
    pub(crate) fn counts_for(&self, user: Option<u32>) {
        self.0.state.lock().user = user;
    }

    /// Notes that a server did not answer it in time, so that others go first.
    pub(crate) fn withheld(&self) {
        self.0.state.lock().withheld = true;
    }

    /// Whether a server did not answer it in time.
    pub(crate) fn is_withheld(&self) -> bool {
        self.0.state.lock().withheld
    }

    /// Calls `tell` with each further user who demands it; it must not lead back here.
    pub(crate) fn on_join(&self, tell: impl Fn(Option<u32>) + Send + 'static) {
        self.0.state.lock().on_join.push(Box::new(tell));
    }

    /// A prefetch that has a point as long as one of its errands is open.
    pub(crate) fn prefetch(errand: Errand) -> Self {
        let priority = Self::new(Urgency::Prefetch);
        priority.0.state.lock().errands.push(errand);
        priority
    }

    /// The urgency now.
    pub fn urgency(&self) -> Urgency {
        if self.0.demand.load(Ordering::Acquire) { Urgency::Demand } else { Urgency::Prefetch }
    }

    /// Makes it a demand and tells everyone who queues it. Too late for what was given up: who joined it has
    /// to start over.
    pub fn raise(&self) {
        let told = {
            let mut state = self.0.state.lock();
            if state.given_up {
                return;
            }
            self.0.demand.store(true, Ordering::Release);
            std::mem::take(&mut state.on_raise)
        };
        for tell in told {
            tell();
        }
    }

    /// Calls `tell` when the urgency rises; at once if it is a demand already.
    pub fn on_raise(&self, tell: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if self.urgency() == Urgency::Prefetch {
            state.on_raise.push(Box::new(tell));
        } else {
            drop(state);
            tell();
        }
    }

    /// Adds a reason to prefetch it.
    pub(crate) fn also_for(&self, errand: Errand) {
        let mut state = self.0.state.lock();
        state.errands.retain(|errand| !errand.is_over());
        state.errands.push(errand);
    }

    /// Gives up a prefetch that nobody demands, for good; false if it is a demand.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.0.state.lock();
        state.given_up = self.urgency() == Urgency::Prefetch;
        state.given_up
    }

    /// Gives up a prefetch if all its errands are over.
    pub(crate) fn give_up_if_pointless(&self) -> bool {
        let mut state = self.0.state.lock();
        let over = !state.errands.is_empty() && state.errands.iter().all(Errand::is_over);
        state.given_up |= over && self.urgency() == Urgency::Prefetch;
        state.given_up
    }

    /// Whether it was given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.0.state.lock().given_up
    }
}

impl fmt::Debug for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Priority").field(&self.urgency()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_is_not_raised_and_the_other_way_round() {
        let priority = Priority::new(Urgency::Prefetch);
        assert!(priority.give_up());
        priority.raise();
        assert_eq!(priority.urgency(), Urgency::Prefetch);
        let priority = Priority::new(Urgency::Prefetch);
        priority.raise();
        assert!(!priority.give_up() && !priority.is_given_up());
    }

    #[test]
    fn a_prefetch_has_a_point_as_long_as_one_errand_is_open() {
        let errands = [Errand::new(), Errand::new()];
        let priority = Priority::prefetch(errands[0].clone());
        priority.also_for(errands[1].clone());
        errands[0].end();
        assert!(!priority.give_up_if_pointless());
        errands[1].end();
        assert!(priority.give_up_if_pointless());
        let demanded = Priority::prefetch(errands[0].clone());
        demanded.raise();
        assert!(!demanded.give_up_if_pointless());
        assert!(!Priority::new(Urgency::Prefetch).give_up_if_pointless());
    }
}
