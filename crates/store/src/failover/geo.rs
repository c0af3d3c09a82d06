//! Order of servers and fallback proxies by distance, from a server's Geo-API.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::Router;
use super::egress::{self, Egress};
use crate::callback::Callback;
use crate::error::StoreError;
use crate::servers::Proxy;
use crate::transport::source::{Fetch, Stored};

/// Maximum length of an answer, which has a few digits for each name.
const ANSWER_MAX: u64 = 16 << 10;
/// Maximum number of servers to query, one after the other.
const ASKED_MAX: usize = 3;
/// Separator between servers and proxies for clients that use only those proxies: the order then is by distance from
/// the proxies.
const SEPARATOR: &str = "+PXYSEP+";

/// A Geo-API query and the meaning of its answer.
struct GeoQuery {
    path: String,
    numbers: Arc<GeoNumbers>,
}

/// Meaning of the numbers of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct GeoNumbers {
    /// Host names in the query.
    names: Vec<String>,
    /// The servers, by number, as they were named.
    servers: Vec<u32>,
    /// Index of the first fallback proxy.
    proxies_from: usize,
}

impl GeoNumbers {
    /// Creates the query for these servers and one proxy of each fallback group.
    fn new(hosts: &[&str], fallback: &[Vec<Proxy>], is_fallback_only: bool) -> Self {
        let mut servers: Vec<(&str, u32)> = hosts.iter().copied().zip(0..).collect();
        // Clients with the same servers send the same query, which a proxy can cache.
        servers.sort_unstable();
        let mut names: Vec<String> = servers.iter().map(|(host, _)| (*host).to_owned()).collect();
        if is_fallback_only && hosts.len() > 1 {
            names.push(SEPARATOR.to_owned());
        }
        let proxies_from = names.len();
        names.extend(fallback.iter().filter_map(|group| match group.first()? {
            Proxy::At { host, .. } => Some(host.clone()),
            Proxy::Direct => None,
        }));
        Self { names, servers: servers.into_iter().map(|(_, number)| number).collect(), proxies_from }
    }

    /// Returns the order of servers and that of fallback groups in an answer.
    fn read(&self, answer: &[u8]) -> Option<(Vec<u32>, Vec<usize>)> {
        let order = permutation(answer, self.names.len())?;
        let servers = order.iter().filter_map(|at| self.servers.get(*at).copied()).collect();
        let groups = order.iter().filter_map(|at| at.checked_sub(self.proxies_from)).collect();
        Some((servers, groups))
    }
}

/// Reads `2,1,3` as places from 0; `None` unless each number to `count` is there once.
fn permutation(answer: &[u8], count: usize) -> Option<Vec<usize>> {
    let text = std::str::from_utf8(answer).ok()?.trim_end();
    let places: Option<Vec<usize>> =
        text.split(',').map(|number| number.parse::<usize>().ok()?.checked_sub(1)).collect();
    let places = places?;
    let all: BTreeSet<usize> = places.iter().copied().filter(|place| *place < count).collect();
    (places.len() == count && all.len() == count).then_some(places)
}

impl Router {
    /// Queries some servers, one after the other, in parallel to demands; without an answer the order stays.
    pub(super) fn ask_who_is_near(self: &Arc<Self>) {
        let hosts: Vec<&str> = self.bases.iter().map(|base| base.host.as_str()).collect();
        let fallback = self.servers.fallback_groups();
        let numbers = GeoNumbers::new(&hosts, &fallback, self.servers.groups().len() == fallback.len());
        let Some(egress) = self.egress_to_sort_by() else { return };
        let (name, egress) = self.geo_name(egress, fallback.len());
        let path = format!("api/v1.0/geo/{name}/{}", numbers.names.join(","));
        let mut asked: Vec<u32> = (0..).take(self.bases.len()).collect();
        egress::shuffle(&mut asked);
        asked.truncate(ASKED_MAX);
        let query = GeoQuery { path, numbers: Arc::new(numbers) };
        self.clone().ask(query, egress, asked, None);
    }

    /// Returns the client's name in the query, and the egress for it: the name of its proxy, which other clients
    /// share; or a random name, so that no cache answers with the order of another client.
    fn geo_name(&self, egress: Egress, fallback: usize) -> (String, Egress) {
        let own = || {
            let mut text = String::new();
            for part in 0..2 {
                // Writing to a string can't fail.
                let _ = write!(text, "{:016x}", RandomState::new().hash_one(part));
            }
            text
        };
        let routes = self.routes.lock();
        match routes.egresses.name(egress.id).filter(|_| !routes.egresses.is_in_last(egress.id, fallback)) {
            Some(proxy) => (self.servers.geo_name.clone().unwrap_or_else(|| proxy.to_owned()), egress),
            None => (self.servers.geo_name.clone().unwrap_or_else(own), Egress::DIRECT),
        }
    }

    fn ask(self: Arc<Self>, query: GeoQuery, egress: Egress, mut left: Vec<u32>, last: Option<StoreError>) {
        let Some(server) = left.pop() else {
            let why = last.map_or_else(|| "no answer made sense".to_owned(), |error| error.full_text());
            tracing::warn!("servers are asked in the order in which they are named: {why}");
            return self.routes.lock().keep(self.servers.most);
        };
        let source = self.new_source(&self.bases[server as usize], egress).source;
        let fetch = Fetch::new(query.path.clone(), "which servers are near", ANSWER_MAX);
        let answered = Callback::new(move |outcome: Result<Stored, StoreError>| match outcome {
            Ok(stored) => match stored.into_bytes().ok().and_then(|bytes| query.numbers.read(&bytes)) {
                Some((servers, groups)) => self.sort_by(servers, &groups),
                None => self.ask(query, egress, left, last),
            },
            Err(error) => self.ask(query, egress, left, Some(error)),
        });
        source.fetch(fetch, answered);
    }

    fn sort_by(&self, mut servers: Vec<u32>, groups: &[usize]) {
        if self.servers.most > 0 {
            servers.truncate(self.servers.most);
        }
        let near = servers.first().and_then(|server| self.bases.get(*server as usize));
        let near = near.map_or_else(String::new, ToString::to_string);
        {
            let mut routes = self.routes.lock();
            routes.sort(servers);
            routes.egresses.sort_last(groups);
        }
        tracing::info!("the nearest server is {near}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_permutation_or_none() {
        assert_eq!(permutation(b"2,3,1\n", 3), Some(vec![1, 2, 0]));
        for bad in [&b"2,3"[..], b"", b"1,2,2", b"0,1,2", b"1,2,4", b"1,2,3,3", b"a,b,c", b"\xff", b"1;2;3"] {
            assert_eq!(permutation(bad, 3), None, "{bad:?}");
        }
    }

    #[test]
    fn servers_are_named_in_order_of_their_names_and_proxies_after_them() {
        let at = |host: &str| vec![Proxy::At { host: host.into(), port: 1, tls: false, login: None }];
        let numbers = GeoNumbers::new(&["c", "a", "b"], &[at("q"), at("p")], false);
        assert_eq!(numbers.names, ["a", "b", "c", "q", "p"]);
        // c, p, b, a, q.
        assert_eq!(numbers.read(b"3,5,2,1,4"), Some((vec![0, 2, 1], vec![1, 0])));
        let numbers = GeoNumbers::new(&["b", "a"], &[at("q"), at("p")], true);
        assert_eq!(numbers.names, ["a", "b", SEPARATOR, "q", "p"]);
        assert_eq!(numbers.read(b"1,2,5,4,3"), Some((vec![1, 0], vec![1, 0])));
    }
}
