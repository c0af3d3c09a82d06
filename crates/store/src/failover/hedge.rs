//! Requests an object over a further route while the routes in use are late.
//!
//! Bytes are verified once all of them are there, so a route that delivers wrong bytes slowly, or cuts the end off again
//! and again, can't be told from a slow one. A request whose object should have arrived by now ([`AttemptWatch`]) is sent
//! over another route, too; the first verified object counts, and ends the other attempts. Few requests do so at a time,
//! so that the nodes of a cluster whose only line is slow don't double its load. The method is that of hedged requests
//! (Dean and Barroso, "The Tail at Scale", 2013).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_format::canary;
use parking_lot::Mutex;

use super::Router;
use super::proxy_hash;
use super::request_state::{RequestState, Step};
use super::route_table::Route;
use crate::callback::Callback;
use crate::error::{Blame, StoreError};
use crate::priority::Urgency;
use crate::transport::attempt_watch::AttemptWatch;
use crate::transport::source::{Fetch, Stored};

/// Factor between the waits for further routes, and of the wait before other proxy groups are used.
const GROWTH: u32 = 4;
/// Maximum number of routes that one object is requested over at a time.
const ROUTES_MAX: usize = 3;
/// Maximum number of requests that use further routes, unless theirs is marked down.
const HEDGED_MAX: usize = 2;
/// Divisor of the usual patience: the pause between two searches for late requests.
const SEARCHES: u32 = 8;
/// Time for which a slow proxy or server is marked down first; each further time it is [`GROWTH`] times as long.
const SLOW_FIRST: Duration = Duration::from_secs(10);
/// Maximum time for which a slow proxy or server is marked down, unless the settings say another one.
const SLOW_MAX: Duration = Duration::from_secs(300);
/// Time after which a proxy or server that was slow counts as new.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Requests that several routes may serve.
#[derive(Default)]
pub(super) struct HedgedRequests {
    requests: Mutex<Vec<Weak<HedgedRequest>>>,
    /// Number of requests that use further routes now.
    hedged: Arc<AtomicUsize>,
    slow: Mutex<HashMap<Part, Slowness>>,
}

/// Part of a route.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Egress(u32),
    Server(u32),
}

/// Number of times that a part of a route was slower than another one.
struct Slowness {
    times: u32,
    last: Instant,
}

/// One request, and its attempts.
pub(super) struct HedgedRequest {
    fetch: Fetch,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Callback of the request; none once it has the outcome.
    done: Option<Callback<Stored>>,
    running: Vec<Arc<AttemptWatch>>,
    /// Routes in use or used.
    used: Vec<Route>,
    /// Time at which all attempts were found late first.
    late: Option<Instant>,
    place: Option<Place>,
}

/// Place among the requests that use further routes; free once dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HedgedRequest {
    /// Records that an attempt uses this route.
    pub(super) fn uses(&self, route: Route) {
        let mut state = self.state.lock();
        if !state.used.contains(&route) {
            state.used.push(route);
        }
    }

    /// Records the outcome of the attempts that `watch` observes.
    fn ended(&self, watch: &Arc<AttemptWatch>, outcome: Result<Stored, StoreError>) {
        let mut state = self.state.lock();
        state.running.retain(|other| !Arc::ptr_eq(other, watch));
        let is_final = match &outcome {
            Ok(_) => true,
            // Another route would do no better.
            Err(error) => state.running.is_empty() || matches!(error.blame(), Blame::Disk | Blame::Caller),
        };
        let Some(done) = state.done.take_if(|_| is_final) else { return };
        state.running.iter().for_each(|other| other.end());
        state.place = None;
        // The callback may lead back here.
        drop(state);
        done.give(outcome);
    }
}

impl Router {
    /// Begins a request that several routes may serve.
    pub(super) fn begin_hedged(self: Arc<Self>, fetch: Fetch, done: Callback<Stored>) {
        let state = Mutex::new(State { done: Some(done), ..State::default() });
        let request = Arc::new(HedgedRequest { fetch, began: Instant::now(), state });
        let is_first = {
            let mut requests = self.hedged.requests.lock();
            requests.push(Arc::downgrade(&request));
            requests.len() == 1
        };
        if is_first {
            self.look_later();
        }
        let (fetch, ended) = request_attempt(&request, 1);
        let state = RequestState::of(request, fetch.http.fresh, Vec::new());
        self.begin(fetch, state, ended);
    }

    /// Checks for late requests after a pause, as long as there are requests.
    fn look_later(self: &Arc<Self>) {
        let (pause, router) = (self.http.hedge / SEARCHES, Arc::downgrade(self));
        self.network.later(pause, move || {
            let Some(router) = router.upgrade() else { return };
            let requests: Vec<_> = {
                let mut requests = router.hedged.requests.lock();
                requests.retain(|request| request.strong_count() > 0);
                if requests.is_empty() {
                    return;
                }
                requests.iter().filter_map(Weak::upgrade).collect()
            };
            for request in requests {
                router.clone().hedge_if_late(request);
            }
            router.look_later();
        });
    }

    /// Sends a late request over a further route, if there is one.
    fn hedge_if_late(self: Arc<Self>, request: Arc<HedgedRequest>) {
        if request.fetch.priority.urgency() == Urgency::Prefetch {
            return;
        }
        let (route, used, count) = {
            let mut state = request.state.lock();
            let count = state.running.len();
            let is_late = count > 0 && state.running.iter().all(|watch| watch.is_late());
            if state.done.is_none() || !is_late || count >= ROUTES_MAX || canary::skipped("late-route") {
                return;
            }
            let late = *state.late.get_or_insert_with(Instant::now);
            let any_group = late.elapsed() > (late - request.began) * GROWTH;
            let Some((route, is_marked_down)) = self.further_route(&request.fetch, &state.used, any_group)
            else {
                return;
            };
            if state.place.is_none() {
                let others = self.hedged.hedged.fetch_add(1, Ordering::Relaxed);
                let place = Place(self.hedged.hedged.clone());
                if others >= HEDGED_MAX && !is_marked_down {
                    return;
                }
                state.place = Some(place);
            }
            (route, state.used.clone(), count)
        };
        let patience = GROWTH.saturating_pow(u32::try_from(count).unwrap_or(u32::MAX));
        let (fetch, ended) = request_attempt(&request, patience);
        let state = RequestState::of(request, fetch.http.fresh, used);
        self.go(route, fetch, state, ended);
    }

    /// Returns the least suspected route that is not used yet, in the groups of the used ones or in any; and whether one of
    /// the used ones is marked down.
    fn further_route(&self, fetch: &Fetch, used: &[Route], any_group: bool) -> Option<(Route, bool)> {
        let place = proxy_hash::place(fetch.expected.hash());
        let routes = self.routes.lock();
        let mut choices = routes.choices(place);
        if !any_group {
            let group = |route: &Route| routes.egresses.group_of(route.egress.id);
            let last = used.iter().filter_map(group).max();
            choices.retain(|choice| choice.route().is_some_and(|route| group(&route) <= last));
        }
        match RequestState::avoiding(used).next(&choices) {
            Step::Take(route) => Some((route, used.iter().any(|route| routes.is_down(*route)))),
            Step::Wait | Step::End => None,
        }
    }

    /// Marks down those parts of routes that were slower than another route.
    pub(super) fn mark_slow(&self, served: Route, slower: &[Route]) {
        let why = format!(
            "an object came sooner over {} from {}",
            served.egress, self.bases[served.server as usize]
        );
        for route in slower {
            let timings = &self.servers.timings;
            if route.egress.id != served.egress.id {
                let again =
                    Instant::now() + self.hedged.pause(Part::Egress(route.egress.id), timings.proxy_reset);
                self.mark_egress_down(route.egress, Some(again), &why);
            }
            if route.server != served.server {
                let again =
                    Instant::now() + self.hedged.pause(Part::Server(route.server), timings.server_reset);
                self.mark_server_down(route.server, Some(again), &why);
            }
        }
    }
}

impl HedgedRequests {
    /// Returns the time for which a part of a route is marked down, once more.
    fn pause(&self, part: Part, most: Option<Duration>) -> Duration {
        let now = Instant::now();
        let mut slow = self.slow.lock();
        slow.retain(|_, slowness| now - slowness.last < FORGOTTEN);
        let slowness = slow.entry(part).or_insert(Slowness { times: 0, last: now });
        slowness.last = now;
        let pause = SLOW_FIRST.saturating_mul(GROWTH.saturating_pow(slowness.times));
        slowness.times += 1;
        pause.min(most.unwrap_or(SLOW_MAX))
    }
}

/// Returns the fetch of a further attempt, and its callback.
fn request_attempt(request: &Arc<HedgedRequest>, patience: u32) -> (Fetch, Callback<Stored>) {
    let watch = Arc::new(AttemptWatch::new(patience));
    request.state.lock().running.push(watch.clone());
    let mut fetch = request.fetch.clone();
    fetch.attempt.watch = Some(watch.clone());
    let request = request.clone();
    (fetch, Callback::new(move |outcome| request.ended(&watch, outcome)))
}
