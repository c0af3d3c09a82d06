//! Counts the requests in flight to one server, and the bytes that they will bring.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::fair_queue::{End, FairQueue, User};
use super::user_share::Users;
use crate::priority::Urgency;

/// Maximum number of large prefetches in flight. Several, as a loss makes a connection slow for a while; not many, as
/// each takes an equal share of the path from the next demand.
const LARGE_AT_ONCE: usize = 6;

/// Requests in flight to a server.
#[derive(Default)]
pub(super) struct HostLoad {
    /// Demands by user.
    users: RefCell<Users>,
    demands: Cell<usize>,
    prefetches: Cell<usize>,
    large_prefetches: Cell<usize>,
    withheld: Cell<usize>,
    /// Estimated bytes of responses in flight, and those of demands among them.
    coming: Cell<u64>,
    demanded: Cell<u64>,
    /// Wakes prefetches that are held back.
    calm: Notify,
}

impl HostLoad {
    fn of(&self, urgency: Urgency) -> &Cell<usize> {
        match urgency {
            Urgency::Demand => &self.demands,
            Urgency::Prefetch => &self.prefetches,
        }
    }

    /// Counts a request of a user.
    pub(super) fn begin(&self, urgency: Urgency, user: User) {
        if urgency == Urgency::Demand {
            self.users.borrow_mut().begin(user);
        }
        self.of(urgency).update(|count| count + 1);
    }

    /// Removes a request.
    pub(super) fn end(&self, urgency: Urgency, user: User) {
        self.of(urgency).update(|count| count - 1);
        if urgency == Urgency::Demand {
            self.users.borrow_mut().end(user);
        }
    }

    /// Counts a prefetch, with its expected bytes, as a demand of a user.
    pub(super) fn raise(&self, user: User, expected: u64) {
        self.begin(Urgency::Demand, user);
        self.end(Urgency::Prefetch, user);
        self.demanded.update(|bytes| bytes + expected);
    }

    /// Replaces the expected bytes of a request.
    pub(super) fn expect(&self, urgency: Urgency, before: u64, now: u64) {
        self.coming.update(|bytes| bytes - before + now);
        if urgency == Urgency::Demand {
            self.demanded.update(|bytes| bytes - before + now);
        }
    }

    /// Counts a large prefetch.
    pub(super) fn begin_large(&self) {
        self.large_prefetches.update(|count| count + 1);
    }

    pub(super) fn end_large(&self) {
        self.large_prefetches.update(|count| count - 1);
    }

    /// Returns true if another large response may be prefetched.
    pub(super) fn may_begin_large(&self) -> bool {
        self.large_prefetches.get() < LARGE_AT_ONCE
    }

    /// Counts a request that was withdrawn before and is sent again.
    pub(super) fn begin_withheld(&self) {
        self.withheld.update(|count| count + 1);
    }

    pub(super) fn end_withheld(&self) {
        self.withheld.update(|count| count - 1);
    }

    pub(super) fn withheld(&self) -> usize {
        self.withheld.get()
    }

    /// Returns the number of all requests.
    pub(super) fn active(&self) -> usize {
        self.demands.get() + self.prefetches.get()
    }

    pub(super) fn has_demands(&self) -> bool {
        self.demands.get() > 0
    }

    /// Returns the number of demands of a user.
    pub(super) fn demands_of(&self, user: User) -> usize {
        self.users.borrow().of(user)
    }

    /// Returns the estimated bytes of all responses.
    pub(super) fn coming(&self) -> u64 {
        self.coming.get()
    }

    /// Returns the estimated bytes of responses that programs wait for.
    pub(super) fn demanded(&self) -> u64 {
        self.demanded.get()
    }

    /// Takes the next queued demand whose user may have another; the places are the used and the allowed ones, and
    /// whether one request fills the path.
    pub(super) fn next<T>(
        &self,
        queue: &mut FairQueue<T>,
        places: (usize, usize, bool),
        cost: impl Fn(&T) -> u64,
        end: End,
    ) -> Option<T> {
        let users = self.users.borrow();
        let places = users.places(places, queue.users());
        queue.next(|user, _| places.may_start(user), cost, end)
    }

    /// Wakes prefetches that are held back.
    pub(super) fn calm(&self) {
        self.calm.notify_waiters();
    }

    /// Waits until prefetches are woken, or for this long.
    pub(super) async fn until_calm(&self, limit: Duration) {
        // Whether it was woken or the time is over, the caller looks again.
        let _ = timeout(limit, self.calm.notified()).await;
    }
}
