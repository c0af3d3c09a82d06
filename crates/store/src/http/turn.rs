//! A place among the requests that a server is sent.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::host::Host;
use crate::source::Fetch;
use crate::urgency::Urgency;

/// What a new connection brings in its first round trip: ten segments (RFC 6928). In each further one it brings about
/// as much more as came before.
const FIRST_ROUND: u64 = 14_600;

/// One request under way, and what is still to come of its answer; free again on drop.
pub(super) struct Turn {
    pub(super) host: Rc<Host>,
    urgency: Cell<Urgency>,
    /// Bytes still to come.
    coming: Cell<u64>,
    /// Bytes that came, with those of the answer before it on the same connection.
    came: Cell<u64>,
    /// What the host counts of it.
    counted: Cell<u64>,
}

impl Turn {
    pub(super) fn take(host: Rc<Host>, urgency: Urgency, expected: u64) -> Self {
        let active = host.active_as(urgency);
        active.set(active.get() + 1);
        let (coming, came, counted) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let turn = Self { host, urgency: Cell::new(urgency), coming, came, counted };
        turn.expect(expected);
        turn
    }

    pub(super) fn urgency(&self) -> Urgency {
        self.urgency.get()
    }

    /// Counts a prefetch that became a demand as one.
    fn follow(&self, fetch: &Fetch) {
        if self.urgency.get() == Urgency::Prefetch && fetch.priority.urgency() == Urgency::Demand {
            self.urgency.set(Urgency::Demand);
            self.host.prefetch_active.set(self.host.prefetch_active.get() - 1);
            self.host.demand_active.set(self.host.demand_active.get() + 1);
        }
    }

    /// So many bytes are still to come.
    fn expect(&self, bytes: u64) {
        self.coming.set(bytes);
        let total = &self.host.coming;
        let on_path = self.on_path();
        total.set(total.get() - self.counted.replace(on_path) + on_path);
    }

    /// How many of them can be on the path at once. A large object on a new connection comes in small portions at
    /// first; counted whole it would keep others from filling what it leaves free.
    fn on_path(&self) -> u64 {
        self.coming.get().min(FIRST_ROUND.saturating_add(self.came.get()))
    }

    /// The request goes over a connection that brought so many bytes just before.
    pub(super) fn goes_over(&self, brought: u64) {
        self.came.set(brought);
        self.expect(self.coming.get());
    }

    /// What its connection has brought.
    pub(super) fn came(&self) -> u64 {
        self.came.get()
    }

    /// An answer that brings the object begins, after a wait; `announced` is its length.
    pub(super) fn answered(&self, waited: Duration, announced: Option<u64>, fetch: &Fetch) {
        let now = Instant::now();
        self.host.path.borrow_mut().answered(waited, now);
        self.host.window.borrow_mut().answered(waited, self.host.most_prefetched(), now);
        if let Some(bytes) = announced {
            self.expect(bytes);
            if let Some(plain) = fetch.plain_size {
                self.host.learn(plain, bytes);
            }
        }
    }

    /// Bytes came; others may start now.
    pub(super) fn received(&self, bytes: u64) {
        self.host.path.borrow_mut().delivered(bytes, Instant::now());
        self.host.window.borrow_mut().delivered(bytes);
        self.came.set(self.came.get().saturating_add(bytes));
        self.expect(self.coming.get().saturating_sub(bytes));
        if self.host.has_queued_prefetches() {
            self.host.start();
        }
    }

    /// Stands still while this is a prefetch that alone is more than the path holds and something is demanded;
    /// tells whether it did.
    pub(super) async fn give_way(&self, fetch: &Fetch) -> bool {
        let mut stood = false;
        loop {
            self.follow(fetch);
            let fits = self.on_path() <= self.host.path.borrow().budget();
            if fits || self.urgency.get() == Urgency::Demand || !self.host.is_demanded() {
                return stood;
            }
            stood = true;
            self.host.calm.notified().await;
        }
    }
}

impl Host {
    fn active_as(&self, urgency: Urgency) -> &Cell<usize> {
        match urgency {
            Urgency::Demand => &self.demand_active,
            Urgency::Prefetch => &self.prefetch_active,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let active = self.host.active_as(self.urgency.get());
        active.set(active.get() - 1);
        self.expect(0);
        if !self.host.is_demanded() {
            self.host.calm.notify_waiters();
        }
        self.host.start();
        if self.host.active() == 0 {
            self.host.path.borrow_mut().idle();
            self.host.window.borrow_mut().idle();
        }
    }
}
