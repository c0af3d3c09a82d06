//! Servers that a metalink server names.
//!
//! ```text
//!   no link is known: a request goes to a metalink server ─► its answer, mostly a redirect, has `Link` fields
//!   links are known:  requests go to the linked servers, until these are too old or all of them fail
//! ```
//!
//! Source: `download.cc` of CernVM-FS 2.14.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{EngineResources, Routed};
use crate::callback::Callback;
use crate::error::{Cause, StoreError};
use crate::servers::{Order, Servers};
use crate::transport::links::Links;
use crate::transport::source::{Fetch, Source, Stored};
use crate::transport::status::NetworkStatus;

/// A repository on the servers that metalink servers name.
pub(crate) struct Metalinked(Arc<State>);

struct State {
    around: EngineResources,
    /// Metalink servers, and how they and the linked servers are reached.
    servers: Servers,
    /// Time for which linked servers are used before a metalink server is asked again.
    kept: Duration,
    metalinks: Routed,
    linked: Mutex<Option<Linked>>,
}

/// Servers that were linked to.
#[derive(Clone)]
struct Linked {
    routed: Arc<Routed>,
    urls: Vec<String>,
    since: Instant,
}

impl Metalinked {
    /// Creates the source; `kept` is the time for which links are used.
    pub(crate) fn new(around: EngineResources, servers: Servers, kept: Duration) -> Result<Self, StoreError> {
        // Metalink servers are tried in their order, and answer with redirects.
        let servers = Servers { redirects: true, order: Order::Given, most: 0, metalink: None, ..servers };
        let metalinks = Routed::new(around.clone(), servers.clone())?;
        Ok(Self(Arc::new(State { around, servers, kept, metalinks, linked: Mutex::default() })))
    }
}

impl State {
    fn linked(&self) -> Option<Linked> {
        self.linked.lock().clone().filter(|linked| linked.since.elapsed() < self.kept)
    }

    /// Sends a request to a metalink server, and remembers the servers that its answer links to.
    fn ask(self: Arc<Self>, mut fetch: Fetch, done: Callback<Stored>) {
        let links = Arc::new(Links::default());
        fetch.http.links = Some(links.clone());
        let (state, path) = (self.clone(), fetch.path.clone());
        let answered = Callback::new(move |outcome| {
            state.remember(links.bases(&path));
            done.give(outcome);
        });
        self.metalinks.fetch(fetch, answered);
    }

    fn remember(&self, mut urls: Vec<String>) {
        // A metalink server that links to itself would be asked forever.
        urls.retain(|url| !self.servers.urls.contains(url));
        if urls.is_empty() {
            return;
        }
        let mut linked = self.linked.lock();
        let since = Instant::now();
        match &mut *linked {
            // The same servers keep their connections and states.
            Some(known) if known.urls == urls => known.since = since,
            _ => {
                let servers = Servers { urls: urls.clone(), ..self.servers.clone() };
                match Routed::new(self.around.clone(), servers) {
                    Ok(routed) => *linked = Some(Linked { routed: Arc::new(routed), urls, since }),
                    Err(error) => tracing::warn!("links of a metalink server are not used: {error}"),
                }
            }
        }
    }

    /// Forgets linked servers that failed, unless others were linked to meanwhile.
    fn forget(&self, failed: &Linked) {
        let mut linked = self.linked.lock();
        if linked.as_ref().is_some_and(|linked| Arc::ptr_eq(&linked.routed, &failed.routed)) {
            *linked = None;
        }
    }
}

impl Source for Metalinked {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let state = self.0.clone();
        let Some(linked) = state.linked() else { return state.ask(fetch, done) };
        // The reader of a relayed response has bytes of it already.
        let again = fetch.relay.is_none().then(|| fetch.clone());
        let routed = linked.routed.clone();
        let answered = Callback::new(move |outcome| match (outcome, again) {
            (Err(error), Some(again)) if !is_final(&error) => {
                state.forget(&linked);
                state.ask(again, done);
            }
            (outcome, _) => done.give(outcome),
        });
        routed.fetch(fetch, answered);
    }

    fn describe(&self) -> String {
        self.0.metalinks.describe()
    }

    fn routes(&self) -> usize {
        self.0.linked().map_or_else(|| self.0.metalinks.routes(), |linked| linked.routed.routes())
    }

    fn network(&self) -> NetworkStatus {
        self.0.linked().map_or_else(|| self.0.metalinks.network(), |linked| linked.routed.network())
    }
}

/// Returns true if other servers would fail likewise.
fn is_final(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Missing { .. } | Cause::Cancelled | Cause::Interrupted)
}
