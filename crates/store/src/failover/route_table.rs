//! State of all routes to the servers of a repository. An egress (a proxy's address, or none) and a server make a
//! route.
//!
//! One egress and one server are in use by all requests until they fail. One that is marked down is used only by
//! requests without another route, until it is found to answer again.

use std::time::{Duration, Instant};

use super::egress::{Candidate, Egress, EgressGroups, Outage};
use crate::servers::Proxy;

/// Penalty of a route whose egress or server is marked down.
const DOWN_PENALTY: u32 = 8;

/// An egress and a server, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route {
    pub(super) egress: Egress,
    pub(super) server: u32,
}

/// A candidate route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The egress; `None` for a proxy whose name is being resolved.
    pub(super) egress: Option<Egress>,
    pub(super) server: u32,
    /// Penalty of the route before any attempt.
    pub(super) penalty: u32,
}

impl Choice {
    /// Returns the route; `None` while the proxy has no address.
    pub(super) fn route(&self) -> Option<Route> {
        self.egress.map(|egress| Route { egress, server: self.server })
    }
}

#[derive(Debug)]
struct Server {
    out: Option<Outage>,
}

/// State of all routes.
#[derive(Debug)]
pub(super) struct RouteTable {
    pub(super) egresses: EgressGroups,
    servers: Vec<Server>,
    /// Servers in the order of use.
    order: Vec<u32>,
    server: u32,
}

/// Egress or server to probe, and the route for the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Egress(Route),
    Server(Route),
}

impl RouteTable {
    /// Makes the table of the routes from these groups to `servers` servers.
    pub(super) fn new(groups: Vec<Vec<Proxy>>, servers: usize, sharding: bool) -> Self {
        let count = u32::try_from(servers).unwrap_or(u32::MAX);
        Self {
            egresses: EgressGroups::new(groups, sharding),
            servers: (0..count).map(|_| Server { out: None }).collect(),
            order: (0..count).collect(),
            server: 0,
        }
    }

    /// Returns the route of an object at a place while nothing fails; `None` if none is usable without a wait.
    pub(super) fn first(&self, place: u32) -> Option<Route> {
        let egress = self.egresses.first(place)?;
        let server = self.server;
        self.servers.get(server as usize)?.out.is_none().then_some(Route { egress, server })
    }

    /// Returns all routes in the order of use.
    pub(super) fn choices(&self, place: u32) -> Vec<Choice> {
        let candidates = self.egresses.candidates(place);
        let servers = self.servers_from_current();
        let mut choices = Vec::with_capacity(candidates.len() * servers.len());
        for candidate in candidates {
            let (egress, is_out) = match candidate {
                Candidate::Ready { egress, is_out } => (Some(egress), is_out),
                Candidate::Pending => (None, false),
            };
            let egress_penalty = if is_out { DOWN_PENALTY } else { 0 };
            for (server, penalty) in &servers {
                choices.push(Choice { egress, server: *server, penalty: egress_penalty + penalty });
            }
        }
        choices
    }

    /// Returns true if `wanted` holds for any route; proxies without an address are skipped.
    pub(super) fn any(&self, wanted: impl Fn(Route) -> bool) -> bool {
        self.egresses
            .all()
            .any(|egress| self.order.iter().any(|server| wanted(Route { egress, server: *server })))
    }

    fn servers_from_current(&self) -> Vec<(u32, u32)> {
        let at = self.order.iter().position(|server| *server == self.server).unwrap_or(0);
        let from_current = self.order.iter().cycle().skip(at).take(self.order.len());
        from_current.map(|server| (*server, if self.is_out(*server) { DOWN_PENALTY } else { 0 })).collect()
    }

    /// Marks a server down; returns true if it was up.
    pub(super) fn mark_down(&mut self, server: u32, out: Outage) -> bool {
        let Some(known) = self.servers.get_mut(server as usize).filter(|server| server.out.is_none()) else {
            return false;
        };
        known.out = Some(out);
        if self.server == server {
            let next = self.servers_from_current().into_iter().find(|(_, penalty)| *penalty == 0);
            self.server = next.map_or(server, |(next, _)| next);
        }
        true
    }

    /// Marks the egress and server of a route as up; returns whether one was down.
    pub(super) fn served(&mut self, route: Route) -> bool {
        let egress = self.egresses.answers(route.egress.id);
        self.server_answers(route.server) || egress
    }

    /// Marks a server as up; returns whether it was down.
    pub(super) fn server_answers(&mut self, server: u32) -> bool {
        let rank = |routes: &Self, server: u32| routes.order.iter().position(|other| *other == server);
        let current_is_out = self.is_out(self.server);
        let Some(known) = self.servers.get_mut(server as usize) else { return false };
        if known.out.take().is_none() {
            return false;
        }
        if current_is_out || rank(self, server) < rank(self, self.server) {
            self.server = server;
        }
        true
    }

    /// Returns the egresses and servers that are due for a probe. Each is returned once, and again after `next`.
    pub(super) fn due(&mut self, now: Instant, next: Duration) -> Vec<Probe> {
        let Some(Choice { egress: Some(egress), server, .. }) = self.choices(0).first().copied() else {
            return Vec::new();
        };
        let egresses = self.egresses.due(now, next).into_iter();
        let mut probes: Vec<Probe> = egresses.map(|egress| Probe::Egress(Route { egress, server })).collect();
        let before_current = self.order.iter().take_while(|server| **server != self.server);
        for server in before_current.copied().collect::<Vec<_>>() {
            let out = self.servers.get_mut(server as usize).and_then(|server| server.out.as_mut());
            if out.is_some_and(|out| out.is_due(now, next)) {
                probes.push(Probe::Server(Route { egress, server }));
            }
        }
        probes
    }

    /// Sets the order of servers.
    pub(super) fn sort(&mut self, order: Vec<u32>) {
        let usable = order.iter().find(|server| !self.is_out(**server));
        self.server = usable.copied().unwrap_or(self.server);
        self.order = order;
    }

    /// Limits the servers in use to the first so many; 0 for all.
    pub(super) fn keep(&mut self, most: usize) {
        if most > 0 {
            let mut order = self.order.clone();
            order.truncate(most);
            self.sort(order);
        }
    }

    /// Returns true if there is only one route.
    pub(super) fn is_single(&self) -> bool {
        self.egresses.count() * self.servers.len() <= 1
    }

    /// Returns the server in use.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// Returns the outage of a server, if it is down.
    pub(super) fn out(&self, server: u32) -> Option<&Outage> {
        self.servers.get(server as usize)?.out.as_ref()
    }

    /// Returns true if the egress or the server of a route is marked down.
    pub(super) fn is_down(&self, route: Route) -> bool {
        self.is_out(route.server) || self.egresses.is_out(route.egress.id)
    }

    fn is_out(&self, server: u32) -> bool {
        self.out(server).is_some()
    }
}
