//! Resolves names of proxies before the first request, and again when their TTL expires.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Router;
use super::egress::{self, Change};
use super::proxy_lookups::{Name, Waiting};
use super::request_state::{RequestState, Step};
use crate::callback::Callback;
use crate::error::{Cause, StoreError};
use crate::transport::Resolved;
use crate::transport::source::{Fetch, Stored};

/// Maximum time before a failed name is resolved again.
const UNRESOLVED: Duration = Duration::from_secs(10);
/// Time after which requests use the resolved members of a group while others are still being resolved.
const GROUP_WAIT: Duration = Duration::from_secs(1);

impl Router {
    /// Starts due lookups of names. Every lookup ends by an answer, an error or a timeout.
    pub(super) fn look_up_names(self: &Arc<Self>) {
        let (due, is_first) = {
            let mut lookups = self.lookups.lock();
            if lookups.names.is_empty() {
                return;
            }
            (lookups.take_due(), !std::mem::replace(&mut lookups.has_begun, true))
        };
        if is_first {
            let router = Arc::downgrade(self);
            self.network.later(GROUP_WAIT, move || {
                if let Some(router) = Weak::upgrade(&router) {
                    router.routes.lock().egresses.hurry();
                    router.resume();
                }
            });
        }
        for (host, port) in due {
            let router = self.clone();
            let name = host.clone();
            let told = move |outcome| router.found(&name, port, outcome);
            self.network.resolve(&host, self.servers.dns.clone(), told);
        }
    }

    /// Keeps a request until a name is resolved, or found to have no address.
    pub(super) fn wait_for_name(
        self: Arc<Self>,
        fetch: Fetch,
        state: RequestState,
        last: Option<StoreError>,
        done: Callback<Stored>,
    ) {
        {
            let mut lookups = self.lookups.lock();
            // A finished lookup changes the routes first and resumes requests then, so that none is forgotten.
            if self.step(&fetch, &state) == Step::Wait {
                return lookups.waiting.push(Waiting { fetch, state, last, done });
            }
        }
        self.advance(fetch, state, last, done);
    }

    fn resume(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut self.lookups.lock().waiting);
        for Waiting { fetch, state, last, done } in waiting {
            self.clone().advance(fetch, state, last, done);
        }
    }

    fn found(self: &Arc<Self>, host: &str, port: u16, outcome: Result<Resolved, Cause>) {
        let dns = &self.servers.dns;
        let (due, failure) = match outcome {
            Ok(resolved) => {
                let change = self.routes.lock().egresses.resolved(host, port, &resolved.addresses, dns);
                self.addresses_changed(host, port, change);
                (resolved.until, None)
            }
            Err(cause) => {
                let why = cause.to_string();
                if self.routes.lock().egresses.unresolved(host, port, &why) {
                    self.has_no_address(host, port, &why);
                }
                (Instant::now() + dns.least_ttl.min(UNRESOLVED), Some(why))
            }
        };
        {
            let mut lookups = self.lookups.lock();
            let named = |name: &&mut Name| name.host == host && name.port == port;
            if let Some(name) = lookups.names.iter_mut().find(named) {
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
                let egresses = self.routes.lock().egresses.in_use();
                let egresses = egress::list(&egresses);
                tracing::info!("proxy {host}:{port} has other addresses; in use is {egresses}");
            }
        }
        // Sources of addresses that the proxy has no more.
        let mut sources = self.sources.lock();
        let routes = self.routes.lock();
        sources.retain(|(_, egress), _| routes.egresses.get(*egress).is_some());
    }
}
