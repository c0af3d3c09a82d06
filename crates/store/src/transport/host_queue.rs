//! Queues the requests to one server: demands, withdrawn demands, and prefetches.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::fair_queue::{End, FairQueue, User};
use super::site::Site;
use crate::callback::Callback;
use crate::priority::Urgency;
use crate::progress::Progress;
use crate::transport::source::{Fetch, Stored};

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

/// Demands of one kind, and their progress: that of all requests of the kind, also of those in flight.
#[derive(Default)]
struct Demands {
    queue: RefCell<FairQueue<Job>>,
    progress: Progress,
}

impl Demands {
    fn take(&self, which: impl Fn(&Job) -> bool) -> Vec<Job> {
        self.queue.borrow_mut().take(which)
    }

    fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }
}

/// Requests that wait for a place at a server.
#[derive(Default)]
pub(super) struct HostQueue {
    demands: Demands,
    /// Withdrawn demands, which the server had not answered.
    withheld: Demands,
    prefetches: RefCell<BTreeMap<u64, Job>>,
    /// True if the next demand taken while some are stalled is the newest.
    newest: Cell<bool>,
}

impl HostQueue {
    pub(super) fn add(&self, job: Job) {
        match job.fetch.priority.urgency() {
            Urgency::Demand => self.add_demand(job),
            Urgency::Prefetch => drop(self.prefetches.borrow_mut().insert(job.number, job)),
        }
    }

    pub(super) fn add_demand(&self, job: Job) {
        let user = job.fetch.priority.user();
        let demands = if job.fetch.priority.is_withheld() { &self.withheld } else { &self.demands };
        job.fetch.progress.follow(&demands.progress);
        demands.queue.borrow_mut().push(user, job);
    }

    /// Turns a queued prefetch into a demand.
    pub(super) fn raise(&self, number: u64) {
        let job = self.prefetches.borrow_mut().remove(&number);
        job.into_iter().for_each(|job| self.add_demand(job));
    }

    /// Notes a further user of a request: a queued one moves to the user whose turn comes sooner, by the requests that
    /// are queued and `in_flight`.
    pub(super) fn joined(&self, number: u64, user: User, in_flight: impl Fn(User) -> usize) {
        for demands in [&self.demands, &self.withheld] {
            let mut queue = demands.queue.borrow_mut();
            let waiting = |user| queue.len_of(user) + in_flight(user);
            let mine = waiting(user);
            let longer: HashSet<User> = queue.users().filter(|other| waiting(*other) > mine).collect();
            let moves = |job: &Job| job.number == number && longer.contains(&job.fetch.priority.user());
            for job in queue.take(moves) {
                job.fetch.priority.counts_for(user);
                queue.push(user, job);
            }
        }
    }

    /// Removes and returns the requests of a route.
    pub(super) fn take_route(&self, site: &Arc<Site>) -> Vec<Job> {
        let is_of_route = |job: &Job| Arc::ptr_eq(&job.site, site);
        let mut leaving = self.demands.take(is_of_route);
        leaving.extend(self.withheld.take(is_of_route));
        leaving.extend(
            self.prefetches.borrow_mut().extract_if(.., |_, job| is_of_route(job)).map(|(_, job)| job),
        );
        leaving.iter().for_each(|job| self.left(&job.fetch));
        leaving
    }

    /// Records that a request left its queue.
    pub(super) fn left(&self, fetch: &Fetch) {
        [&self.demands, &self.withheld]
            .into_iter()
            .for_each(|queue| fetch.progress.unfollow(&queue.progress));
    }

    /// Records that a request waits in the queue of the server, and makes progress with it.
    pub(super) fn waits_at_server(&self, fetch: &Fetch) {
        if !fetch.priority.is_withheld() {
            fetch.progress.follow(&self.demands.progress);
        }
    }

    /// Records that a request no longer waits in the queue of the server.
    pub(super) fn left_server(&self, fetch: &Fetch) {
        fetch.progress.unfollow(&self.demands.progress);
    }

    /// Records progress of a request in flight, for whose place the queued ones wait.
    pub(super) fn came_further(&self, fetch: &Fetch) {
        self.demands.progress.mark();
        if fetch.priority.is_withheld() {
            self.withheld.progress.mark();
        }
    }

    pub(super) fn has_demands(&self) -> bool {
        !self.demands.is_empty() || !self.withheld.is_empty()
    }

    /// Returns true if there are demands that were not withdrawn.
    pub(super) fn has_first_demands(&self) -> bool {
        !self.demands.is_empty()
    }

    /// Takes the next demand with `take`. While some are stalled, most of those that have waited for long may be
    /// withheld, too: every other one comes from the other end.
    pub(super) fn next_demand(
        &self,
        any_stalled: bool,
        take: impl FnOnce(&mut FairQueue<Job>, End) -> Option<Job>,
    ) -> Option<Job> {
        let end = if any_stalled && self.newest.get() { End::Newest } else { End::Oldest };
        let job = take(&mut self.demands.queue.borrow_mut(), end)?;
        self.newest.set(end == End::Oldest);
        Some(job)
    }

    /// Takes the next withdrawn demand with `take`.
    pub(super) fn next_withheld(
        &self,
        take: impl FnOnce(&mut FairQueue<Job>, End) -> Option<Job>,
    ) -> Option<Job> {
        take(&mut self.withheld.queue.borrow_mut(), End::Oldest)
    }

    pub(super) fn has_prefetches(&self) -> bool {
        !self.prefetches.borrow().is_empty()
    }

    /// Returns the route of the oldest prefetch, and the number of prefetches.
    pub(super) fn prefetches(&self) -> Option<(Arc<Site>, usize)> {
        let prefetches = self.prefetches.borrow();
        prefetches.first_key_value().map(|(_, job)| (job.site.clone(), prefetches.len()))
    }

    /// Removes and returns the oldest prefetch that may start.
    pub(super) fn next_prefetch(&self, may: impl Fn(&Job) -> bool) -> Option<Job> {
        let mut prefetches = self.prefetches.borrow_mut();
        let number = prefetches.iter().find(|(_, job)| may(job)).map(|(number, _)| *number)?;
        prefetches.remove(&number)
    }

    /// Returns the sum of a measure of the `most` oldest prefetches.
    pub(super) fn sum(&self, most: usize, measure: impl Fn(&Job) -> u64) -> u64 {
        self.prefetches.borrow().values().take(most).map(measure).sum()
    }

    /// Removes and returns those of the `most` oldest prefetches that `which` returns true for; `None` ends the search.
    pub(super) fn take_prefetches(
        &self,
        most: usize,
        mut which: impl FnMut(&Job) -> Option<bool>,
    ) -> Vec<Job> {
        let mut prefetches = self.prefetches.borrow_mut();
        let judged = prefetches.iter().take(most).map_while(|(number, job)| Some((*number, which(job)?)));
        let taken: Vec<u64> = judged.filter(|(_, is_taken)| *is_taken).map(|(number, _)| number).collect();
        taken.iter().filter_map(|number| prefetches.remove(number)).collect()
    }
}
