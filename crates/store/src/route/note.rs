//! What is told of fail-overs: counters, log lines, and who is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Shared;
use super::exits::{Exit, Out};
use super::fault::Fault;
use super::trip::Trip;
use super::ways::Way;
use crate::engine::Log;
use crate::error::StoreError;
use crate::status::{Reach, RouteStatus, unix_now};

/// What was only suspected is looked at again after so long.
const SOON: Duration = Duration::from_secs(10);

/// Counters of one route.
pub(super) struct Notes {
    log: Log,
    proxies: AtomicU64,
    servers: AtomicU64,
    back: AtomicU64,
    retries: AtomicU64,
    last: Mutex<Option<(u64, String)>>,
}

impl Notes {
    pub(super) fn new(log: Log) -> Self {
        let zero = || AtomicU64::new(0);
        Self { log, proxies: zero(), servers: zero(), back: zero(), retries: zero(), last: Mutex::default() }
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn error(&self, error: &StoreError) {
        *self.last.lock() = Some((unix_now(), error.full_text()));
    }

    pub(super) fn say(&self, text: &str) {
        self.log.say(text);
    }
}

impl Shared {
    /// Leaves what a failure shows to be out of use.
    pub(super) fn leave_for_sure(&self, way: Way, fault: Fault, error: &StoreError) {
        let now = Instant::now();
        let timings = &self.servers.timings;
        if fault.no_exit {
            self.burn(way.exit, timings.proxy_reset.map(|reset| now + reset), &error.full_text());
        }
        if fault.no_server {
            self.leave(way.server, timings.server_reset.map(|reset| now + reset), &error.full_text());
        }
    }

    /// A request was served. What it met on other ways is now known to be no fault of the object.
    pub(super) fn served(&self, way: Way, trip: &Trip) {
        if trip.has_failed() {
            let soon =
                |reset: Option<Duration>| Some(Instant::now() + reset.map_or(SOON, |reset| reset.min(SOON)));
            let timings = &self.servers.timings;
            let exits: Vec<Exit> = {
                let ways = self.ways.lock();
                trip.failed_exits(way).filter_map(|id| ways.exits.get(id)).collect()
            };
            let why = self.notes.last.lock().as_ref().map_or_else(String::new, |(_, text)| text.clone());
            for exit in exits {
                self.burn(exit, soon(timings.proxy_reset), &why);
            }
            for server in trip.failed_servers(way) {
                self.leave(server, soon(timings.server_reset), &why);
            }
        }
        if self.troubled.load(Ordering::Relaxed) && self.ways.lock().served(way) {
            self.came_back(&format!("{} and {}", way.exit, self.bases[way.server as usize]));
        }
    }

    fn burn(&self, exit: Exit, again: Option<Instant>, why: &str) {
        let next = {
            let mut ways = self.ways.lock();
            if !ways.exits.burn(exit.id, Out::new(again, why)) {
                return;
            }
            ways.exits.in_use()
        };
        self.troubled.store(true, Ordering::Relaxed);
        self.notes.proxies.fetch_add(1, Ordering::Relaxed);
        self.notes.say(&format!("proxy {exit} is out of use, {}: {why}", going_on(&next)));
        self.move_queued(|_, id| id == exit.id);
    }

    /// Tells that a proxy is out of use because its name has no address.
    pub(super) fn has_no_address(&self, host: &str, port: u16, why: &str) {
        let next = self.ways.lock().exits.in_use();
        self.notes.proxies.fetch_add(1, Ordering::Relaxed);
        self.notes.say(&format!("proxy {host}:{port} is out of use, {}: {why}", going_on(&next)));
    }

    fn leave(&self, server: u32, again: Option<Instant>, why: &str) {
        let next = {
            let mut ways = self.ways.lock();
            if self.bases.len() < 2 || !ways.leave(server, Out::new(again, why)) {
                return;
            }
            ways.server()
        };
        self.troubled.store(true, Ordering::Relaxed);
        self.notes.servers.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (&self.bases[server as usize], &self.bases[next as usize]);
        let to = if next == server { "nothing is left".to_owned() } else { format!("going on with {to}") };
        self.notes.say(&format!("server {from} is out of use, {to}: {why}"));
        self.move_queued(|at, _| at == server);
    }

    /// Has requests that wait for their turn on ways like this take another.
    fn move_queued(&self, is_left: impl Fn(u32, u32) -> bool) {
        let sources = self.sources.lock();
        let left = sources.iter().filter(|((server, exit), _)| is_left(*server, *exit));
        left.for_each(|(_, taken)| self.network.leave(Arc::clone(&taken.site)));
    }

    /// Something that was out of use answers again.
    pub(super) fn came_back(&self, what: &str) {
        self.back(&format!("{what} answers again"));
    }

    /// Something can be used again.
    pub(super) fn back(&self, how: &str) {
        self.notes.back.fetch_add(1, Ordering::Relaxed);
        let (exits, server) = {
            let ways = self.ways.lock();
            (ways.exits.in_use(), ways.server())
        };
        let server = &self.bases[server as usize];
        self.notes.say(&format!("{how}; in use are {} and {server}", list(&exits)));
    }

    /// Who is in use, and what failed so far.
    pub(super) fn route(&self) -> RouteStatus {
        let ways = self.ways.lock();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let server = |(number, base): (usize, &crate::http::BaseUrl)| {
            let active = number == ways.server() as usize;
            let mut reach = Reach { name: base.to_string(), active, ..Reach::default() };
            if let Some(out) = u32::try_from(number).ok().and_then(|number| ways.out(number)) {
                out.show(&mut reach);
                reach.active = active;
            }
            reach
        };
        RouteStatus {
            servers: self.bases.iter().enumerate().map(server).collect(),
            proxies: ways.exits.shown(),
            server_failovers: get(&self.notes.servers),
            proxy_failovers: get(&self.notes.proxies),
            recoveries: get(&self.notes.back),
            retries: get(&self.notes.retries),
            last_error: self.notes.last.lock().clone(),
        }
    }
}

/// Says what requests use from now on.
fn going_on(next: &[Exit]) -> String {
    if next.is_empty() { "nothing is left".to_owned() } else { format!("going on with {}", list(next)) }
}

pub(super) fn list(exits: &[Exit]) -> String {
    let names: Vec<String> = exits.iter().map(Exit::to_string).collect();
    names.join(" and ")
}
