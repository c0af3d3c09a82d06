//! Schedules the requests to one server.
//!
//! A demand starts at once, before all prefetches, while fewer requests are in flight than the server may have at once;
//! above that, users take turns ([`FairQueue`], [`Users`]). Requests the server doesn't answer make room for others
//! ([`Awaiting`]): they are withdrawn and sent again from a queue that has a small share of the slots while others
//! wait. A prefetch starts while fewer requests are in flight than the [`ConcurrencyWindow`] allows and fewer bytes than
//! the [`PathEstimate`] gives. So a demand finds a path without a queue of ours, and a request slot.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::attempt;
use super::awaiting::Awaiting;
use super::concurrency_window::ConcurrencyWindow;
use super::connections::Connections;
use super::context::NetworkContext;
use super::dial::Endpoint;
use super::fair_queue::{End, FairQueue, User};
use super::in_flight::InFlight;
use super::low_speed::ServerTotals;
use super::path_estimate::PathEstimate;
use super::pieces;
use super::site::Site;
use super::user_share::{Throughput, Users};
use crate::callback::Callback;
use crate::error::{Blame, Cause};
use crate::priority::Urgency;
use crate::progress::Progress;
use crate::transport::source::{Fetch, Stored};

/// Divisor of the places: this part of them is for withdrawn requests, while others wait.
const AGAIN_PART: usize = 4;
/// Number of round trips without an answer after which a request may be stalled.
const STALL_ROUNDS: u32 = 8;
/// Divisor of the requests in flight: one in this many is for demands only.
const FOR_DEMANDS: usize = 4;
/// Unprocessed bytes of bodies above which nothing is prefetched: the cores are behind.
const UNWORKED_MAX: u64 = 32 << 20;
/// Pause before checking again whether the cores have caught up.
const CAUGHT_UP: Duration = Duration::from_millis(2);
/// Assumed size of an object of unknown size.
const UNKNOWN_SIZE: u64 = 16 << 10;
/// Assumed ratio of stored to plain size, until some objects were fetched.
const USUAL_RATIO: f64 = 0.4;

/// A request that waits or is served.
pub(super) struct Job {
    /// Order of arrival; also the key of a queued prefetch.
    pub(super) number: u64,
    pub(super) site: Arc<Site>,
    pub(super) fetch: Fetch,
    pub(super) done: Callback<Stored>,
    /// True if the request must not be batched again, because it did not arrive in a batch.
    pub(super) alone: bool,
}

/// A server.
pub(super) struct Host {
    pub(super) context: Rc<NetworkContext>,
    pub(super) endpoint: Endpoint,
    pub(super) connections: Connections,
    pub(super) path: RefCell<PathEstimate>,
    pub(super) window: RefCell<ConcurrencyWindow>,
    demand: RefCell<FairQueue<Job>>,
    /// Withdrawn demands, which the server had not answered.
    again: RefCell<FairQueue<Job>>,
    again_active: Cell<usize>,
    /// Progress of all requests, including withheld ones, which counts as progress of queued requests.
    pub(super) progress: Progress,
    pub(super) again_progress: Progress,
    pub(super) users: RefCell<Users>,
    pub(super) throughput: RefCell<Throughput>,
    pub(super) awaiting: Awaiting,
    /// Received bytes of bodies.
    pub(super) received: Cell<u64>,
    /// True if the next demand taken while some are stalled is the newest.
    newest: Cell<bool>,
    pub(super) prefetch: RefCell<BTreeMap<u64, Job>>,
    pub(super) demand_active: Cell<usize>,
    pub(super) prefetch_active: Cell<usize>,
    /// Estimated bytes of responses in flight, and those of demands among them.
    pub(super) coming: Cell<u64>,
    pub(super) demanded: Cell<u64>,
    /// True if the server multiplexes requests on one connection.
    pub(super) multiplexes: Cell<bool>,
    /// Large prefetches in flight.
    pub(super) large: Cell<usize>,
    /// Ratio of stored to plain size.
    ratio: Cell<f64>,
    /// Wakes prefetches that are held back.
    pub(super) calm: Notify,
    waking: Cell<bool>,
    /// Whether a check for stalled requests is scheduled.
    looking: Cell<bool>,
}

impl Host {
    pub(super) fn new(context: Rc<NetworkContext>, site: &Site) -> Rc<Self> {
        Rc::new(Self {
            context,
            endpoint: site.endpoint.clone(),
            connections: Connections::default(),
            path: RefCell::new(PathEstimate::new()),
            window: RefCell::new(ConcurrencyWindow::new()),
            demand: RefCell::default(),
            again: RefCell::default(),
            again_active: Cell::new(0),
            progress: Progress::default(),
            again_progress: Progress::default(),
            users: RefCell::default(),
            throughput: RefCell::default(),
            awaiting: Awaiting::default(),
            received: Cell::new(0),
            newest: Cell::new(false),
            looking: Cell::new(false),
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
            Urgency::Demand => self.demand(job),
            Urgency::Prefetch => drop(self.prefetch.borrow_mut().insert(job.number, job)),
        }
    }

    /// Turns a queued or running prefetch into a demand.
    pub(super) fn raised(&self, number: u64) {
        let job = self.prefetch.borrow_mut().remove(&number);
        if let Some(job) = job {
            self.demand(job);
        }
        self.calm.notify_waiters();
    }

    /// Queues a demand.
    fn demand(&self, job: Job) {
        let user = job.fetch.priority.user();
        let (queue, progress) = self.queue_of(&job.fetch);
        job.fetch.progress.follow(progress);
        queue.borrow_mut().push(user, job);
    }

    fn queue_of(&self, fetch: &Fetch) -> (&RefCell<FairQueue<Job>>, &Progress) {
        if fetch.priority.is_withheld() {
            (&self.again, &self.again_progress)
        } else {
            (&self.demand, &self.progress)
        }
    }

    /// Notes a further user of a request: a queued one moves to the user whose turn comes sooner.
    pub(super) fn joined(&self, number: u64, user: User) {
        for queue in [&self.demand, &self.again] {
            let mut queue = queue.borrow_mut();
            let waiting = |user| queue.len_of(user) + self.users.borrow().of(user);
            let mine = waiting(user);
            let longer: HashSet<User> = queue.users().filter(|other| waiting(*other) > mine).collect();
            let moves = |job: &Job| job.number == number && longer.contains(&job.fetch.priority.user());
            for job in queue.take(moves) {
                job.fetch.priority.counts_for(user);
                queue.push(user, job);
            }
        }
    }

    /// Returns queued requests of a route that was marked down, so that they take another.
    pub(super) fn requeue(&self, site: &Arc<Site>) {
        let mut leaving = Vec::new();
        {
            let mut prefetch = self.prefetch.borrow_mut();
            for queue in [&self.demand, &self.again] {
                leaving.extend(queue.borrow_mut().take(|job| Arc::ptr_eq(&job.site, site)));
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
        // Outside the borrows: the callback may queue requests at once.
        for job in leaving {
            self.leaves_queue(&job.fetch);
            let error = job.fetch.error(Cause::RouteDown);
            job.done.err(error);
        }
    }

    /// Starts requests, and opens connections in advance.
    pub(super) fn schedule(self: &Rc<Self>) {
        if self.is_far() {
            let next = self.prefetch.borrow().first_key_value().map(|(_, job)| job.site.clone());
            if let Some(site) = next {
                self.open_ahead(&site, self.prefetch.borrow().len().min(self.most_prefetched()));
            }
        }
        self.start();
    }

    /// Keeps a few connections open on a path with a long round trip.
    fn keep_ready(self: &Rc<Self>, site: &Arc<Site>) {
        if self.is_far() && !self.has_queued_prefetches() {
            self.open_ahead(site, self.context.options.spare);
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
            // An object in pieces is counted with its pieces.
            let expected = if plan.is_some() { 0 } else { self.expected(&job.fetch) };
            let in_flight = InFlight::take(self.clone(), &job.fetch.priority, expected);
            self.leaves_queue(&job.fetch);
            if let Some(watch) = &job.fetch.watch {
                watch.sent(Instant::now());
            }
            let again = job.fetch.priority.is_withheld();
            self.again_active.set(self.again_active.get() + usize::from(again));
            tokio::task::spawn_local(async move {
                let outcome = match plan {
                    Some(plan) => pieces::fetch(&job.site, &job.fetch, &in_flight, plan).await,
                    None => attempt::attempt(&job.site, &job.fetch, &in_flight).await,
                };
                let host = in_flight.host.clone();
                host.again_active.set(host.again_active.get() - usize::from(again));
                // If another route is left to try, fail-over tries it.
                if matches!(outcome, Err(Cause::TakenBack)) && !job.fetch.replaceable {
                    job.fetch.priority.withheld();
                    host.demand(job);
                    return drop(in_flight);
                }
                host.note(&job.site, &outcome);
                host.keep_ready(&job.site);
                // First, so that the callback finds the place free.
                drop(in_flight);
                let Job { fetch, done, .. } = job;
                done.give(outcome.map_err(|cause| fetch.error(cause)));
            });
        }
    }

    /// Records that a request left its queue.
    fn leaves_queue(&self, fetch: &Fetch) {
        [&self.progress, &self.again_progress].into_iter().for_each(|queue| fetch.progress.unfollow(queue));
    }

    fn next(self: &Rc<Self>) -> Option<Job> {
        self.next_demand().or_else(|| {
            let free = self.active() < self.most();
            free.then(|| self.next_prefetch()).flatten()
        })
    }

    fn next_demand(self: &Rc<Self>) -> Option<Job> {
        if self.demand.borrow().is_empty() && self.again.borrow().is_empty() {
            return None;
        }
        let (now, most, after) = (Instant::now(), self.most(), self.stalls_after());
        let stalled = self.awaiting.stalled(after, now);
        // Stalled requests up to this number don't count as busy; further ones are withdrawn.
        let busy = self.active() - stalled.min(most / 2).min(self.active());
        // One of those is always under way, so that a server that is merely slow is waited for.
        let again = || self.next_of(&self.again, busy, End::Oldest);
        if self.again_active.get() == 0
            && let Some(job) = again()
        {
            return Some(job);
        }
        let end = match stalled > 0 && self.newest.get() {
            // Most of those that have waited for long may be withheld, too: every other one comes from the other end.
            true => End::Newest,
            false => End::Oldest,
        };
        if let Some(job) = self.next_of(&self.demand, busy, end) {
            self.newest.set(end == End::Oldest);
            return Some(job);
        }
        if self.demand.borrow().is_empty() {
            return (busy < most).then(again).flatten();
        }
        if self.again_active.get() < most / AGAIN_PART
            && busy < most
            && let Some(job) = again()
        {
            return Some(job);
        }
        self.awaiting.take_back(after, now);
        self.look_for_stalled(after, now);
        None
    }

    /// Returns the next request in a queue whose user may start one.
    fn next_of(&self, queue: &RefCell<FairQueue<Job>>, busy: usize, end: End) -> Option<Job> {
        let mut queue = queue.borrow_mut();
        let users = self.users.borrow();
        let places = users.places((busy, self.most(), self.is_narrow()), queue.users());
        queue.next(|user, _| places.may_start(user), |job| self.expected(&job.fetch), end)
    }

    /// Returns true if the server is near and slow, so that one request fills the path.
    fn is_narrow(&self) -> bool {
        !self.is_far() && self.throughput.borrow().is_slow()
    }

    /// Returns the time without a response after which a request is stalled.
    fn stalls_after(&self) -> Duration {
        let round_trip = self.path.borrow().round_trip().unwrap_or_default();
        self.context.options.stall.max(round_trip * STALL_ROUNDS)
    }

    /// Schedules the next check for stalled requests.
    fn look_for_stalled(self: &Rc<Self>, after: Duration, now: Instant) {
        if let Some(next) = self.awaiting.next_at(after, now) {
            self.wake_at(next, |host| &host.looking);
        }
    }

    /// Returns the totals of the server.
    pub(super) fn totals(&self) -> ServerTotals {
        ServerTotals { bytes: self.received.get(), active: self.active() as u64 }
    }

    fn next_prefetch(self: &Rc<Self>) -> Option<Job> {
        while self.has_queued_prefetches() && self.may_prefetch() {
            let number = self.first_prefetch()?;
            let job = self.prefetch.borrow_mut().remove(&number)?;
            if !job.fetch.priority.give_up_if_pointless() {
                return Some(job);
            }
            let error = job.fetch.error(Cause::Cancelled);
            job.done.err(error);
        }
        None
    }

    /// Returns the first queued prefetch that isn't too large for now.
    fn first_prefetch(&self) -> Option<u64> {
        let queued = self.prefetch.borrow();
        let may = |job: &Job| self.may_prefetch_large(self.expected(&job.fetch));
        queued.iter().find(|(_, job)| may(job)).map(|(number, _)| *number)
    }

    /// Returns true if one more prefetch may be sent now.
    fn may_prefetch(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        let held = self.window.borrow().held();
        if let Some(until) = held.filter(|until| *until > now) {
            self.wake_at(until, |host| &host.waking);
            return false;
        }
        if self.context.budget.used() > UNWORKED_MAX {
            self.wake_at(now + CAUGHT_UP, |host| &host.waking);
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

    /// Schedules a start of requests at `when`, unless `is_set` shows that one is scheduled already.
    fn wake_at(self: &Rc<Self>, when: Instant, is_set: fn(&Self) -> &Cell<bool>) {
        if is_set(self).replace(true) {
            return;
        }
        let host = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(when).await;
            if let Some(host) = host.upgrade() {
                is_set(&host).set(false);
                host.start();
            }
        });
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.demand_active.get() > 0 || !self.demand.borrow().is_empty() || !self.again.borrow().is_empty()
    }

    pub(super) fn has_queued_prefetches(&self) -> bool {
        !self.prefetch.borrow().is_empty()
    }

    pub(super) fn active(&self) -> usize {
        self.demand_active.get() + self.prefetch_active.get()
    }

    pub(super) fn is_far(&self) -> bool {
        self.is_farther_than(self.context.options.far)
    }

    pub(super) fn is_farther_than(&self, limit: Duration) -> bool {
        self.path.borrow().round_trip().is_some_and(|round_trip| round_trip >= limit)
    }

    /// Returns the maximum number of requests and connections for this server.
    pub(super) fn most(&self) -> usize {
        let options = &self.context.options;
        if self.is_far() { options.connections_far } else { options.connections_near }.max(1)
    }

    /// Returns the number of requests in flight below which a prefetch may start.
    pub(super) fn most_prefetched(&self) -> usize {
        let most = self.most();
        (most - most / FOR_DEMANDS).max(1)
    }

    /// Returns the expected stored bytes of an object.
    pub(super) fn expected(&self, fetch: &Fetch) -> u64 {
        let stored = |plain: u64| (plain as f64 * self.ratio.get()) as u64;
        fetch.plain_size.map_or(UNKNOWN_SIZE, stored).min(fetch.limit)
    }

    /// Updates the ratio of stored to plain size from an object.
    pub(super) fn learn(&self, plain: u64, stored: u64) {
        if plain > 0 {
            let seen = (stored as f64 / plain as f64).clamp(0.01, 1.0);
            // Large objects tell more.
            let weight = (plain as f64 / 1e6).clamp(0.01, 0.2);
            self.ratio.set(self.ratio.get() * (1.0 - weight) + seen * weight);
        }
    }

    /// Records the outcome of a request.
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
