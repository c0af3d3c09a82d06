//! Names of proxies: resolved before the first request goes out, and again when their time is over.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Shared;
use super::exits::Change;
use super::trip::{Step, Trip};
use crate::done::Done;
use crate::error::{Cause, StoreError};
use crate::http::Resolved;
use crate::source::{Fetch, Stored};

/// A name that has no address is looked up again after so long at most.
const UNRESOLVED: Duration = Duration::from_secs(10);
/// After so long requests use the members of a group that are known, while others of it are still being resolved.
const GROUP_WAIT: Duration = Duration::from_secs(1);

/// What is known of the names of proxies.
pub(super) struct Finding {
    names: Vec<Name>,
    waiting: Vec<Waiting>,
    has_begun: bool,
}

struct Name {
    host: String,
    port: u16,
    /// When it is to be looked up; `None` while that is under way.
    due: Option<Instant>,
    failure: Option<String>,
}

/// A request that waits until a name is resolved.
struct Waiting {
    fetch: Fetch,
    trip: Trip,
    last: Option<StoreError>,
    done: Done<Stored>,
}

impl Finding {
    pub(super) fn new(names: Vec<(String, u16)>) -> Self {
        let due = Some(Instant::now());
        let name = |(host, port)| Name { host, port, due, failure: None };
        Self { names: names.into_iter().map(name).collect(), waiting: Vec::new(), has_begun: false }
    }

    /// A name without an address, and why.
    pub(super) fn failure(&self) -> (String, String) {
        let failed = self.names.iter().find_map(|name| Some((name.host.clone(), name.failure.clone()?)));
        failed.unwrap_or_else(|| ("the proxy".to_owned(), "no proxy has an address".to_owned()))
    }

    /// Has names without an address looked up by the next request, because requests have nothing else to use.
    pub(super) fn ask_again(&mut self) {
        let now = Instant::now();
        for name in self.names.iter_mut().filter(|name| name.failure.is_some()) {
            name.due = name.due.map(|due| due.min(now));
        }
    }

    /// Returns the names to be looked up now, which the caller has to do.
    fn take_due(&mut self) -> Vec<(String, u16)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for name in self.names.iter_mut().filter(|name| name.due.is_some_and(|due| due <= now)) {
            name.due = None;
            due.push((name.host.clone(), name.port));
        }
        due
    }
}

impl Shared {
    /// Sees to it that names are looked up that are due. Every lookup ends: an answer, an error or a time limit.
    pub(super) fn look_up_names(self: &Arc<Self>) {
        let (due, is_first) = {
            let mut finding = self.finding.lock();
            if finding.names.is_empty() {
                return;
            }
            (finding.take_due(), !std::mem::replace(&mut finding.has_begun, true))
        };
        if is_first {
            let shared = Arc::downgrade(self);
            self.network.later(GROUP_WAIT, move || {
                if let Some(shared) = Weak::upgrade(&shared) {
                    shared.ways.lock().exits.hurry();
                    shared.resume();
                }
            });
        }
        for (host, port) in due {
            let shared = self.clone();
            let name = host.clone();
            let told = move |outcome| shared.found(&name, port, outcome);
            self.network.resolve(&host, self.servers.dns.clone(), told);
        }
    }

    /// Keeps a request until a name is resolved, or found to have no address.
    pub(super) fn wait_for_name(
        self: Arc<Self>,
        fetch: Fetch,
        trip: Trip,
        last: Option<StoreError>,
        done: Done<Stored>,
    ) {
        {
            let mut finding = self.finding.lock();
            // Whoever resolves a name changes the ways first and resumes requests then, so that none is forgotten.
            if self.step(&fetch, &trip) == Step::Wait {
                return finding.waiting.push(Waiting { fetch, trip, last, done });
            }
        }
        self.advance(fetch, trip, last, done);
    }

    fn resume(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut self.finding.lock().waiting);
        for Waiting { fetch, trip, last, done } in waiting {
            self.clone().advance(fetch, trip, last, done);
        }
    }

    fn found(self: &Arc<Self>, host: &str, port: u16, outcome: Result<Resolved, Cause>) {
        let dns = &self.servers.dns;
        let (due, failure) = match outcome {
            Ok(resolved) => {
                let change = self.ways.lock().exits.resolved(host, port, &resolved.addresses, dns);
                self.addresses_changed(host, port, change);
                (resolved.until, None)
            }
            Err(cause) => {
                let why = cause.to_string();
                if self.ways.lock().exits.unresolved(host, port, &why) {
                    self.has_no_address(host, port, &why);
                }
                (Instant::now() + dns.least_ttl.min(UNRESOLVED), Some(why))
            }
        };
        {
            let mut finding = self.finding.lock();
            let named = |name: &&mut Name| name.host == host && name.port == port;
            if let Some(name) = finding.names.iter_mut().find(named) {
                (name.due, name.failure) = (Some(due), failure);
            }
        }
        self.resume();
    }

    fn addresses_changed(&self, host: &str, port: u16, change: Change) {
        match change {
            Change::None => return,
            Change::Back => self.back(&format!("proxy {host}:{port} has an address now")),
            Change::Moved => {
                let exits = self.ways.lock().exits.in_use();
                let exits = super::note::list(&exits);
                self.notes.say(&format!("proxy {host}:{port} has other addresses; in use is {exits}"));
            }
        }
        // Sources of addresses that the proxy has no more.
        let mut sources = self.sources.lock();
        let ways = self.ways.lock();
        sources.retain(|(_, exit), _| ways.exits.get(*exit).is_some());
    }
}
