//! Orders demands before prefetches.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::cancel_token::CancelToken;

/// Urgency of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Urgency {
    /// A prefetch: no program waits for it, and it must not delay demands.
    Prefetch,
    /// A demand: a program waits for it.
    Demand,
}

/// Priority of one request. It rises when a demand joins a prefetch, unless the prefetch was given up before.
#[derive(Clone)]
pub struct Priority(Arc<Inner>);

struct Inner {
    demand: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// User of the first demand.
    user: Option<u32>,
    on_join: Vec<Box<dyn Fn(Option<u32>) + Send>>,
    on_raise: Vec<Box<dyn FnOnce() + Send>>,
    /// Cancel tokens of a prefetch. Without any it is never cancelled.
    tokens: Vec<CancelToken>,
    given_up: bool,
    /// True if a server delayed the request and other requests went first.
    withheld: bool,
}

impl Priority {
    /// Starts with an urgency.
    pub fn new(urgency: Urgency) -> Self {
        let demand = AtomicBool::new(urgency == Urgency::Demand);
        Self(Arc::new(Inner { demand, state: Mutex::default() }))
    }

    /// Makes the priority of a demand of this user.
    pub(crate) fn demand(user: Option<u32>) -> Self {
        let priority = Self::new(Urgency::Demand);
        priority.0.state.lock().user = user;
        priority
    }

    /// Returns the user whose share of a server the request counts against; none for the node itself and for
    /// prefetches.
    pub(crate) fn user(&self) -> Option<u32> {
        self.0.state.lock().user
    }

    /// Adds a demand of a further user: raises the priority and notifies the queues.
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

    /// Counts the request against the share of this user from now on.
    pub(crate) fn counts_for(&self, user: Option<u32>) {
        self.0.state.lock().user = user;
    }

    /// Records that a server delayed the request, so that others go first.
    pub(crate) fn withheld(&self) {
        self.0.state.lock().withheld = true;
    }

    /// Returns whether a server did not answer the request in time.
    pub(crate) fn is_withheld(&self) -> bool {
        self.0.state.lock().withheld
    }

    /// Calls `tell` with each further user who demands the object; it must not call back into the priority.
    pub(crate) fn on_join(&self, tell: impl Fn(Option<u32>) + Send + 'static) {
        self.0.state.lock().on_join.push(Box::new(tell));
    }

    /// Makes the priority of a prefetch that lasts until all its tokens are cancelled.
    pub(crate) fn prefetch(token: CancelToken) -> Self {
        let priority = Self::new(Urgency::Prefetch);
        priority.0.state.lock().tokens.push(token);
        priority
    }

    /// Returns the current urgency.
    pub fn urgency(&self) -> Urgency {
        if self.0.demand.load(Ordering::Acquire) { Urgency::Demand } else { Urgency::Prefetch }
    }

    /// Turns the request into a demand and notifies the queues. Has no effect on a prefetch that was given up:
    /// requests that joined it start over.
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

    /// Calls `tell` when the urgency rises; at once if the request is a demand.
    pub fn on_raise(&self, tell: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if self.urgency() == Urgency::Prefetch {
            state.on_raise.push(Box::new(tell));
        } else {
            drop(state);
            tell();
        }
    }

    /// Adds the cancel token of another caller: the prefetch continues until all of its tokens are cancelled.
    pub(crate) fn also_for(&self, token: CancelToken) {
        let mut state = self.0.state.lock();
        state.tokens.retain(|token| !token.is_cancelled());
        state.tokens.push(token);
    }

    /// Gives up a prefetch permanently; returns false if it is a demand.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.0.state.lock();
        state.given_up = self.urgency() == Urgency::Prefetch;
        state.given_up
    }

    /// Gives up a prefetch if all its tokens are cancelled.
    pub(crate) fn give_up_if_pointless(&self) -> bool {
        let mut state = self.0.state.lock();
        let over = !state.tokens.is_empty() && state.tokens.iter().all(CancelToken::is_cancelled);
        state.given_up |= over && self.urgency() == Urgency::Prefetch;
        state.given_up
    }

    /// Returns true if the prefetch was cancelled.
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
    fn a_dropped_prefetch_is_not_raised_nor_a_raised_one_dropped() {
        let priority = Priority::new(Urgency::Prefetch);
        assert!(priority.give_up());
        priority.raise();
        assert_eq!(priority.urgency(), Urgency::Prefetch);
        let priority = Priority::new(Urgency::Prefetch);
        priority.raise();
        assert!(!priority.give_up() && !priority.is_given_up());
    }

    #[test]
    fn a_prefetch_runs_while_one_token_is_not_cancelled() {
        let tokens = [CancelToken::new(), CancelToken::new()];
        let priority = Priority::prefetch(tokens[0].clone());
        priority.also_for(tokens[1].clone());
        tokens[0].cancel();
        assert!(!priority.give_up_if_pointless());
        tokens[1].cancel();
        assert!(priority.give_up_if_pointless());
        let demanded = Priority::prefetch(tokens[0].clone());
        demanded.raise();
        assert!(!demanded.give_up_if_pointless());
        assert!(!Priority::new(Urgency::Prefetch).give_up_if_pointless());
    }
}
