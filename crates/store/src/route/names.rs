//! Addresses of proxies: found before the first request goes out, and again when they are due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::trip::Trip;
use crate::done::Done;
use crate::error::Cause;
use crate::http::Resolved;
use crate::source::{Fetch, Stored};

/// A name that has no address is looked up again after so long at most.
const UNRESOLVED: Duration = Duration::from_secs(10);

/// What is known of the names of proxies.
pub(super) struct Finding {
    names: Vec<Name>,
    /// Requests that came before there was an exit.
    waiting: Vec<(Fetch, Done<Stored>)>,
    /// Names that nothing is known of yet.
    open: usize,
}

struct Name {
    host: String,
    port: u16,
    /// When it is to be looked up; `None` while that is under way.
    due: Option<Instant>,
    failure: Option<String>,
    is_known: bool,
}

impl Finding {
    pub(super) fn new(names: Vec<(String, u16)>) -> Self {
        let due = Some(Instant::now());
        let open = names.len();
        let name = |(host, port)| Name { host, port, due, failure: None, is_known: false };
        Self { names: names.into_iter().map(name).collect(), waiting: Vec::new(), open }
    }

    /// A name without an address, and why.
    pub(super) fn failure(&self) -> (String, String) {
        let failed = self.names.iter().find_map(|name| Some((name.host.clone(), name.failure.clone()?)));
        failed.unwrap_or_else(|| ("the proxy".to_owned(), "no proxy has an address".to_owned()))
    }
}

impl Shared {
    /// Sees to it that names are looked up that are due. Keeps a request that has no exit yet; otherwise gives it back.
    pub(super) fn find_names(
        self: &Arc<Self>,
        fetch: Fetch,
        done: Done<Stored>,
    ) -> Option<(Fetch, Done<Stored>)> {
        let now = Instant::now();
        let mut due = Vec::new();
        let kept = {
            let mut finding = self.finding.lock();
            if finding.names.is_empty() {
                return Some((fetch, done));
            }
            for name in finding.names.iter_mut().filter(|name| name.due.is_some_and(|due| due <= now)) {
                name.due = None;
                due.push((name.host.clone(), name.port));
            }
            if finding.open > 0 && !self.ways.lock().has_exit() {
                finding.waiting.push((fetch, done));
                None
            } else {
                Some((fetch, done))
            }
        };
        for (host, port) in due {
            let shared = self.clone();
            let told = {
                let host = host.clone();
                move |outcome| shared.found(&host, port, outcome)
            };
            self.network.resolve(&host, self.servers.dns.clone(), told);
        }
        kept
    }

    fn found(self: &Arc<Self>, host: &str, port: u16, outcome: Result<Resolved, Cause>) {
        let dns = &self.servers.dns;
        let (due, failure) = match outcome {
            Ok(resolved) => {
                self.ways.lock().found(host, port, &resolved.addresses, dns);
                (resolved.until, None)
            }
            // The addresses that it had are used on.
            Err(cause) => (Instant::now() + dns.least_ttl.min(UNRESOLVED), Some(cause.to_string())),
        };
        let mut ready = Vec::new();
        {
            let mut finding = self.finding.lock();
            let named = |name: &&mut Name| name.host == host && name.port == port;
            if let Some(name) = finding.names.iter_mut().find(named) {
                (name.due, name.failure) = (Some(due), failure);
                let was_known = std::mem::replace(&mut name.is_known, true);
                finding.open -= usize::from(!was_known);
            }
            if finding.open == 0 || self.ways.lock().has_exit() {
                ready.append(&mut finding.waiting);
            }
        }
        for (fetch, done) in ready {
            let trip = Trip::new(fetch.fresh);
            self.clone().begin(fetch, trip, done);
        }
    }
}
