//! One server: its connections, and whose turn it is.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::exchange::{self, Connection};
use super::network::World;
use super::url::BaseUrl;
use crate::done::Done;
use crate::error::Cause;
use crate::source::{Fetch, Stored};
use crate::urgency::Urgency;

/// A request that waits or is served.
pub(super) struct Job {
    pub(super) base: Arc<BaseUrl>,
    pub(super) fetch: Fetch,
    pub(super) done: Done<Stored>,
}

/// A server.
pub(super) struct Host {
    pub(super) world: Rc<World>,
    pub(super) name: String,
    pub(super) port: u16,
    demand: RefCell<VecDeque<Job>>,
    prefetch: RefCell<VecDeque<Job>>,
    demand_active: Cell<usize>,
    prefetch_active: Cell<usize>,
    idle: RefCell<Vec<(Instant, Connection)>>,
    /// Wakes prefetches that stand still.
    calm: Notify,
}

impl Host {
    pub(super) fn new(world: Rc<World>, base: &BaseUrl) -> Rc<Self> {
        Rc::new(Self {
            world,
            name: base.host.clone(),
            port: base.port,
            demand: RefCell::default(),
            prefetch: RefCell::default(),
            demand_active: Cell::new(0),
            prefetch_active: Cell::new(0),
            idle: RefCell::default(),
            calm: Notify::new(),
        })
    }

    /// Queues a request and starts what may start.
    pub(super) fn add(self: &Rc<Self>, job: Job) {
        match job.fetch.priority.urgency() {
            Urgency::Demand => self.demand.borrow_mut().push_back(job),
            Urgency::Prefetch => self.prefetch.borrow_mut().push_back(job),
        }
        self.start();
    }

    /// Some queued or running prefetch became a demand.
    pub(super) fn raised(self: &Rc<Self>) {
        let queued = std::mem::take(&mut *self.prefetch.borrow_mut());
        let is_demand = |job: &Job| job.fetch.priority.urgency() == Urgency::Demand;
        let (raised, still): (Vec<_>, Vec<_>) = queued.into_iter().partition(is_demand);
        self.prefetch.borrow_mut().extend(still);
        self.demand.borrow_mut().extend(raised);
        self.start();
        self.calm.notify_waiters();
    }

    fn start(self: &Rc<Self>) {
        loop {
            let options = &self.world.options;
            let next = if self.demand_active.get() < options.connections.max(1) {
                self.demand.borrow_mut().pop_front()
            } else {
                None
            };
            let next = next.or_else(|| {
                let may =
                    !self.is_demanded() && self.prefetch_active.get() < options.prefetch_connections.max(1);
                if may { self.prefetch.borrow_mut().pop_front() } else { None }
            });
            let Some(job) = next else { return };
            if job.fetch.priority.give_up_if_pointless() {
                let error = job.fetch.error(Cause::CalledOff);
                job.done.err(error);
                continue;
            }
            let turn = Turn::take(self.clone(), job.fetch.priority.urgency());
            tokio::task::spawn_local(async move {
                let Job { base, fetch, done } = job;
                let outcome = exchange::attempt(&base, &fetch, &turn).await;
                // First, so that whoever is told may find the turn free.
                drop(turn);
                done.give(outcome.map_err(|cause| fetch.error(cause)));
            });
        }
    }

    fn is_demanded(&self) -> bool {
        self.demand_active.get() > 0 || !self.demand.borrow().is_empty()
    }

    /// A connection that is open and free, the one used last.
    pub(super) fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let oldest = Instant::now().checked_sub(self.world.options.idle);
        idle.retain(|(since, connection)| {
            oldest.is_none_or(|oldest| *since >= oldest) && !connection.is_closed()
        });
        idle.pop().map(|(_, connection)| connection)
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, connection: Connection) {
        if !connection.is_closed() {
            self.idle.borrow_mut().push((Instant::now(), connection));
        }
    }
}

/// A place among the active transfers of a server; free again on drop.
pub(super) struct Turn {
    pub(super) host: Rc<Host>,
    urgency: Cell<Urgency>,
}

impl Turn {
    fn take(host: Rc<Host>, urgency: Urgency) -> Self {
        host.active(urgency).set(host.active(urgency).get() + 1);
        Self { host, urgency: Cell::new(urgency) }
    }

    /// Counts a prefetch that became a demand as one.
    fn follow(&self, fetch: &Fetch) {
        if self.urgency.get() == Urgency::Prefetch && fetch.priority.urgency() == Urgency::Demand {
            self.urgency.set(Urgency::Demand);
            self.host.prefetch_active.set(self.host.prefetch_active.get() - 1);
            self.host.demand_active.set(self.host.demand_active.get() + 1);
        }
    }

    /// Stands still while this is a prefetch and something is demanded; tells whether it did.
    pub(super) async fn give_way(&self, fetch: &Fetch) -> bool {
        let mut stood = false;
        loop {
            self.follow(fetch);
            if self.urgency.get() == Urgency::Demand || !self.host.is_demanded() {
                return stood;
            }
            stood = true;
            self.host.calm.notified().await;
        }
    }
}

impl Host {
    fn active(&self, urgency: Urgency) -> &Cell<usize> {
        match urgency {
            Urgency::Demand => &self.demand_active,
            Urgency::Prefetch => &self.prefetch_active,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let active = self.host.active(self.urgency.get());
        active.set(active.get() - 1);
        if !self.host.is_demanded() {
            self.host.calm.notify_waiters();
        }
        self.host.start();
    }
}
