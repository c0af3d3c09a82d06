//! Schedules the requests to one server.
//!
//! A demand starts at once, before all prefetches, while fewer requests are in flight than the server may have at once;
//! above that, users take turns ([`HostQueue`], [`HostLoad`]). Requests the server doesn't answer make room for others
//! ([`Awaiting`]): they are withdrawn and sent again from a queue that has a small share of the slots while others
//! wait. A prefetch starts while fewer requests and bytes are in flight than the [`HostPath`] allows. So a demand finds a
//! path without a queue of ours, and a request slot.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt;
use super::awaiting::Awaiting;
use super::connections::Connections;
use super::context::NetworkContext;
use super::dial::Endpoint;
use super::fair_queue::{End, FairQueue, User};
use super::host_load::HostLoad;
use super::host_path::HostPath;
use super::host_queue::{HostQueue, Job};
use super::in_flight::InFlight;
use super::low_speed::ServerTotals;
use super::pieces;
use super::site::Site;
use crate::error::Cause;
use crate::transport::source::{Fetch, Stored};

/// Divisor of the slots: the part for retries of withdrawn requests while others wait.
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
/// A server.
pub(super) struct Host {
    pub(super) context: Rc<NetworkContext>,
    pub(super) endpoint: Endpoint,
    pub(super) connections: Connections,
    pub(super) queue: HostQueue,
    pub(super) load: HostLoad,
    pub(super) path: HostPath,
    pub(super) awaiting: Awaiting,
    /// True if a later start of prefetches is scheduled.
    waking: Cell<bool>,
    /// True if a check for stalled requests is scheduled.
    looking: Cell<bool>,
}

impl Host {
    pub(super) fn new(context: Rc<NetworkContext>, site: &Site) -> Rc<Self> {
        Rc::new(Self {
            context,
            endpoint: site.endpoint.clone(),
            connections: Connections::default(),
            queue: HostQueue::default(),
            load: HostLoad::default(),
            path: HostPath::default(),
            awaiting: Awaiting::default(),
            waking: Cell::new(false),
            looking: Cell::new(false),
        })
    }

    /// Turns a queued or running prefetch into a demand.
    pub(super) fn raised(&self, number: u64) {
        self.queue.raise(number);
        self.load.calm();
    }

    /// Notes a further user of a request.
    pub(super) fn joined(&self, number: u64, user: User) {
        self.queue.joined(number, user, |user| self.load.demands_of(user));
    }

    /// Returns queued requests of a route that was marked down, so that they take another.
    pub(super) fn requeue(&self, site: &Arc<Site>) {
        for job in self.queue.take_route(site) {
            let error = job.fetch.error(Cause::RouteDown);
            job.done.err(error);
        }
    }

    /// Starts requests, and opens connections in advance.
    pub(super) fn schedule(self: &Rc<Self>) {
        if self.is_far()
            && let Some((site, count)) = self.queue.prefetches()
        {
            self.open_ahead(&site, count.min(self.most_prefetched()));
        }
        self.start();
    }

    /// Keeps a few connections open on a path with a long round trip.
    fn keep_ready(self: &Rc<Self>, site: &Arc<Site>) {
        if self.is_far() && !self.queue.has_prefetches() {
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
            self.queue.left(&job.fetch);
            if let Some(watch) = &job.fetch.attempt.watch {
                watch.sent(Instant::now());
            }
            let again = job.fetch.priority.is_withheld();
            if again {
                self.load.begin_withheld();
            }
            tokio::task::spawn_local(async move {
                let outcome = match plan {
                    Some(plan) => pieces::fetch(&job.site, &job.fetch, &in_flight, plan).await,
                    None => attempt::attempt(&job.site, &job.fetch, &in_flight).await,
                };
                let host = in_flight.host.clone();
                if again {
                    host.load.end_withheld();
                }
                // If another route is left to try, fail-over tries it.
                if matches!(outcome, Err(Cause::TakenBack)) && !job.fetch.attempt.replaceable {
                    job.fetch.priority.withheld();
                    host.queue.add_demand(job);
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

    fn next(self: &Rc<Self>) -> Option<Job> {
        self.next_demand().or_else(|| {
            let free = self.load.active() < self.most();
            free.then(|| self.next_prefetch()).flatten()
        })
    }

    fn next_demand(self: &Rc<Self>) -> Option<Job> {
        if !self.queue.has_demands() {
            return None;
        }
        let (now, most, after) = (Instant::now(), self.most(), self.stalls_after());
        let (stalled, active) = (self.awaiting.stalled(after, now), self.load.active());
        // Stalled requests up to this number don't count as busy; further ones are withdrawn.
        let busy = active - stalled.min(most / 2).min(active);
        let next = |queue: &mut FairQueue<Job>, end: End| {
            let places = (busy, most, self.is_narrow());
            self.load.next(queue, places, |job| self.expected(&job.fetch), end)
        };
        // One of those is always under way, so that a server that is merely slow is waited for.
        if self.load.withheld() == 0
            && let Some(job) = self.queue.next_withheld(next)
        {
            return Some(job);
        }
        if let Some(job) = self.queue.next_demand(stalled > 0, next) {
            return Some(job);
        }
        let has_others = self.queue.has_first_demands();
        let may_withheld = busy < most && (!has_others || self.load.withheld() < most / AGAIN_PART);
        let withheld = if may_withheld { self.queue.next_withheld(next) } else { None };
        if withheld.is_none() && has_others {
            self.awaiting.take_back(after, now);
            self.look_for_stalled(after, now);
        }
        withheld
    }

    /// Returns true if the server is near and slow, so that one request fills the path.
    fn is_narrow(&self) -> bool {
        !self.is_far() && self.path.is_slow()
    }

    /// Returns the time without a response after which a request is stalled.
    fn stalls_after(&self) -> Duration {
        let round_trip = self.path.round_trip().unwrap_or_default();
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
        ServerTotals { bytes: self.path.received(), active: self.load.active() as u64 }
    }

    fn next_prefetch(self: &Rc<Self>) -> Option<Job> {
        while self.queue.has_prefetches() && self.may_prefetch() {
            // One that isn't too large for now.
            let job = self.queue.next_prefetch(|job| self.may_prefetch_large(self.expected(&job.fetch)))?;
            if !job.fetch.priority.give_up_if_pointless() {
                return Some(job);
            }
            let error = job.fetch.error(Cause::Cancelled);
            job.done.err(error);
        }
        None
    }

    /// Returns true if one more prefetch may be sent now.
    fn may_prefetch(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        if let Some(until) = self.path.held().filter(|until| *until > now) {
            self.wake_at(until, |host| &host.waking);
            return false;
        }
        if self.context.budget.used() > UNWORKED_MAX {
            self.wake_at(now + CAUGHT_UP, |host| &host.waking);
            return false;
        }
        self.path.has_room(self.load.active(), self.load.coming(), self.most_prefetched())
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
        self.load.has_demands() || self.queue.has_demands()
    }

    pub(super) fn is_far(&self) -> bool {
        self.is_farther_than(self.context.options.far)
    }

    pub(super) fn is_farther_than(&self, limit: Duration) -> bool {
        self.path.round_trip().is_some_and(|round_trip| round_trip >= limit)
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
        let stored = |plain: u64| self.path.stored_size(plain);
        fetch.plain_size.map_or(UNKNOWN_SIZE, stored).min(fetch.limit)
    }

    /// Records the outcome of a request.
    pub(super) fn note(&self, site: &Site, outcome: &Result<Stored, Cause>) {
        if let Err(cause) = outcome {
            self.path.failed(cause);
        }
        self.path.count(&site.counts, self.most_prefetched());
    }
}
