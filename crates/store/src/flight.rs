//! One miss, one fetch.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::done::Done;
use crate::error::StoreError;
use crate::handle::Handle;
use crate::objects::Shared;
use crate::urgency::{Priority, Urgency};
use crate::wanted::{CacheKey, Wanted};

/// The objects that are being fetched, and who waits for each. One per cache, so that requests for the same
/// object of several repositories meet.
#[derive(Default)]
pub(crate) struct Flights {
    under_way: Mutex<HashMap<CacheKey, Flight>>,
}

struct Flight {
    priority: Priority,
    waiters: Vec<Waiter>,
}

/// Somebody who waits for an object.
pub(crate) struct Waiter {
    pub(crate) store: Arc<Shared>,
    pub(crate) wanted: Wanted,
    pub(crate) done: Done<Handle>,
}

impl Flights {
    /// Joins the flight for this object. Returns its priority if there was none, so that the caller leads.
    pub(crate) fn join(&self, waiter: Waiter) -> Option<Priority> {
        let key = waiter.wanted.key();
        let urgency = waiter.wanted.urgency;
        let mut under_way = self.under_way.lock();
        if let Some(flight) = under_way.get_mut(&key) {
            flight.waiters.push(waiter);
            let priority = flight.priority.clone();
            drop(under_way);
            if urgency == Urgency::Demand {
                priority.raise();
            }
            return None;
        }
        let priority = Priority::new(urgency);
        under_way.insert(key, Flight { priority: priority.clone(), waiters: vec![waiter] });
        Some(priority)
    }

    /// Ends the flight and tells everyone.
    pub(crate) fn land(&self, key: &CacheKey, outcome: Result<Handle, StoreError>) {
        let flight = self.under_way.lock().remove(key);
        let mut waiters = flight.map(|flight| flight.waiters).unwrap_or_default();
        match outcome {
            Ok(handle) => {
                let last = waiters.pop();
                for waiter in waiters {
                    waiter.done.give(waiter.store.fitting(&waiter.wanted, handle.clone()));
                }
                // Not a clone: once the last is told, nothing of ours is in use any more.
                if let Some(waiter) = last {
                    waiter.done.give(waiter.store.fitting(&waiter.wanted, handle));
                }
            }
            Err(error) => fail(waiters, &error),
        }
    }
}

/// Tells of a failure. Those who joined with other conditions than the leader's (another repository, another
/// size) may succeed where it failed, so they start over.
fn fail(waiters: Vec<Waiter>, error: &StoreError) {
    let mut waiters = waiters.into_iter();
    let Some(leader) = waiters.next() else { return };
    let (same, other): (Vec<_>, Vec<_>) = waiters.partition(|waiter| {
        Arc::ptr_eq(&waiter.store, &leader.store)
            && waiter.wanted.size == leader.wanted.size
            && waiter.wanted.limit == leader.wanted.limit
            && waiter.wanted.alternative_path == leader.wanted.alternative_path
    });
    leader.store.traffic.note_failure(error);
    leader.done.err(error.clone());
    for waiter in same {
        waiter.done.err(error.clone().on(waiter.wanted.label()));
    }
    for waiter in other {
        waiter.store.get(waiter.wanted, waiter.done);
    }
}
