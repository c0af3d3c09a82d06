//! Tracks the lookups of proxy names, and the requests that wait for them.

use std::time::Instant;

use super::request_state::RequestState;
use crate::callback::Callback;
use crate::error::StoreError;
use crate::transport::source::{Fetch, Stored};

/// State of the lookups of proxy names.
pub(super) struct ProxyLookups {
    pub(super) names: Vec<Name>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) has_begun: bool,
}

/// A proxy name and the state of its lookup.
pub(super) struct Name {
    pub(super) host: String,
    pub(super) port: u16,
    /// Time of the next lookup; `None` while one is in progress.
    pub(super) due: Option<Instant>,
    pub(super) failure: Option<String>,
}

/// A request that waits for the resolution of a name.
pub(super) struct Waiting {
    pub(super) fetch: Fetch,
    pub(super) state: RequestState,
    pub(super) last: Option<StoreError>,
    pub(super) done: Callback<Stored>,
}

impl ProxyLookups {
    pub(super) fn new(names: Vec<(String, u16)>) -> Self {
        let due = Some(Instant::now());
        let name = |(host, port)| Name { host, port, due, failure: None };
        Self { names: names.into_iter().map(name).collect(), waiting: Vec::new(), has_begun: false }
    }

    /// Returns a name without an address, and the reason.
    pub(super) fn failure(&self) -> (String, String) {
        let failed = self.names.iter().find_map(|name| Some((name.host.clone(), name.failure.clone()?)));
        failed.unwrap_or_else(|| ("the proxy".to_owned(), "no proxy has an address".to_owned()))
    }

    /// Makes the next request resolve failed names again, because requests have no other route.
    pub(super) fn ask_again(&mut self) {
        let now = Instant::now();
        for name in self.names.iter_mut().filter(|name| name.failure.is_some()) {
            name.due = name.due.map(|due| due.min(now));
        }
    }

    /// Returns the names that are due for resolution by the caller.
    pub(super) fn take_due(&mut self) -> Vec<(String, u16)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for name in self.names.iter_mut().filter(|name| name.due.is_some_and(|due| due <= now)) {
            name.due = None;
            due.push((name.host.clone(), name.port));
        }
        due
    }
}
