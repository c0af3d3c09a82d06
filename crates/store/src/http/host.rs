//! One server: whose turn it is.
//!
//! A demand starts at once, before all prefetches, as long as fewer requests are under way than one server is
//! sent at most. A prefetch starts while fewer are under way than the [`Window`] and fewer bytes than the
//! [`Path`] holds. So whatever is demanded finds a path without a queue of ours, and a place among the requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Site;
use super::connections::Connections;
use super::dial::Endpoint;
use super::exchange;
use super::network::World;
use super::path::Path;
use super::pieces;
use super::turn::Turn;
use super::window::Window;
use crate::done::Done;
use crate::error::{Blame, Cause};
use crate::source::{Fetch, Stored};
use crate::urgency::Urgency;

/// What a server at hand is sent at most, a part of which only demands may use.
const FOR_DEMANDS: usize = 4;
/// Bytes of bodies that nobody has worked on yet beyond which nothing is prefetched: the cores are behind.
const UNWORKED_MAX: u64 = 32 << 20;
/// How soon it is looked again whether they have caught up.
const CAUGHT_UP: Duration = Duration::from_millis(2);
/// What an object of unknown size is taken for.
const UNKNOWN_SIZE: u64 = 16 << 10;
/// The part of its size that an object takes when stored, until some were seen.
const USUAL_RATIO: f64 = 0.4;

/// A request that waits or is served.
pub(super) struct Job {
    /// In the order of arrival, and the name of a queued prefetch.
    pub(super) number: u64,
    pub(super) site: Arc<Site>,
    pub(super) fetch: Fetch,
    pub(super) done: Done<Stored>,
    /// Whether it is not to be part of a batch, because it was and did not come.
    pub(super) alone: bool,
}

/// A server.
pub(super) struct Host {
    pub(super) world: Rc<World>,
    pub(super) endpoint: Endpoint,
    pub(super) connections: Connections,
    pub(super) path: RefCell<Path>,
    pub(super) window: RefCell<Window>,
    demand: RefCell<VecDeque<Job>>,
    pub(super) prefetch: RefCell<BTreeMap<u64, Job>>,
    pub(super) demand_active: Cell<usize>,
    pub(super) prefetch_active: Cell<usize>,
    /// Bytes of answers that can be on the path now, as far as known, and those of demands among them.
    pub(super) coming: Cell<u64>,
    pub(super) demanded: Cell<u64>,
    /// Whether its connections are one.
    pub(super) multiplexes: Cell<bool>,
    /// Large prefetches under way.
    pub(super) large: Cell<usize>,
    /// Stored bytes for each plain one.
    ratio: Cell<f64>,
    /// Wakes prefetches that stand still.
    pub(super) calm: Notify,
    waking: Cell<bool>,
}

impl Host {
    pub(super) fn new(world: Rc<World>, site: &Site) -> Rc<Self> {
        Rc::new(Self {
            world,
            endpoint: site.endpoint.clone(),
            connections: Connections::default(),
            path: RefCell::new(Path::new()),
            window: RefCell::new(Window::new()),
            demand: RefCell::default(),
            prefetch: RefCell::default(),
            demand_active: Cell::new(0),
            prefetch_active: Cell::new(0),
            coming: Cell::new(0),
            demanded: Cell::new(0),
            multiplexes: Cell::new(false),
            large: Cell::new(0),
            ratio: Cell::new(USUAL_RATIO),
            calm: Notify::new(),
            waking: Cell::new(false),
        })
    }

    /// Queues a request.
    pub(super) fn add(&self, job: Job) {
        match job.fetch.priority.urgency() {
            Urgency::Demand => self.demand.borrow_mut().push_back(job),
            Urgency::Prefetch => drop(self.prefetch.borrow_mut().insert(job.number, job)),
        }
    }

    /// A queued or running prefetch became a demand.
    pub(super) fn raised(&self, number: u64) {
        let job = self.prefetch.borrow_mut().remove(&number);
        if let Some(job) = job {
            self.demand.borrow_mut().push_back(job);
        }
        self.calm.notify_waiters();
    }

    /// Hands back what is queued on a way that is to be left, so that it may take another.
    pub(super) fn leave(&self, site: &Arc<Site>) {
        let mut leaving = Vec::new();
        {
            let (mut demand, mut prefetch) = (self.demand.borrow_mut(), self.prefetch.borrow_mut());
            let queued = std::mem::take(&mut *demand);
            for job in queued {
                if Arc::ptr_eq(&job.site, site) { leaving.push(job) } else { demand.push_back(job) }
            }
            let queued = std::mem::take(&mut *prefetch);
            for (number, job) in queued {
                if Arc::ptr_eq(&job.site, site) {
                    leaving.push(job)
                } else {
                    drop(prefetch.insert(number, job))
                }
            }
        }
        // Outside the borrows: whoever is told may come back at once.
        for job in leaving {
            let error = job.fetch.error(Cause::Left);
            job.done.err(error);
        }
    }

    /// Starts what may start, and opens connections for what will soon.
    pub(super) fn attend(self: &Rc<Self>) {
        if self.is_far() {
            let next = self.prefetch.borrow().first_key_value().map(|(_, job)| job.site.clone());
            if let Some(site) = next {
                self.open_ahead(&site, self.prefetch.borrow().len().min(self.most_prefetched()));
            }
        }
        self.start();
    }

    /// Sees to it that on a long way a few connections are ready for what comes next.
    fn keep_ready(self: &Rc<Self>, site: &Arc<Site>) {
        if self.is_far() && !self.has_queued_prefetches() {
            self.open_ahead(site, self.world.options.spare);
        }
    }

    pub(super) fn start(self: &Rc<Self>) {
        while let Some(job) = self.next() {
            let mut jobs = self.gather(job);
            if jobs.len() > 1 {
                self.start_batch(jobs);
                continue;
            }
            let Some(job) = jobs.pop() else { continue };
            let plan = self.plan(&job);
            // What comes in pieces is on the path with them.
            let expected = if plan.is_some() { 0 } else { self.expected(&job.fetch) };
            let turn = Turn::take(self.clone(), job.fetch.priority.urgency(), expected);
            tokio::task::spawn_local(async move {
                let Job { site, fetch, done, .. } = job;
                let outcome = match plan {
                    Some(plan) => pieces::fetch(&site, &fetch, &turn, plan).await,
                    None => exchange::attempt(&site, &fetch, &turn).await,
                };
                turn.host.note(&site, &outcome);
                turn.host.keep_ready(&site);
                // First, so that whoever is told may find the turn free.
                drop(turn);
                done.give(outcome.map_err(|cause| fetch.error(cause)));
            });
        }
    }

    fn next(self: &Rc<Self>) -> Option<Job> {
        if self.active() >= self.most() {
            return None;
        }
        let demand = self.demand.borrow_mut().pop_front();
        demand.or_else(|| self.next_prefetch())
    }

    fn next_prefetch(self: &Rc<Self>) -> Option<Job> {
        while self.has_queued_prefetches() && self.may_prefetch() {
            let number = self.first_prefetch()?;
            let job = self.prefetch.borrow_mut().remove(&number)?;
            if !job.fetch.priority.give_up_if_pointless() {
                return Some(job);
            }
            let error = job.fetch.error(Cause::CalledOff);
            job.done.err(error);
        }
        None
    }

    /// The first in the queue that isn't too large for now.
    fn first_prefetch(&self) -> Option<u64> {
        let queued = self.prefetch.borrow();
        let may = |job: &Job| self.may_prefetch_large(self.expected(&job.fetch));
        queued.iter().find(|(_, job)| may(job)).map(|(number, _)| *number)
    }

    /// Whether one more prefetch may be sent for now.
    fn may_prefetch(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        let held = self.window.borrow().held();
        if let Some(until) = held.filter(|until| *until > now) {
            self.wake_at(until);
            return false;
        }
        if self.world.budget.used() > UNWORKED_MAX {
            self.wake_at(now + CAUGHT_UP);
            return false;
        }
        let active = self.active();
        if active >= self.window.borrow().size(self.most_prefetched()) {
            self.window.borrow_mut().is_full();
            return false;
        }
        let mut path = self.path.borrow_mut();
        if active > 0 && self.coming.get() >= path.budget() {
            path.is_full();
            return false;
        }
        true
    }

    fn wake_at(self: &Rc<Self>, when: Instant) {
        if self.waking.replace(true) {
            return;
        }
        let host = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(when).await;
            if let Some(host) = host.upgrade() {
                host.waking.set(false);
                host.start();
            }
        });
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.demand_active.get() > 0 || !self.demand.borrow().is_empty()
    }

    pub(super) fn has_queued_prefetches(&self) -> bool {
        !self.prefetch.borrow().is_empty()
    }

    pub(super) fn active(&self) -> usize {
        self.demand_active.get() + self.prefetch_active.get()
    }

    pub(super) fn is_far(&self) -> bool {
        self.is_farther_than(self.world.options.far)
    }

    pub(super) fn is_farther_than(&self, limit: Duration) -> bool {
        self.path.borrow().round_trip().is_some_and(|round_trip| round_trip >= limit)
    }

    /// Requests and connections that this server is sent at most.
    pub(super) fn most(&self) -> usize {
        let options = &self.world.options;
        if self.is_far() { options.connections_far } else { options.connections_near }.max(1)
    }

    /// How many may be under way for another prefetch to start.
    pub(super) fn most_prefetched(&self) -> usize {
        let most = self.most();
        (most - most / FOR_DEMANDS).max(1)
    }

    /// How many bytes an object will probably be.
    pub(super) fn expected(&self, fetch: &Fetch) -> u64 {
        let stored = |plain: u64| (plain as f64 * self.ratio.get()) as u64;
        fetch.plain_size.map_or(UNKNOWN_SIZE, stored).min(fetch.limit)
    }

    /// Learns from an object how much smaller they are when stored.
    pub(super) fn learn(&self, plain: u64, stored: u64) {
        if plain > 0 {
            let seen = (stored as f64 / plain as f64).clamp(0.01, 1.0);
            // Large objects tell more.
            let weight = (plain as f64 / 1e6).clamp(0.01, 0.2);
            self.ratio.set(self.ratio.get() * (1.0 - weight) + seen * weight);
        }
    }

    /// Takes note of how a request ended.
    pub(super) fn note(&self, site: &Site, outcome: &Result<Stored, Cause>) {
        if let Err(cause) = outcome
            && cause.may_pass()
            && cause.blame() == Blame::Host
        {
            let wait = if let Cause::Overloaded { after, .. } = cause { Some(*after) } else { None };
            self.window.borrow_mut().failed(wait, Instant::now());
        }
        let (path, window) = (self.path.borrow(), self.window.borrow().size(self.most_prefetched()));
        site.counts.path(path.round_trip().unwrap_or_default(), path.rate(), window);
    }
}
