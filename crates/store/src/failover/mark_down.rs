//! Marks proxies and servers down after failures, and up when they reply again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Router;
use super::egress::{Egress, Outage, list};
use super::fault::Fault;
use super::request_state::RequestState;
use super::route_table::Route;
use crate::error::StoreError;
use crate::transport::status::{EndpointStatus, RouteStatus};

/// Time after which a suspected proxy or server is probed.
const SOON: Duration = Duration::from_secs(10);

impl Router {
    /// Marks down the proxy or server that a failure proves to be unusable.
    pub(super) fn mark_certain_faults(&self, route: Route, fault: Fault, error: &StoreError) {
        let now = Instant::now();
        let timings = &self.servers.timings;
        if fault.no_egress {
            self.mark_egress_down(
                route.egress,
                timings.proxy_reset.map(|reset| now + reset),
                &error.full_text(),
            );
        }
        if fault.no_server {
            self.mark_server_down(
                route.server,
                timings.server_reset.map(|reset| now + reset),
                &error.full_text(),
            );
        }
    }

    /// Notes a served request: its failures on other routes were not the object's fault, so marks those routes down.
    pub(super) fn served(&self, route: Route, state: &RequestState) {
        if state.is_further() && state.took() < self.http.hedge {
            self.mark_slow(route, state.others());
        }
        if state.has_failed() {
            let soon =
                |reset: Option<Duration>| Some(Instant::now() + reset.map_or(SOON, |reset| reset.min(SOON)));
            let timings = &self.servers.timings;
            let egresses: Vec<Egress> = {
                let routes = self.routes.lock();
                state.failed_egresses(route).filter_map(|id| routes.egresses.get(id)).collect()
            };
            let why = self.failures.last.lock().as_ref().map_or_else(String::new, |(_, text)| text.clone());
            for egress in egresses {
                self.mark_egress_down(egress, soon(timings.proxy_reset), &why);
            }
            for server in state.failed_servers(route) {
                self.mark_server_down(server, soon(timings.server_reset), &why);
            }
        }
        if self.troubled.load(Ordering::Relaxed) && self.routes.lock().served(route) {
            self.came_back(&format!("{} and {}", route.egress, self.bases[route.server as usize]));
        }
    }

    pub(super) fn mark_egress_down(&self, egress: Egress, again: Option<Instant>, why: &str) {
        let next = {
            let mut routes = self.routes.lock();
            if !routes.egresses.mark_down(egress.id, Outage::new(again, why)) {
                return;
            }
            routes.egresses.in_use()
        };
        self.troubled.store(true, Ordering::Relaxed);
        self.failures.proxies.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(proxy = %egress, why, "proxy {egress} is out of use, {}: {why}", going_on(&next));
        self.move_queued(|_, id| id == egress.id);
    }

    /// Logs that a proxy is down because its name has no address.
    pub(super) fn has_no_address(&self, host: &str, port: u16, why: &str) {
        let next = self.routes.lock().egresses.in_use();
        self.failures.proxies.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            proxy = host,
            port,
            why,
            "proxy {host}:{port} is out of use, {}: {why}",
            going_on(&next)
        );
    }

    pub(super) fn mark_server_down(&self, server: u32, again: Option<Instant>, why: &str) {
        let next = {
            let mut routes = self.routes.lock();
            if self.bases.len() < 2 || !routes.mark_down(server, Outage::new(again, why)) {
                return;
            }
            routes.server()
        };
        self.troubled.store(true, Ordering::Relaxed);
        self.failures.servers.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (&self.bases[server as usize], &self.bases[next as usize]);
        let to = if next == server { "nothing is left".to_owned() } else { format!("going on with {to}") };
        tracing::warn!(server = %from, why, "server {from} is out of use, {to}: {why}");
        self.move_queued(|at, _| at == server);
    }

    /// Moves queued requests of matching routes to other routes.
    fn move_queued(&self, is_left: impl Fn(u32, u32) -> bool) {
        let sources = self.sources.lock();
        let left = sources.iter().filter(|((server, egress), _)| is_left(*server, *egress));
        left.for_each(|(_, taken)| self.network.requeue(Arc::clone(&taken.site)));
    }

    /// Logs that a proxy or server replies again.
    pub(super) fn came_back(&self, what: &str) {
        self.back(&format!("{what} answers again"));
    }

    /// Logs that a proxy or server is usable again.
    pub(super) fn back(&self, how: &str) {
        self.failures.back.fetch_add(1, Ordering::Relaxed);
        let (egresses, server) = {
            let routes = self.routes.lock();
            (routes.egresses.in_use(), routes.server())
        };
        let server = &self.bases[server as usize];
        tracing::info!("{how}; in use are {} and {server}", list(&egresses));
    }

    /// Returns the servers and proxies in use, and the failures so far.
    pub(super) fn route_status(&self) -> RouteStatus {
        let routes = self.routes.lock();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let server = |(number, base): (usize, &crate::transport::BaseUrl)| {
            let active = number == routes.server() as usize;
            let mut reach = EndpointStatus { name: base.to_string(), active, ..EndpointStatus::default() };
            if let Some(out) = u32::try_from(number).ok().and_then(|number| routes.out(number)) {
                out.show(&mut reach);
                reach.active = active;
            }
            reach
        };
        RouteStatus {
            servers: self.bases.iter().enumerate().map(server).collect(),
            proxies: routes.egresses.shown(),
            server_failovers: get(&self.failures.servers),
            proxy_failovers: get(&self.failures.proxies),
            recoveries: get(&self.failures.back),
            retries: get(&self.failures.retries),
            last_error: self.failures.last.lock().clone(),
        }
    }
}

/// Returns a text that names the egresses now in use.
fn going_on(next: &[Egress]) -> String {
    if next.is_empty() { "nothing is left".to_owned() } else { format!("going on with {}", list(next)) }
}
