//! What is known of all ways from here to the servers of a repository: an exit (a proxy's address, or none) and a server
//! make a way.
//!
//! One exit and one server are in use by all requests until they fail. What failed stays out of use, but for those who
//! have nothing else left, until it is found to answer again.

use std::time::{Duration, Instant};

use super::exits::{Candidate, Exit, Exits, Out};
use crate::servers::Proxy;

/// What makes one way worse than another that nothing is suspected of: the exit or the server is out of use.
const DOUBT: u32 = 8;

/// An exit and a server, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub(super) exit: Exit,
    pub(super) server: u32,
}

/// A way that could be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The exit; `None` for a proxy whose name is being resolved.
    pub(super) exit: Option<Exit>,
    pub(super) server: u32,
    /// What speaks against it already.
    pub(super) doubt: u32,
}

impl Choice {
    /// Returns the way; `None` while the proxy has no address yet.
    pub(super) fn way(&self) -> Option<Way> {
        self.exit.map(|exit| Way { exit, server: self.server })
    }
}

#[derive(Debug)]
struct Server {
    out: Option<Out>,
}

/// All ways.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) exits: Exits,
    servers: Vec<Server>,
    /// In the order in which they are asked.
    order: Vec<u32>,
    server: u32,
}

/// What is to be looked at, and the way to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Exit(Way),
    Server(Way),
}

impl Ways {
    /// The ways of these groups to so many servers.
    pub(super) fn new(groups: Vec<Vec<Proxy>>, servers: usize, sharding: bool) -> Self {
        let count = u32::try_from(servers).unwrap_or(u32::MAX);
        Self {
            exits: Exits::new(groups, sharding),
            servers: (0..count).map(|_| Server { out: None }).collect(),
            order: (0..count).collect(),
            server: 0,
        }
    }

    /// The way that an object at a place takes as long as nothing fails; `None` if there is none without a wait.
    pub(super) fn first(&self, place: u32) -> Option<Way> {
        let exit = self.exits.first(place)?;
        let server = self.server;
        self.servers.get(server as usize)?.out.is_none().then_some(Way { exit, server })
    }

    /// All ways, in the order of use.
    pub(super) fn choices(&self, place: u32) -> Vec<Choice> {
        let candidates = self.exits.candidates(place);
        let servers = self.servers_from_current();
        let mut choices = Vec::with_capacity(candidates.len() * servers.len());
        for candidate in candidates {
            let (exit, is_out) = match candidate {
                Candidate::Ready { exit, is_out } => (Some(exit), is_out),
                Candidate::Pending => (None, false),
            };
            let exit_doubt = if is_out { DOUBT } else { 0 };
            for (server, doubt) in &servers {
                choices.push(Choice { exit, server: *server, doubt: exit_doubt + doubt });
            }
        }
        choices
    }

    /// Whether one of all ways is as `wanted` says; those of proxies without an address are left out.
    pub(super) fn any(&self, wanted: impl Fn(Way) -> bool) -> bool {
        self.exits.all().any(|exit| self.order.iter().any(|server| wanted(Way { exit, server: *server })))
    }

    fn servers_from_current(&self) -> Vec<(u32, u32)> {
        let at = self.order.iter().position(|server| *server == self.server).unwrap_or(0);
        let from_current = self.order.iter().cycle().skip(at).take(self.order.len());
        from_current.map(|server| (*server, if self.is_out(*server) { DOUBT } else { 0 })).collect()
    }

    /// Takes a server out of use; whether it was in use.
    pub(super) fn leave(&mut self, server: u32, out: Out) -> bool {
        let Some(known) = self.servers.get_mut(server as usize).filter(|server| server.out.is_none()) else {
            return false;
        };
        known.out = Some(out);
        if self.server == server {
            let next = self.servers_from_current().into_iter().find(|(_, doubt)| *doubt == 0);
            self.server = next.map_or(server, |(next, _)| next);
        }
        true
    }

    /// Something came on this way: both are in use again if they were not.
    pub(super) fn served(&mut self, way: Way) -> bool {
        let exit = self.exits.answers(way.exit.id);
        self.server_answers(way.server) || exit
    }

    /// A server answers; whether that is news.
    pub(super) fn server_answers(&mut self, server: u32) -> bool {
        let rank = |ways: &Self, server: u32| ways.order.iter().position(|other| *other == server);
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

    /// What was out of use for long enough to look whether it answers again. Each is told once, and again after `next`.
    pub(super) fn due(&mut self, now: Instant, next: Duration) -> Vec<Look> {
        let Some(Choice { exit: Some(exit), server, .. }) = self.choices(0).first().copied() else {
            return Vec::new();
        };
        let exits = self.exits.due(now, next).into_iter();
        let mut looks: Vec<Look> = exits.map(|exit| Look::Exit(Way { exit, server })).collect();
        let before_current = self.order.iter().take_while(|server| **server != self.server);
        for server in before_current.copied().collect::<Vec<_>>() {
            let out = self.servers.get_mut(server as usize).and_then(|server| server.out.as_mut());
            if out.is_some_and(|out| out.is_due(now, next)) {
                looks.push(Look::Server(Way { exit, server }));
            }
        }
        looks
    }

    /// Sets the order in which servers are asked.
    pub(super) fn sort(&mut self, order: Vec<u32>) {
        let usable = order.iter().find(|server| !self.is_out(**server));
        self.server = usable.copied().unwrap_or(self.server);
        self.order = order;
    }

    /// Has only the first so many servers asked; all if that is 0.
    pub(super) fn keep(&mut self, most: usize) {
        if most > 0 {
            let mut order = self.order.clone();
            order.truncate(most);
            self.sort(order);
        }
    }

    /// Whether a failure has somewhere else to go.
    pub(super) fn is_single(&self) -> bool {
        self.exits.count() * self.servers.len() <= 1
    }

    /// The server in use.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// Why a server is out of use, if it is.
    pub(super) fn out(&self, server: u32) -> Option<&Out> {
        self.servers.get(server as usize)?.out.as_ref()
    }

    fn is_out(&self, server: u32) -> bool {
        self.out(server).is_some()
    }
}
