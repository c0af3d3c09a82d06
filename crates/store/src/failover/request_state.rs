//! Tracks the routes tried by one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::hedge::HedgedRequest;
use super::route_table::{Choice, Route, RouteTable};
use crate::error::StoreError;
use crate::failover::retry::RetryPolicy;
use crate::progress::Progress;

/// Maximum number of attempts in one round, so that a request for a missing object ends.
const ATTEMPTS_MAX: usize = 32;
/// Maximum number of moves of a queued request to another route.
const LEFT_MAX: u32 = 64;

/// Maximum number of consecutive redirects; the reference client's limit.
pub(super) const REDIRECTS_MAX: u32 = 4;

/// Next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next attempt uses this route.
    Take(Route),
    /// Wait for the name of a proxy that is preferred to all other routes.
    Wait,
    /// No route is left.
    End,
}

/// Routes tried and failures met by one request.
pub(super) struct RequestState {
    began: Instant,
    /// True if the caller wants no cached response.
    pub(super) fresh: bool,
    /// Number of failed rounds through all routes.
    pub(super) rounds: u32,
    /// Number of repeated attempts on the same route.
    pub(super) repeated: u32,
    pub(super) redirects: u32,
    left: u32,
    tried: Vec<Route>,
    egresses: Vec<SuspectRoute>,
    servers: Vec<SuspectRoute>,
    /// Failure of this round that most likely permits a retry.
    retryable: Option<StoreError>,
    /// Routes that the request uses besides, because they are late.
    beside: Vec<Route>,
    /// The request, if several routes may serve it.
    request: Option<Arc<HedgedRequest>>,
}

#[derive(Clone, Copy)]
struct SuspectRoute {
    id: u32,
    score: u32,
    failures: u32,
    out: bool,
}

impl RequestState {
    pub(super) fn new(fresh: bool) -> Self {
        Self {
            began: Instant::now(),
            fresh,
            rounds: 0,
            repeated: 0,
            redirects: 0,
            left: 0,
            tried: Vec::new(),
            egresses: Vec::new(),
            servers: Vec::new(),
            retryable: None,
            beside: Vec::new(),
            request: None,
        }
    }

    /// Returns the state of a request that several routes may serve, and that uses the routes `beside` already.
    pub(super) fn of(request: Arc<HedgedRequest>, fresh: bool, beside: Vec<Route>) -> Self {
        Self { beside, request: Some(request), ..Self::new(fresh) }
    }

    /// Returns the routes that the request uses besides.
    pub(super) fn others(&self) -> &[Route] {
        &self.beside
    }

    /// Returns true if this is an attempt over a further route, which is one only.
    pub(super) fn is_further(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Records that an attempt uses this route.
    pub(super) fn uses(&self, route: Route) {
        self.request.iter().for_each(|request| request.uses(route));
    }

    /// Returns the state of a request for which these routes are as good as failed.
    pub(super) fn avoiding(used: &[Route]) -> Self {
        let mut state = Self::new(false);
        used.iter().for_each(|route| state.suspect(*route, Fault::EITHER));
        state
    }

    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns true if a further attempt may begin after a pause: before the total time is over, or, while bytes keep
    /// arriving, after as long as one attempt may take (`attempt`) besides. Bytes of failed attempts were none of the object's.
    pub(super) fn is_in_time(
        &self,
        progress: &Progress,
        (total, attempt): (Duration, Duration),
        pause: Duration,
    ) -> bool {
        let since = progress.last().map_or(self.began, |last| last.max(self.began));
        let is_usual = self.rounds < RetryPolicy::default().attempts;
        let most = if is_usual { total.saturating_add(attempt) } else { total };
        since.elapsed() + pause < total && self.took() + pause < most
    }

    /// Returns whether another route is left to try in this round.
    pub(super) fn has_other(&self, route: Route, routes: &RouteTable) -> bool {
        self.tried.len() + 1 < ATTEMPTS_MAX && routes.any(|other| other != route && self.is_untried(other))
    }

    /// Returns true if this route may still be tried in this round.
    fn is_untried(&self, route: Route) -> bool {
        let is_out = find(&self.egresses, route.egress.id).is_some_and(|suspect| suspect.out);
        !is_out && !self.tried.contains(&route)
    }

    /// Returns whether an attempt failed in this round.
    pub(super) fn has_failed(&self) -> bool {
        !self.tried.is_empty()
    }

    /// Returns true if the request may be queued once more after its route was marked down.
    pub(super) fn may_move(&mut self) -> bool {
        self.left += 1;
        self.left <= LEFT_MAX
    }

    /// Records a failure.
    pub(super) fn failed(&mut self, route: Route, fault: Fault, error: &StoreError) {
        self.suspect(route, fault);
        self.repeated = 0;
        if self.retryable.is_none() && error.may_pass() {
            self.retryable = Some(error.clone());
        }
    }

    fn suspect(&mut self, route: Route, fault: Fault) {
        self.tried.push(route);
        suspect(&mut self.egresses, route.egress.id, fault.egress, fault.no_egress);
        suspect(&mut self.servers, route.server, fault.server, false);
    }

    /// Returns the next step: the first untried route with the least suspicion. A proxy whose name is being resolved
    /// has none.
    pub(super) fn next(&self, choices: &[Choice]) -> Step {
        if self.tried.len() >= ATTEMPTS_MAX {
            return Step::End;
        }
        let score = |suspects: &[SuspectRoute], id| find(suspects, id).map_or(0, |suspect| suspect.score);
        let untried =
            choices.iter().filter(|choice| choice.route().is_none_or(|route| self.is_untried(route)));
        let least = untried.min_by_key(|choice| {
            let of_egress = choice.egress.map_or(0, |egress| score(&self.egresses, egress.id));
            of_egress + score(&self.servers, choice.server) + choice.penalty
        });
        least.map_or(Step::End, |choice| choice.route().map_or(Step::Wait, Step::Take))
    }

    /// Returns the egresses at fault, now that `served` worked: those that failed with the same server, those
    /// suspected from the start, and those that failed with several servers.
    pub(super) fn failed_egresses(&self, served: Route) -> impl Iterator<Item = u32> + '_ {
        let with_it =
            move |id| self.tried.iter().any(|route| route.egress.id == id && route.server == served.server);
        let guilty = move |one: &&SuspectRoute| one.score > 0 || one.failures > 1 || with_it(one.id);
        self.egresses
            .iter()
            .filter(guilty)
            .map(|suspect| suspect.id)
            .filter(move |id| *id != served.egress.id)
    }

    /// Returns the servers at fault, now that `served` worked.
    pub(super) fn failed_servers(&self, served: Route) -> impl Iterator<Item = u32> + '_ {
        let guilty = |one: &&SuspectRoute| one.score > 0;
        self.servers.iter().filter(guilty).map(|suspect| suspect.id).filter(move |id| *id != served.server)
    }

    /// Ends a round in which everything failed; returns the failure to retry after or to report.
    pub(super) fn round_over(&mut self, last: StoreError) -> StoreError {
        self.rounds += 1;
        self.tried.clear();
        self.egresses.clear();
        self.servers.clear();
        self.retryable.take().unwrap_or(last)
    }
}

/// Returns the route after skipping `count` routes whose responses were invalid.
pub(super) fn passing_over(count: usize, choices: &[Choice]) -> Step {
    let mut state = RequestState::new(false);
    for _ in 0..count {
        match state.next(choices) {
            Step::Take(route) => state.suspect(route, Fault::EITHER),
            other => return other,
        }
    }
    state.next(choices)
}

fn find(suspects: &[SuspectRoute], id: u32) -> Option<&SuspectRoute> {
    suspects.iter().find(|suspect| suspect.id == id)
}

fn suspect(suspects: &mut Vec<SuspectRoute>, id: u32, score: u32, out: bool) {
    match suspects.iter_mut().find(|suspect| suspect.id == id) {
        Some(known) => {
            known.score += score;
            known.failures += 1;
            known.out |= out;
        }
        None => suspects.push(SuspectRoute { id, score, failures: 1, out }),
    }
}
