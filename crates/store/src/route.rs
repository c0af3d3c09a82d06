//! The source that chooses among servers and proxies, and asks again.
//!
//! ```text
//!   Routed ── Ways: which exit (proxy or none) and server are in use, which are out, since when
//!     └─ Trip: what one request met so far ─► Verifying(HttpSource) of one way
//! ```
//!
//! A request takes the way in use. If it fails there, [`Fault`] says who may be to blame, the [`Trip`] goes on to the
//! way that is least suspected, and what is out of use for sure is left by everybody at once; what was only suspected
//! is left when another way brought the object. When all ways failed a pause follows, and another round if the failure
//! may pass. What was left is looked at from time to time with a request of its own, so that no read pays for it.

mod exits;
mod fault;
mod geo;
mod look;
mod names;
mod note;
mod redirect;
mod ring;
mod trip;
mod ways;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::done::Done;
use crate::engine::Log;
use crate::error::{Blame, Cause, StoreError};
use crate::http::{BaseUrl, Counts, HttpOptions, HttpSource, Limits, Manners, Network, Site, Via};
use crate::pool::Pool;
use crate::retry::RetryPolicy;
use crate::servers::{Order, Servers};
use crate::source::{Fetch, Source, Stored};
use crate::status::NetworkStatus;
use crate::verify::Verifying;
use exits::Exit;
use fault::Fault;
use names::Finding;
use note::Notes;
use redirect::REDIRECTS_MAX;
use trip::{Step, Trip};
use ways::{Way, Ways};

/// A repository on several servers, reached through proxies or not.
pub(crate) struct Routed {
    shared: Arc<Shared>,
}

/// What its requests share.
struct Shared {
    servers: Servers,
    bases: Vec<BaseUrl>,
    network: Arc<Network>,
    pool: Arc<Pool>,
    policy: RetryPolicy,
    http: HttpOptions,
    counts: Arc<Counts>,
    ways: Mutex<Ways>,
    /// The sources of all ways that were taken.
    sources: Mutex<HashMap<Key, Taken>>,
    finding: Mutex<Finding>,
    /// Whether something is out of use; then answers and time are looked at more closely.
    troubled: AtomicBool,
    /// Whether it is still to be found out which server is near, or answers soonest.
    unsorted: AtomicBool,
    notes: Notes,
}

/// A way: the number of the server and that of the exit.
type Key = (u32, u32);

/// One way that was taken.
#[derive(Clone)]
struct Taken {
    site: Arc<Site>,
    source: Arc<dyn Source>,
}

/// What the ways of an engine have in common.
pub(crate) struct Surroundings {
    pub(crate) network: Arc<Network>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) policy: RetryPolicy,
    pub(crate) http: HttpOptions,
    pub(crate) log: Log,
}

impl Routed {
    pub(crate) fn new(around: Surroundings, servers: Servers) -> Result<Self, StoreError> {
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
        let mut ways = Ways::new(groups, bases.len(), servers.sharding);
        if servers.order == Order::Given {
            ways.keep(servers.most);
        }
        let Surroundings { network, pool, mut policy, http, log } = around;
        policy.first_pause = servers.timings.first_pause.unwrap_or(policy.first_pause);
        if servers.timings.indefinitely {
            // The time that a request may take bounds it all the same.
            policy.attempts = u32::MAX;
        }
        policy.longest_pause = servers.timings.longest_pause.unwrap_or(policy.longest_pause);
        let finding = Mutex::new(Finding::new(ways.exits.names()));
        let shared = Shared {
            servers,
            bases,
            network,
            pool,
            policy,
            http,
            counts: Arc::default(),
            ways: Mutex::new(ways),
            sources: Mutex::default(),
            finding,
            troubled: AtomicBool::new(false),
            unsorted: AtomicBool::new(unsorted),
            notes: Notes::new(log),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl Source for Routed {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let trip = Trip::new(fetch.fresh);
        self.shared.clone().begin(fetch, trip, done);
    }

    fn describe(&self) -> String {
        self.shared.bases.first().map(BaseUrl::to_string).unwrap_or_default()
    }

    fn ways(&self) -> usize {
        self.shared.ways.lock().choices(0).len()
    }

    fn network(&self) -> NetworkStatus {
        NetworkStatus { route: self.shared.route(), ..self.shared.counts.status() }
    }
}

impl Shared {
    /// Takes the way in use, or, in another round, the best of all.
    fn begin(self: Arc<Self>, fetch: Fetch, trip: Trip, done: Done<Stored>) {
        self.look_up_names();
        if self.troubled.load(Ordering::Relaxed) {
            self.look_at_what_is_due();
        }
        if self.unsorted.load(Ordering::Relaxed) && self.unsorted.swap(false, Ordering::Relaxed) {
            match self.servers.order {
                Order::Geo => self.ask_who_is_near(),
                Order::RoundTrip | Order::Given => self.race(),
            }
        }
        self.advance(fetch, trip, None, done);
    }

    /// Goes on to the next way, waits for the name of a proxy, or ends the round with the `last` failure.
    fn advance(self: Arc<Self>, fetch: Fetch, trip: Trip, last: Option<StoreError>, done: Done<Stored>) {
        match self.step(&fetch, &trip) {
            Step::Take(way) => {
                if last.is_some() {
                    self.notes.retried();
                }
                self.go(way, fetch, trip, done);
            }
            Step::Wait => self.wait_for_name(fetch, trip, last, done),
            Step::End => {
                let error = last.unwrap_or_else(|| self.no_way(&fetch));
                self.round_over(fetch, trip, error, done);
            }
        }
    }

    fn step(&self, fetch: &Fetch, trip: &Trip) -> Step {
        let place = ring::place(fetch.expect.as_ref());
        let ways = self.ways.lock();
        match fetch.detour {
            0 => {
                let first = if trip.has_failed() { None } else { ways.first(place) };
                first.map_or_else(|| trip.next(&ways.choices(place)), Step::Take)
            }
            detour if !trip.has_failed() => trip::passing_over(detour, &ways.choices(place)),
            _ => trip.next(&ways.choices(place)),
        }
    }

    /// The exit in use, to ask through it who is near. While there is none that is left to the next request.
    fn exit_to_sort_by(&self) -> Option<Exit> {
        let exit = self.ways.lock().choices(0).first().and_then(|choice| choice.exit);
        if exit.is_none() {
            self.unsorted.store(true, Ordering::Relaxed);
        }
        exit
    }

    /// One attempt on one way.
    fn go(self: Arc<Self>, way: Way, mut fetch: Fetch, trip: Trip, done: Done<Stored>) {
        let source = self.taken(way).source;
        fetch.replaceable = trip.has_other(way, &self.ways.lock());
        let next = fetch.clone();
        let answered = Done::new(move |outcome| match outcome {
            Ok(stored) => {
                self.served(way, &trip);
                done.ok(stored);
            }
            Err(error) => self.failed(way, next, trip, error, done),
        });
        source.fetch(fetch, answered);
    }

    fn failed(
        self: Arc<Self>,
        way: Way,
        mut fetch: Fetch,
        mut trip: Trip,
        error: StoreError,
        done: Done<Stored>,
    ) {
        if matches!(error.cause(), Cause::Left) && trip.may_move() {
            return self.begin(fetch, trip, done);
        }
        let Some(fault) = Fault::of(&error, way.exit.proxy.is_some()) else { return done.err(error) };
        let error = if fault.no_exit { error.blamed(Blame::Proxy) } else { error };
        if let Cause::Redirected { location } = error.cause()
            && self.servers.redirects
            && trip.redirects < REDIRECTS_MAX
        {
            trip.redirects += 1;
            let location = location.clone();
            return self.follow(way, &location, fetch, trip, error, done);
        }
        if is_damage(&error) && !fetch.fresh && !fetch.priority.give_up() {
            // A cache on the way may hold damaged bytes; a pause would not help.
            fetch.fresh = true;
            return self.go(way, fetch, trip, done);
        }
        self.notes.error(&error);
        self.leave_for_sure(way, fault, &error);
        // What nobody waits for is not asked for again: a server in trouble has enough to do.
        if fetch.priority.give_up() {
            return done.err(error);
        }
        let in_time = trip.is_in_time(&fetch.progress, self.policy.total, Duration::ZERO);
        if fault.again
            && in_time
            && trip.repeated < self.servers.timings.retries
            && !self.ways.lock().is_single()
        {
            trip.repeated += 1;
            self.notes.retried();
            let pause = self.policy.pause(trip.repeated);
            return self.network.clone().later(pause, move || self.go(way, fetch, trip, done));
        }
        trip.failed(way, fault, &error);
        if !in_time {
            return self.round_over(fetch, trip, error, done);
        }
        fetch.fresh = trip.fresh;
        self.advance(fetch, trip, Some(error), done);
    }

    /// All ways failed: after a pause everything is tried once more, if there is hope.
    fn round_over(self: Arc<Self>, mut fetch: Fetch, mut trip: Trip, last: StoreError, done: Done<Stored>) {
        // An old head, which has been asked for past the caches already, is not waited for.
        let is_old = matches!(last.cause(), Cause::Untrusted(_));
        let error = trip.round_over(last);
        match self.policy.next(trip.rounds, &error) {
            Some(pause) if !is_old && trip.is_in_time(&fetch.progress, self.policy.total, pause) => {
                self.notes.retried();
                fetch.fresh = trip.fresh;
                self.network.clone().later(pause, move || self.begin(fetch, trip, done));
            }
            _ => done.err(error),
        }
    }

    fn no_way(&self, fetch: &Fetch) -> StoreError {
        let mut finding = self.finding.lock();
        finding.ask_again();
        let (host, reason) = finding.failure();
        fetch.error(Cause::Unresolved { host, reason }).blamed(Blame::Proxy)
    }

    fn taken(&self, way: Way) -> Taken {
        let mut sources = self.sources.lock();
        let key = (way.server, way.exit.id);
        sources.entry(key).or_insert_with(|| self.take(&self.bases[way.server as usize], way.exit)).clone()
    }

    fn take(&self, base: &BaseUrl, exit: Exit) -> Taken {
        let limits = Limits::new(&self.http, &self.servers.timings, exit.proxy.is_some());
        let Servers { dns, authorities, told, http2, .. } = &self.servers;
        let via = exit.proxy.map(|address| {
            let ways = self.ways.lock();
            let name = || ways.exits.name(exit.id).unwrap_or_default().into();
            Via { address, tls: exit.tls.then(name), login: ways.exits.login(exit.id) }
        });
        let manners = Manners { limits, dns: dns.clone(), told: told.clone() };
        let site = Site::new(base.clone(), via, manners, (authorities, *http2), self.counts.clone());
        let source = Arc::new(HttpSource::new(self.network.clone(), site.clone()));
        Taken { site, source: Arc::new(Verifying::new(source, self.pool.clone())) }
    }
}

/// Whether what came is not what was asked for.
fn is_damage(error: &StoreError) -> bool {
    matches!(
        error.cause(),
        Cause::Corrupt { .. } | Cause::Untrusted(_) | Cause::WrongPart { .. } | Cause::WrongList { .. }
    )
}
