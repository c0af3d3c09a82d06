//! Selects servers and proxies for requests, and retries.
//!
//! ```text
//!   Routed ── RouteTable: egress (proxy or none) and server in use, those marked down, since when
//!     └─ RequestState: routes tried by one request ─► Verifying(HttpSource) of one route
//! ```
//!
//! A request takes the route in use. If it fails there, [`Fault`] attributes the failure to the proxy or the server, and
//! the [`RequestState`] goes on to the least suspected route. A proxy or server that certainly failed is marked down for
//! all requests at once; a suspected one is marked down when another route delivered the object. After all routes failed, a
//! pause and another round follow if the failure may pass. Probes with requests of their own find out whether a route
//! works again, so that no read pays for it.

mod egress;
mod failure_counters;
mod fault;
pub(crate) mod full_servers;
mod geo;
mod hedge;
mod mark_down;
pub(crate) mod metalink;
mod probe;
mod proxy_hash;
mod proxy_lookups;
mod proxy_names;
mod redirect;
mod request_state;
pub(crate) mod retry;
mod route_table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::callback::Callback;
use crate::error::{Blame, Cause, StoreError};
use crate::failover::retry::RetryPolicy;
use crate::pool::Pool;
use crate::servers::{Order, Servers};
use crate::transport::source::{Fetch, Source, Stored};
use crate::transport::status::NetworkStatus;
use crate::transport::verify::Verifying;
use crate::transport::{
    BaseUrl, ConnectOptions, HttpOptions, HttpSource, Limits, Network, ProxyHop, Site, TrafficCounts,
};
use egress::Egress;
use failure_counters::FailureCounters;
use fault::Fault;
use hedge::HedgedRequests;
use proxy_lookups::ProxyLookups;
use request_state::{REDIRECTS_MAX, RequestState, Step};
use route_table::{Route, RouteTable};

/// A repository on several servers, reached through proxies or not.
pub(crate) struct Routed {
    router: Arc<Router>,
}

/// State that all requests of a source share.
struct Router {
    servers: Servers,
    bases: Vec<BaseUrl>,
    network: Arc<Network>,
    pool: Arc<Pool>,
    policy: RetryPolicy,
    http: HttpOptions,
    counts: Arc<TrafficCounts>,
    routes: Mutex<RouteTable>,
    /// Sources of the routes used so far.
    sources: Mutex<HashMap<Key, RouteSource>>,
    lookups: Mutex<ProxyLookups>,
    /// True if a proxy or server is marked down; then responses and probes are checked.
    troubled: AtomicBool,
    /// True if the servers are still to be sorted by distance or response time.
    unsorted: AtomicBool,
    failures: FailureCounters,
    hedged: HedgedRequests,
}

/// Assumed size in bytes of an object whose size is not stated, for the time that it may take.
const SIZE_UNSTATED: u64 = 32 << 20;

/// A route: server number and egress id.
type Key = (u32, u32);

/// Source of one route.
#[derive(Clone)]
struct RouteSource {
    site: Arc<Site>,
    source: Arc<dyn Source>,
}

/// Resources that all sources of an engine share.
#[derive(Clone)]
pub(crate) struct EngineResources {
    pub(crate) network: Arc<Network>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) policy: RetryPolicy,
    pub(crate) http: HttpOptions,
}

impl Routed {
    pub(crate) fn new(around: EngineResources, servers: Servers) -> Result<Self, StoreError> {
        let bases = servers.urls.iter().map(|url| BaseUrl::parse(url)).collect::<Result<Vec<_>, _>>()?;
        let groups = servers.groups();
        if groups.is_empty() || bases.is_empty() {
            let reason = "no way leads to it: no proxy is left, and asking directly is not allowed";
            let url = servers.url().to_owned();
            return Err(StoreError::new("the repository", Cause::BadUrl { url, reason }));
        }
        let unsorted = match servers.order {
            Order::Given => false,
            Order::RoundTrip => bases.len() > 1,
            Order::Geo => bases.len() > 1 || servers.fallback_groups().len() > 1,
        };
        let mut routes = RouteTable::new(groups, bases.len(), servers.sharding);
        if servers.order == Order::Given {
            routes.keep(servers.most);
        }
        let EngineResources { network, pool, mut policy, http } = around;
        policy.first_pause = servers.timings.first_pause.unwrap_or(policy.first_pause);
        if servers.timings.indefinitely {
            // The time that a request may take bounds it all the same.
            policy.attempts = u32::MAX;
        }
        policy.longest_pause = servers.timings.longest_pause.unwrap_or(policy.longest_pause);
        let lookups = Mutex::new(ProxyLookups::new(routes.egresses.names()));
        let router = Router {
            servers,
            bases,
            network,
            pool,
            policy,
            http,
            counts: Arc::default(),
            routes: Mutex::new(routes),
            sources: Mutex::default(),
            lookups,
            troubled: AtomicBool::new(false),
            unsorted: AtomicBool::new(unsorted),
            failures: FailureCounters::default(),
            hedged: HedgedRequests::default(),
        };
        Ok(Self { router: Arc::new(router) })
    }
}

impl Source for Routed {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let router = self.router.clone();
        // The reader of a relayed response gets the bytes of one attempt after the other.
        if fetch.relay.is_some() || router.routes.lock().is_single() {
            let state = RequestState::new(fetch.http.fresh);
            return router.begin(fetch, state, done);
        }
        router.begin_hedged(fetch, done);
    }

    fn describe(&self) -> String {
        self.router.bases.first().map(BaseUrl::to_string).unwrap_or_default()
    }

    fn routes(&self) -> usize {
        self.router.routes.lock().choices(0).len()
    }

    fn network(&self) -> NetworkStatus {
        NetworkStatus { route: self.router.route_status(), ..self.router.counts.status() }
    }
}

impl Router {
    /// Takes the route in use, or, in another round, the best of all.
    fn begin(self: Arc<Self>, fetch: Fetch, state: RequestState, done: Callback<Stored>) {
        self.look_up_names();
        if self.troubled.load(Ordering::Relaxed) {
            self.probe_due();
        }
        if self.unsorted.load(Ordering::Relaxed) && self.unsorted.swap(false, Ordering::Relaxed) {
            match self.servers.order {
                Order::Geo => self.ask_who_is_near(),
                Order::RoundTrip | Order::Given => self.race(),
            }
        }
        self.advance(fetch, state, None, done);
    }

    /// Moves to the next route, waits for the name of a proxy, or ends the round with the `last` failure.
    fn advance(
        self: Arc<Self>,
        fetch: Fetch,
        state: RequestState,
        last: Option<StoreError>,
        done: Callback<Stored>,
    ) {
        match self.step(&fetch, &state) {
            Step::Take(route) => {
                if last.is_some() {
                    self.failures.retried();
                }
                self.go(route, fetch, state, done);
            }
            Step::Wait => self.wait_for_name(fetch, state, last, done),
            Step::End => {
                let error = last.unwrap_or_else(|| self.no_way(&fetch));
                self.round_over(fetch, state, error, done);
            }
        }
    }

    fn step(&self, fetch: &Fetch, state: &RequestState) -> Step {
        let place = proxy_hash::place(fetch.expected.hash());
        let routes = self.routes.lock();
        match fetch.attempt.detour {
            0 => {
                let first = if state.has_failed() { None } else { routes.first(place) };
                first.map_or_else(|| state.next(&routes.choices(place)), Step::Take)
            }
            detour if !state.has_failed() => request_state::passing_over(detour, &routes.choices(place)),
            _ => state.next(&routes.choices(place)),
        }
    }

    /// Returns the egress in use, for ordering servers. Without one, the next request orders them.
    fn egress_to_sort_by(&self) -> Option<Egress> {
        let egress = self.routes.lock().choices(0).first().and_then(|choice| choice.egress);
        if egress.is_none() {
            self.unsorted.store(true, Ordering::Relaxed);
        }
        egress
    }

    /// Makes one attempt on one route.
    fn go(self: Arc<Self>, route: Route, mut fetch: Fetch, state: RequestState, done: Callback<Stored>) {
        let source = self.route_source(route).source;
        fetch.attempt.replaceable = state.has_other(route, &self.routes.lock());
        state.uses(route);
        let next = fetch.clone();
        let answered = Callback::new(move |outcome| match outcome {
            Ok(stored) => {
                self.served(route, &state);
                done.ok(stored);
            }
            Err(error) => self.failed(route, next, state, error, done),
        });
        source.fetch(fetch, answered);
    }

    fn failed(
        self: Arc<Self>,
        route: Route,
        mut fetch: Fetch,
        mut state: RequestState,
        error: StoreError,
        done: Callback<Stored>,
    ) {
        if matches!(error.cause(), Cause::RouteDown) && state.may_move() {
            return self.begin(fetch, state, done);
        }
        let Some(fault) = Fault::of(&error, route.egress.proxy.is_some()) else { return done.err(error) };
        let error = if fault.no_egress { error.blamed(Blame::Proxy) } else { error };
        if let Cause::Redirected { location } = error.cause()
            && self.servers.redirects
            && state.redirects < REDIRECTS_MAX
        {
            state.redirects += 1;
            let location = location.clone();
            return self.follow(route, &location, fetch, state, error, done);
        }
        let is_late = state.is_further() || fetch.attempt.watch.as_ref().is_some_and(|watch| watch.is_late());
        if is_damage(&error) && !fetch.http.fresh && !is_late && !fetch.priority.give_up() {
            // A cache on the way may hold damaged bytes; a pause would not help.
            fetch.http.fresh = true;
            return self.go(route, fetch, state, done);
        }
        self.failures.error(&error);
        self.mark_certain_faults(route, fault, &error);
        // A prefetch is not retried: a failing server has enough load.
        if state.is_further() || fetch.priority.give_up() {
            return done.err(error);
        }
        let in_time = state.is_in_time(&fetch.progress, self.time_for(&fetch), Duration::ZERO);
        if fault.again
            && in_time
            && !is_late
            && state.repeated < self.servers.timings.retries
            && !self.routes.lock().is_single()
        {
            state.repeated += 1;
            self.failures.retried();
            let pause = self.policy.pause(state.repeated);
            return self.network.clone().later(pause, move || self.go(route, fetch, state, done));
        }
        state.failed(route, fault, &error);
        if !in_time {
            return self.round_over(fetch, state, error, done);
        }
        fetch.http.fresh = state.fresh;
        self.advance(fetch, state, Some(error), done);
    }

    /// Ends a round in which all routes failed: after a pause all are tried once more, if the failure may pass.
    fn round_over(
        self: Arc<Self>,
        mut fetch: Fetch,
        mut state: RequestState,
        last: StoreError,
        done: Callback<Stored>,
    ) {
        // An outdated head, which was requested past all caches already, is not worth a pause.
        let is_old = matches!(last.cause(), Cause::Untrusted(_));
        let error = state.round_over(last);
        match self.policy.next(state.rounds, &error) {
            Some(pause) if !is_old && state.is_in_time(&fetch.progress, self.time_for(&fetch), pause) => {
                self.failures.retried();
                fetch.http.fresh = state.fresh;
                self.network.clone().later(pause, move || self.begin(fetch, state, done));
            }
            _ => done.err(error),
        }
    }

    /// Returns the time for all attempts of a request, and that for one attempt besides.
    fn time_for(&self, fetch: &Fetch) -> (Duration, Duration) {
        let bytes = fetch.plain_size.unwrap_or(SIZE_UNSTATED).min(fetch.limit);
        (self.policy.total, self.http.attempt_limit(bytes))
    }

    fn no_way(&self, fetch: &Fetch) -> StoreError {
        let mut lookups = self.lookups.lock();
        lookups.ask_again();
        let (host, reason) = lookups.failure();
        fetch.error(Cause::Unresolved { host, reason }).blamed(Blame::Proxy)
    }

    fn route_source(&self, route: Route) -> RouteSource {
        let mut sources = self.sources.lock();
        let key = (route.server, route.egress.id);
        sources
            .entry(key)
            .or_insert_with(|| self.new_source(&self.bases[route.server as usize], route.egress))
            .clone()
    }

    fn new_source(&self, base: &BaseUrl, egress: Egress) -> RouteSource {
        let limits = Limits::new(&self.http, &self.servers.timings, egress.proxy.is_some());
        let Servers { dns, authorities, info_headers, http2, .. } = &self.servers;
        let via = egress.proxy.map(|address| {
            let routes = self.routes.lock();
            let name = || routes.egresses.name(egress.id).unwrap_or_default().into();
            ProxyHop { address, tls: egress.tls.then(name), login: routes.egresses.login(egress.id) }
        });
        let connect_options = ConnectOptions { limits, dns: dns.clone(), info_headers: info_headers.clone() };
        let site = Site::new(base.clone(), via, connect_options, (authorities, *http2), self.counts.clone());
        let source = Arc::new(HttpSource::new(self.network.clone(), site.clone()));
        RouteSource { site, source: Arc::new(Verifying::new(source, self.pool.clone())) }
    }
}

/// Returns whether the response was damaged or outdated.
fn is_damage(error: &StoreError) -> bool {
    matches!(
        error.cause(),
        Cause::Corrupt { .. } | Cause::Untrusted(_) | Cause::WrongPart { .. } | Cause::WrongList { .. }
    )
}
