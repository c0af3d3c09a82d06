//! Groups the egresses, in the order of use.
//!
//! The group in use is always derived: it is the first group with a member that can be used. A member whose name is
//! still being resolved counts as one, and requests wait for it. So neither the member that is resolved first nor the
//! order of failures and recoveries decides which group is used, and a group is left again as soon as a member of an
//! earlier group works.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::proxy_hash::HashRing;
use crate::clock::unix_now;
use crate::servers::{Dns, Family, Login, Proxy};
use crate::transport::status::EndpointStatus;

/// The egress from this machine: a proxy's address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Egress {
    pub(super) id: u32,
    /// Address of the proxy; `None` for a direct connection.
    pub(super) proxy: Option<SocketAddr>,
    /// True if the proxy is used over https.
    pub(super) tls: bool,
}

/// A candidate in the list of egresses for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// An egress whose address is known.
    Ready {
        egress: Egress,
        /// True if the egress is marked down.
        is_out: bool,
    },
    /// A proxy whose name is being resolved for the first time.
    Pending,
}

/// State of a component that is marked down, with the time of its next probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    again: Option<Instant>,
    since: u64,
    why: String,
}

impl Outage {
    pub(super) fn new(again: Option<Instant>, why: &str) -> Self {
        Self { again, since: unix_now(), why: why.to_owned() }
    }

    /// Returns true if a probe is due, and schedules the next one if so.
    pub(super) fn is_due(&mut self, now: Instant, next: Duration) -> bool {
        let is_due = self.again.is_some_and(|again| again <= now);
        if is_due {
            self.again = Some(now + next);
        }
        is_due
    }

    /// Adds the outage to the status of a proxy or server.
    pub(super) fn show(&self, reach: &mut EndpointStatus) {
        (reach.out, reach.active) = (true, false);
        (reach.since, reach.why) = (Some(self.since), Some(self.why.clone()));
    }
}

#[derive(Debug)]
struct EgressState {
    egress: Egress,
    out: Option<Outage>,
}

/// State of the name lookup of a member.
#[derive(Debug)]
enum Lookup {
    /// The proxy's name is being resolved for the first time.
    Pending,
    /// The proxy's addresses are known, or the egress needs none.
    Resolved,
    /// The proxy's name has no address.
    Failed(Outage),
}

/// A member of a group, and its addresses.
#[derive(Debug)]
struct Member {
    proxy: Proxy,
    lookup: Lookup,
    ends: Vec<EgressState>,
}

impl Member {
    fn is_pending(&self) -> bool {
        matches!(self.lookup, Lookup::Pending)
    }

    fn alive(&self) -> impl Iterator<Item = Egress> + '_ {
        self.ends.iter().filter(|end| end.out.is_none()).map(|end| end.egress)
    }
}

/// Change made by an answer of a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The change does not concern users.
    None,
    /// The proxy had no address and has one now.
    Back,
    /// The addresses of the proxy changed.
    Moved,
}

/// All groups of egresses.
#[derive(Debug)]
pub(super) struct EgressGroups {
    groups: Vec<Vec<Member>>,
    /// Egress in use, unless it depends on the object.
    chosen: Option<u32>,
    ring: Option<HashRing>,
    sharding: bool,
    /// True if requests use resolved members of a group while others are still being resolved.
    is_hurried: bool,
    ids: u32,
}

impl EgressGroups {
    /// Returns the egresses of these groups. Those with an address or without a proxy can be used at once.
    pub(super) fn new(groups: Vec<Vec<Proxy>>, sharding: bool) -> Self {
        let mut ids = 0;
        let mut member = |proxy: Proxy| {
            ids += 1;
            let known = match &proxy {
                Proxy::Direct => Some(Egress { id: ids, proxy: None, tls: false }),
                Proxy::At { host, port, tls, .. } => host.parse().ok().map(|ip: IpAddr| Egress {
                    id: ids,
                    proxy: Some(SocketAddr::new(ip, *port)),
                    tls: *tls,
                }),
            };
            let lookup = if known.is_some() { Lookup::Resolved } else { Lookup::Pending };
            let ends = known.into_iter().map(|egress| EgressState { egress, out: None }).collect();
            Member { proxy, lookup, ends }
        };
        let groups: Vec<Vec<Member>> =
            groups.into_iter().map(|group| group.into_iter().map(&mut member).collect()).collect();
        let mut egresses = Self { groups, chosen: None, ring: None, sharding, is_hurried: false, ids };
        egresses.choose();
        egresses
    }

    /// Returns the proxies whose names need resolution.
    pub(super) fn names(&self) -> Vec<(String, u16)> {
        let mut names = Vec::new();
        for member in self.groups.iter().flatten().filter(|member| member.is_pending()) {
            if let Proxy::At { host, port, .. } = &member.proxy
                && !names.contains(&(host.clone(), *port))
            {
                names.push((host.clone(), *port));
            }
        }
        names
    }

    /// Stores the addresses of a proxy. Known addresses keep their state.
    pub(super) fn resolved(&mut self, name: &str, port: u16, addresses: &[IpAddr], dns: &Dns) -> Change {
        let mut change = Change::None;
        let mut added = Vec::new();
        let mut ids = self.ids;
        for member in self.groups.iter_mut().flatten().filter(|member| is_named(&member.proxy, name, port)) {
            let Proxy::At { tls, .. } = member.proxy else { continue };
            let known: Vec<IpAddr> =
                member.ends.iter().filter_map(|end| Some(end.egress.proxy?.ip())).collect();
            let wanted = preferred(addresses, &known, dns.family, dns.addresses_max);
            let before = (member.ends.len(), matches!(member.lookup, Lookup::Failed(_)));
            member.ends.retain(|end| end.egress.proxy.is_some_and(|proxy| wanted.contains(&proxy.ip())));
            let kept = member.ends.len();
            for ip in wanted.into_iter().filter(|ip| !known.contains(ip)) {
                ids += 1;
                added.push(ids);
                let proxy = Some(SocketAddr::new(ip, port));
                member.ends.push(EgressState { egress: Egress { id: ids, proxy, tls }, out: None });
            }
            member.lookup = match member.ends.is_empty() {
                true => {
                    Lookup::Failed(Outage::new(None, "its name has no address of a kind that is used here"))
                }
                false => Lookup::Resolved,
            };
            change = match before {
                (0, true) if !member.ends.is_empty() => Change::Back,
                (0, _) => change,
                (count, _) if count != kept || member.ends.len() != kept => Change::Moved,
                _ => change,
            };
        }
        self.ids = ids;
        self.choose();
        self.share_with(&added);
        change
    }

    /// Records that a name has no address; known addresses remain in use. Returns true if this marks the proxy
    /// down.
    pub(super) fn unresolved(&mut self, name: &str, port: u16, why: &str) -> bool {
        let mut is_news = false;
        for member in self.groups.iter_mut().flatten().filter(|member| is_named(&member.proxy, name, port)) {
            if member.ends.is_empty() && !matches!(member.lookup, Lookup::Failed(_)) {
                member.lookup = Lookup::Failed(Outage::new(None, why));
                is_news = true;
            }
        }
        self.choose();
        is_news
    }

    /// Makes requests wait no longer for unresolved names of a group with other usable members.
    pub(super) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Returns the number of the group in use: the first one with a member that can be used, or may be soon.
    fn current(&self) -> Option<usize> {
        let may_serve = |member: &Member| member.is_pending() || member.alive().next().is_some();
        self.groups.iter().position(|group| group.iter().any(may_serve))
    }

    fn alive(&self, group: Option<usize>) -> impl Iterator<Item = Egress> + '_ {
        group.and_then(|group| self.groups.get(group)).into_iter().flatten().flat_map(Member::alive)
    }

    fn members_in_use(&self) -> &[Member] {
        self.current().and_then(|group| self.groups.get(group)).map_or(&[], Vec::as_slice)
    }

    /// Selects an egress of the group in use, unless the selected one is still usable.
    fn choose(&mut self) {
        let alive: Vec<Egress> = self.alive(self.current()).collect();
        let urls: Vec<(u32, String)> =
            alive.iter().filter_map(|egress| Some((egress.id, egress.url()?))).collect();
        self.ring = self.sharding.then(|| HashRing::of(urls.iter().map(|(id, url)| (*id, url.as_str()))));
        if self.chosen.is_none_or(|chosen| !alive.iter().any(|egress| egress.id == chosen)) {
            self.chosen = alive.get(random(alive.len())).map(|egress| egress.id);
        }
    }

    /// Rebalances the selection after new members of the group in use were resolved, so that the load of many
    /// nodes is shared.
    fn share_with(&mut self, added: &[u32]) {
        let alive: Vec<Egress> = self.alive(self.current()).collect();
        let added: Vec<u32> = alive.iter().map(|egress| egress.id).filter(|id| added.contains(id)).collect();
        if random(alive.len()) < added.len() {
            self.chosen = added.get(random(added.len())).copied();
        }
    }

    /// Returns the egress for an object at a place while nothing fails; `None` if none is usable without a wait.
    pub(super) fn first(&self, place: u32) -> Option<Egress> {
        let members = self.members_in_use();
        if !self.is_hurried && members.iter().any(Member::is_pending) {
            return None;
        }
        let id = match &self.ring {
            Some(ring) => ring.order(place).first().copied().or(self.chosen)?,
            None => self.chosen?,
        };
        members.iter().flat_map(Member::alive).find(|egress| egress.id == id)
    }

    /// Returns all candidates in the order of use: group by group those usable now or soon, then those marked down.
    pub(super) fn candidates(&self, place: u32) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let current = self.current();
        for (number, group) in self.groups.iter().enumerate() {
            let mut ready: Vec<Egress> = group.iter().flat_map(Member::alive).collect();
            shuffle(&mut ready);
            if Some(number) == current {
                let order = self.ring.as_ref().map(|ring| ring.order(place));
                let order = order.unwrap_or_else(|| self.chosen.into_iter().collect());
                ready.sort_by_key(|egress| {
                    order.iter().position(|id| *id == egress.id).unwrap_or(order.len())
                });
            }
            let is_pending = group.iter().any(Member::is_pending);
            if is_pending && !self.is_hurried {
                candidates.push(Candidate::Pending);
            }
            candidates.extend(ready.into_iter().map(|egress| Candidate::Ready { egress, is_out: false }));
            if is_pending && self.is_hurried {
                candidates.push(Candidate::Pending);
            }
        }
        let ends = self.groups.iter().flatten().flat_map(|member| &member.ends);
        let out = ends.filter(|end| end.out.is_some());
        candidates.extend(out.map(|end| Candidate::Ready { egress: end.egress, is_out: true }));
        candidates
    }

    /// Returns all egresses with an address, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = Egress> + '_ {
        self.groups.iter().flatten().flat_map(|member| &member.ends).map(|end| end.egress)
    }

    /// Marks an egress down; returns true if it was up.
    pub(super) fn mark_down(&mut self, id: u32, out: Outage) -> bool {
        let Some(end) = self.end(id).filter(|end| end.out.is_none()) else { return false };
        end.out = Some(out);
        self.choose();
        true
    }

    /// Marks an egress up; returns true if it was down.
    pub(super) fn answers(&mut self, id: u32) -> bool {
        let Some(end) = self.end(id) else { return false };
        let is_news = end.out.take().is_some();
        if is_news {
            self.choose();
        }
        is_news
    }

    /// Returns the egresses that were down for long enough to be probed. Each is returned once, and again after
    /// `next`. Groups behind the one in use are not needed.
    pub(super) fn due(&mut self, now: Instant, next: Duration) -> Vec<Egress> {
        let count = self.current().map_or(self.groups.len(), |current| current + 1);
        let ends = self.groups.iter_mut().take(count).flatten().flat_map(|member| &mut member.ends);
        let due = ends.filter_map(|end| end.out.as_mut()?.is_due(now, next).then_some(end.egress));
        due.collect()
    }

    /// Sets the order of the last groups, by their places among them.
    pub(super) fn sort_last(&mut self, order: &[usize]) {
        let Some(first) = self.groups.len().checked_sub(order.len()) else { return };
        let mut last: Vec<Option<Vec<Member>>> = self.groups.drain(first..).map(Some).collect();
        for from in order {
            self.groups.extend(last.get_mut(*from).and_then(Option::take));
        }
        // Whatever an order leaves out.
        self.groups.extend(last.into_iter().flatten());
        self.choose();
    }

    /// Returns true if an egress is in one of the last so many groups.
    pub(super) fn is_in_last(&self, id: u32, count: usize) -> bool {
        let last = self.groups.iter().rev().take(count).flatten().flat_map(|member| &member.ends);
        last.into_iter().any(|end| end.egress.id == id)
    }

    fn member_of(&self, id: u32) -> Option<&Member> {
        let mut members = self.groups.iter().flatten();
        members.find(|member| member.ends.iter().any(|end| end.egress.id == id))
    }

    /// Returns the number of the group that an egress is in.
    pub(super) fn group_of(&self, id: u32) -> Option<usize> {
        let has = |member: &Member| member.ends.iter().any(|end| end.egress.id == id);
        self.groups.iter().position(|group| group.iter().any(has))
    }

    /// Returns true if an egress is marked down.
    pub(super) fn is_out(&self, id: u32) -> bool {
        let mut ends = self.groups.iter().flatten().flat_map(|member| &member.ends);
        ends.any(|end| end.egress.id == id && end.out.is_some())
    }

    /// Returns the name of the proxy that an egress belongs to.
    pub(super) fn name(&self, id: u32) -> Option<&str> {
        match &self.member_of(id)?.proxy {
            Proxy::At { host, .. } => Some(host),
            Proxy::Direct => None,
        }
    }

    /// Returns the user name and password for the proxy that an egress belongs to.
    pub(super) fn login(&self, id: u32) -> Option<Login> {
        match &self.member_of(id)?.proxy {
            Proxy::At { login, .. } => login.clone(),
            Proxy::Direct => None,
        }
    }

    /// Returns the egress with this number, if it still exists.
    pub(super) fn get(&self, id: u32) -> Option<Egress> {
        self.member_of(id)?.ends.iter().map(|end| end.egress).find(|egress| egress.id == id)
    }

    fn end(&mut self, id: u32) -> Option<&mut EgressState> {
        let ends = self.groups.iter_mut().flatten().flat_map(|member| &mut member.ends);
        ends.into_iter().find(|end| end.egress.id == id)
    }

    /// Returns the number of egresses; an unresolved name counts as one.
    pub(super) fn count(&self) -> usize {
        let members = self.groups.iter().flatten();
        members.map(|member| member.ends.len() + usize::from(member.is_pending())).sum()
    }

    /// Returns the egresses in use: one, or all of the group among which the object decides.
    pub(super) fn in_use(&self) -> Vec<Egress> {
        self.alive(self.current()).filter(|egress| self.sharding || Some(egress.id) == self.chosen).collect()
    }

    /// Returns the status of every group.
    pub(super) fn shown(&self) -> Vec<Vec<EndpointStatus>> {
        let in_use = self.in_use();
        let of_end =
            |end: &EgressState| shown(end.egress.to_string(), in_use.contains(&end.egress), end.out.as_ref());
        let of_member = |member: &Member| -> Vec<EndpointStatus> {
            if !member.ends.is_empty() {
                return member.ends.iter().map(of_end).collect();
            }
            let out = if let Lookup::Failed(out) = &member.lookup { Some(out) } else { None };
            vec![shown(member.proxy.without_login().to_string(), false, out)]
        };
        self.groups.iter().map(|group| group.iter().flat_map(of_member).collect()).collect()
    }
}

/// Returns the status of an egress or a proxy.
fn shown(name: String, active: bool, out: Option<&Outage>) -> EndpointStatus {
    let mut reach = EndpointStatus { name, active, ..EndpointStatus::default() };
    if let Some(out) = out {
        out.show(&mut reach);
    }
    reach
}

fn is_named(proxy: &Proxy, name: &str, at: u16) -> bool {
    matches!(proxy, Proxy::At { host, port, .. } if host == name && *port == at)
}

impl Egress {
    /// Egress without a proxy.
    pub(super) const DIRECT: Self = Self { id: 0, proxy: None, tls: false };

    fn url(&self) -> Option<String> {
        self.proxy.map(|_| self.to_string())
    }
}

impl std::fmt::Display for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.proxy {
            Some(proxy) => write!(f, "{}://{proxy}", if self.tls { "https" } else { "http" }),
            None => f.write_str("DIRECT"),
        }
    }
}

/// Returns the names of egresses for a log line.
pub(super) fn list(egresses: &[Egress]) -> String {
    let names: Vec<String> = egresses.iter().map(Egress::to_string).collect();
    names.join(" and ")
}

/// Returns at most so many addresses of the preferred family, or of the other if there are none: known ones
/// first, others at random.
fn preferred(addresses: &[IpAddr], known: &[IpAddr], family: Family, most: usize) -> Vec<IpAddr> {
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
        chosen.sort_by_key(|ip| !known.contains(ip));
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
