//! What is known of all ways from here to the servers of a repository: an exit (a proxy's address, or none) and a server
//! make a way.
//!
//! One exit and one server are in use by all requests until they fail. What failed stays out of use, but for those who
//! have nothing else left, until it is found to answer again.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::ring::Ring;
use crate::servers::{Dns, Family, Proxy};

/// What makes one way worse than another that nothing is suspected of: the exit or the server is out of use.
const DOUBT: u32 = 8;

/// How to leave this machine: through a proxy's address, or directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exit {
    pub(super) id: u32,
    /// `None` for no proxy.
    pub(super) proxy: Option<SocketAddr>,
    /// Whether it is spoken to over https.
    pub(super) tls: bool,
}

/// An exit and a server, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub(super) exit: Exit,
    pub(super) server: u32,
}

/// A way that could be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) way: Way,
    /// What speaks against it already.
    pub(super) doubt: u32,
}

/// Something that is out of use, and when it is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Out {
    again: Option<Instant>,
}

#[derive(Debug)]
struct End {
    exit: Exit,
    out: Option<Out>,
}

/// A member of a group, and its addresses.
#[derive(Debug)]
struct Member {
    proxy: Proxy,
    ends: Vec<End>,
}

#[derive(Debug)]
struct Server {
    out: Option<Out>,
}

/// All ways.
#[derive(Debug)]
pub(super) struct Ways {
    groups: Vec<Vec<Member>>,
    group: usize,
    /// The exit in use, if it isn't the object that decides.
    chosen: Option<u32>,
    ring: Option<Ring>,
    sharding: bool,
    servers: Vec<Server>,
    /// In the order in which they are asked.
    order: Vec<u32>,
    server: u32,
    ids: u32,
}

/// What is to be looked at, and the way to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Exit(Way),
    Server(Way),
}

impl Ways {
    /// The ways of these groups to so many servers. Names have no addresses yet.
    pub(super) fn new(groups: Vec<Vec<Proxy>>, servers: usize, sharding: bool) -> Self {
        let member = |proxy| Member { proxy, ends: Vec::new() };
        let groups: Vec<Vec<Member>> =
            groups.into_iter().map(|group| group.into_iter().map(member).collect()).collect();
        let count = u32::try_from(servers).unwrap_or(u32::MAX);
        let mut ways = Self {
            groups,
            group: 0,
            chosen: None,
            ring: None,
            sharding,
            servers: (0..count).map(|_| Server { out: None }).collect(),
            order: (0..count).collect(),
            server: 0,
            ids: 0,
        };
        for group in 0..ways.groups.len() {
            for member in 0..ways.groups[group].len() {
                if ways.groups[group][member].proxy == Proxy::Direct {
                    let exit = ways.exit(None);
                    ways.groups[group][member].ends.push(End { exit, out: None });
                }
            }
        }
        ways.choose();
        ways
    }

    fn exit(&mut self, proxy: Option<SocketAddr>) -> Exit {
        self.ids += 1;
        Exit { id: self.ids, proxy, tls: false }
    }

    /// The proxies by name, to be resolved.
    pub(super) fn names(&self) -> Vec<(String, u16)> {
        let mut names = Vec::new();
        for member in self.groups.iter().flatten() {
            if let Proxy::At { host, port, .. } = &member.proxy
                && !names.contains(&(host.clone(), *port))
            {
                names.push((host.clone(), *port));
            }
        }
        names
    }

    /// Takes in the addresses of a proxy; those that it had keep what is known of them.
    pub(super) fn found(&mut self, name: &str, port: u16, addresses: &[IpAddr], dns: &Dns) {
        let addresses = preferred(addresses, dns.family, dns.addresses_max);
        let wanted: Vec<SocketAddr> = addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let mut ids = self.ids;
        for member in self.groups.iter_mut().flatten() {
            if let Proxy::At { host, port: at, tls } = &member.proxy
                && host == name
                && *at == port
            {
                member.ends.retain(|end| end.exit.proxy.is_some_and(|proxy| wanted.contains(&proxy)));
                for proxy in &wanted {
                    if !member.ends.iter().any(|end| end.exit.proxy == Some(*proxy)) {
                        ids += 1;
                        member
                            .ends
                            .push(End { exit: Exit { id: ids, proxy: Some(*proxy), tls: *tls }, out: None });
                    }
                }
            }
        }
        self.ids = ids;
        self.choose();
    }

    /// The name of the proxy that an exit belongs to.
    pub(super) fn name(&self, id: u32) -> Option<&str> {
        let mut members = self.groups.iter().flatten();
        let member = members.find(|member| member.ends.iter().any(|end| end.exit.id == id))?;
        match &member.proxy {
            Proxy::At { host, .. } => Some(host),
            Proxy::Direct => None,
        }
    }

    /// Whether there is an exit in the group in use.
    pub(super) fn has_exit(&self) -> bool {
        self.alive(self.group).next().is_some()
    }

    fn alive(&self, group: usize) -> impl Iterator<Item = Exit> + '_ {
        let members = self.groups.get(group).into_iter().flatten();
        let ends = members.flat_map(|member| &member.ends);
        ends.filter(|end| end.out.is_none()).map(|end| end.exit)
    }

    /// Picks an exit of the group in use, or of the next group that has one.
    fn choose(&mut self) {
        let count = self.groups.len();
        let usable = |group: &usize| self.alive(*group).next().is_some();
        if let Some(group) = (0..count).map(|step| (self.group + step) % count).find(usable) {
            self.group = group;
        }
        let alive: Vec<Exit> = self.alive(self.group).collect();
        let urls: Vec<(u32, String)> = alive.iter().filter_map(|exit| Some((exit.id, exit.url()?))).collect();
        self.ring = self.sharding.then(|| Ring::of(urls.iter().map(|(id, url)| (*id, url.as_str()))));
        if self.chosen.is_none_or(|chosen| !alive.iter().any(|exit| exit.id == chosen)) {
            self.chosen = alive.get(random(alive.len())).map(|exit| exit.id);
        }
    }

    /// The way that an object at a place takes as long as nothing fails.
    pub(super) fn first(&self, place: u32) -> Option<Way> {
        let id = match &self.ring {
            Some(ring) => ring.order(place).first().copied().or(self.chosen)?,
            None => self.chosen?,
        };
        let exit = self.alive(self.group).find(|exit| exit.id == id)?;
        let server = self.server;
        self.servers.get(server as usize)?.out.is_none().then_some(Way { exit, server })
    }

    /// All ways, the better ones first.
    pub(super) fn choices(&self, place: u32) -> Vec<Choice> {
        let exits = self.exits(place);
        let servers = self.servers_from_current();
        let mut choices = Vec::with_capacity(exits.len() * servers.len());
        for (exit, exit_doubt) in &exits {
            for (server, server_doubt) in &servers {
                let way = Way { exit: *exit, server: *server };
                choices.push(Choice { way, doubt: exit_doubt + server_doubt });
            }
        }
        choices
    }

    fn exits(&self, place: u32) -> Vec<(Exit, u32)> {
        let count = self.groups.len();
        let mut exits: Vec<(Exit, u32)> = Vec::new();
        for step in 0..count {
            let mut group: Vec<(Exit, u32)> = self.groups[(self.group + step) % count]
                .iter()
                .flat_map(|member| &member.ends)
                .map(|end| (end.exit, if end.out.is_some() { DOUBT } else { 0 }))
                .collect();
            shuffle(&mut group);
            if step == 0 {
                let order = self.ring.as_ref().map(|ring| ring.order(place));
                let order = order.unwrap_or_else(|| self.chosen.into_iter().collect());
                group.sort_by_key(|(exit, _)| {
                    order.iter().position(|id| *id == exit.id).unwrap_or(order.len())
                });
            }
            // A later group is for when the earlier ones are out of use.
            exits.extend(group);
        }
        exits
    }

    fn servers_from_current(&self) -> Vec<(u32, u32)> {
        let at = self.order.iter().position(|server| *server == self.server).unwrap_or(0);
        let from_current = self.order.iter().cycle().skip(at).take(self.order.len());
        let doubt =
            |server: u32| self.servers.get(server as usize).is_some_and(|server| server.out.is_some());
        from_current.map(|server| (*server, if doubt(*server) { DOUBT } else { 0 })).collect()
    }

    /// Takes an exit out of use; whether it was in use.
    pub(super) fn burn(&mut self, id: u32, again: Option<Instant>) -> bool {
        let Some(end) = self.end(id).filter(|end| end.out.is_none()) else { return false };
        end.out = Some(Out { again });
        self.choose();
        true
    }

    /// Takes a server out of use; whether it was in use.
    pub(super) fn leave(&mut self, server: u32, again: Option<Instant>) -> bool {
        let Some(known) = self.servers.get_mut(server as usize).filter(|server| server.out.is_none()) else {
            return false;
        };
        known.out = Some(Out { again });
        if self.server == server {
            let next = self.servers_from_current().into_iter().find(|(_, doubt)| *doubt == 0);
            self.server = next.map_or(server, |(next, _)| next);
        }
        true
    }

    /// Something came on this way: both are in use again if they were not.
    pub(super) fn served(&mut self, way: Way) -> bool {
        let exit = self.exit_answers(way.exit.id);
        self.server_answers(way.server) || exit
    }

    /// An exit answers; whether that is news.
    pub(super) fn exit_answers(&mut self, id: u32) -> bool {
        let Some(end) = self.end(id) else { return false };
        if end.out.take().is_none() {
            return false;
        }
        let has =
            |group: &Vec<Member>| group.iter().flat_map(|member| &member.ends).any(|end| end.exit.id == id);
        let group = self.groups.iter().position(has).unwrap_or(self.group);
        if group < self.group || !self.has_exit() {
            (self.group, self.chosen) = (group, Some(id));
        }
        self.choose();
        true
    }

    /// A server answers; whether that is news.
    pub(super) fn server_answers(&mut self, server: u32) -> bool {
        let rank = |ways: &Self, server: u32| ways.order.iter().position(|other| *other == server);
        let current_is_out =
            self.servers.get(self.server as usize).is_some_and(|server| server.out.is_some());
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
        let Some(way) = self.choices(0).first().map(|choice| choice.way) else { return Vec::new() };
        let mut looks = Vec::new();
        let group = self.group;
        let is_due = |out: &mut Option<Out>| match out {
            Some(Out { again: Some(again) }) if *again <= now => {
                *again = now + next;
                true
            }
            _ => false,
        };
        for end in self.groups.iter_mut().take(group + 1).flatten().flat_map(|member| &mut member.ends) {
            if is_due(&mut end.out) {
                looks.push(Look::Exit(Way { exit: end.exit, ..way }));
            }
        }
        let before_current = self.order.iter().take_while(|server| **server != self.server);
        for server in before_current.copied().collect::<Vec<_>>() {
            if self.servers.get_mut(server as usize).is_some_and(|server| is_due(&mut server.out)) {
                looks.push(Look::Server(Way { server, ..way }));
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

    /// Sets the order of the last groups, by their places among them.
    pub(super) fn sort_last_groups(&mut self, order: &[usize]) {
        let Some(first) = self.groups.len().checked_sub(order.len()) else { return };
        let mut last: Vec<Option<Vec<Member>>> = self.groups.drain(first..).map(Some).collect();
        let in_use = self.group;
        for (place, from) in order.iter().enumerate() {
            if first + from == in_use {
                self.group = first + place;
            }
            self.groups.extend(last.get_mut(*from).and_then(Option::take));
        }
        // Whatever an order leaves out.
        self.groups.extend(last.into_iter().flatten());
        self.nearest_group_first(first);
    }

    /// Where nobody has failed yet, the first of the sorted groups is in use.
    fn nearest_group_first(&mut self, first: usize) {
        let fresh =
            |group: &[Member]| group.iter().flat_map(|member| &member.ends).all(|end| end.out.is_none());
        if first == 0 && self.groups.iter().all(|group| fresh(group)) {
            (self.group, self.chosen) = (0, None);
        }
        self.choose();
    }

    /// Whether an exit is of one of the last so many groups.
    pub(super) fn is_in_last(&self, id: u32, count: usize) -> bool {
        let last = self.groups.iter().rev().take(count).flatten().flat_map(|member| &member.ends);
        last.into_iter().any(|end| end.exit.id == id)
    }

    fn end(&mut self, id: u32) -> Option<&mut End> {
        let ends = self.groups.iter_mut().flatten().flat_map(|member| &mut member.ends);
        ends.into_iter().find(|end| end.exit.id == id)
    }

    /// Whether a failure has somewhere else to go.
    pub(super) fn is_single(&self) -> bool {
        let ends: usize = self.groups.iter().flatten().map(|member| member.ends.len()).sum();
        ends * self.servers.len() <= 1
    }

    /// The server in use.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// The exits in use: one, or all of the group among which the object decides.
    pub(super) fn in_use(&self) -> Vec<Exit> {
        self.alive(self.group).filter(|exit| self.sharding || Some(exit.id) == self.chosen).collect()
    }

    /// Every group with its addresses, and whether each is out of use.
    pub(super) fn all(&self) -> Vec<Vec<(String, bool)>> {
        let shown = |member: &Member| -> Vec<(String, bool)> {
            if member.ends.is_empty() {
                return vec![(member.proxy.to_string(), true)];
            }
            member.ends.iter().map(|end| (end.exit.to_string(), end.out.is_some())).collect()
        };
        self.groups.iter().map(|group| group.iter().flat_map(shown).collect()).collect()
    }

    /// Whether a server is out of use.
    pub(super) fn is_out(&self, server: u32) -> bool {
        self.servers.get(server as usize).is_some_and(|server| server.out.is_some())
    }
}

impl Exit {
    /// No proxy, wherever it stands among the ways.
    pub(super) const DIRECT: Self = Self { id: 0, proxy: None, tls: false };

    fn url(&self) -> Option<String> {
        self.proxy.map(|_| self.to_string())
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.proxy {
            Some(proxy) => write!(f, "{}://{proxy}", if self.tls { "https" } else { "http" }),
            None => f.write_str("DIRECT"),
        }
    }
}

/// Addresses of the preferred family, or of the other if there is none; a random choice of at most so many.
fn preferred(addresses: &[IpAddr], family: Family, most: usize) -> Vec<IpAddr> {
    let of = |v6: bool| addresses.iter().copied().filter(|ip| ip.is_ipv6() == v6).collect::<Vec<_>>();
    let mut chosen = match family {
        Family::OnlyV4 => of(false),
        Family::PreferV4 | Family::PreferV6 => {
            let v6 = family == Family::PreferV6;
            let first = of(v6);
            if first.is_empty() { of(!v6) } else { first }
        }
    };
    chosen.sort();
    chosen.dedup();
    if most > 0 && chosen.len() > most {
        shuffle(&mut chosen);
        chosen.truncate(most);
    }
    chosen
}

fn random(below: usize) -> usize {
    let number = RandomState::new().hash_one(below);
    usize::try_from(number % below.max(1) as u64).unwrap_or(0)
}

pub(super) fn shuffle<T>(all: &mut [T]) {
    for at in (1..all.len()).rev() {
        all.swap(at, random(at + 1));
    }
}
