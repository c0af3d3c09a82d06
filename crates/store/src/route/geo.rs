//! Which servers and fallback proxies are near, as a server tells by where its client is.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::Shared;
use super::exits::{self, Exit};
use crate::done::Done;
use crate::error::StoreError;
use crate::servers::Proxy;
use crate::source::{Fetch, Stored};

/// An answer has a few digits for each name.
const ANSWER_MAX: u64 = 16 << 10;
/// So many servers are asked at most, one after the other.
const ASKED_MAX: usize = 3;
/// Stands between servers and proxies where nobody is asked but through those: servers near to them are meant.
const SEPARATOR: &str = "+PXYSEP+";

/// A question, and what its answer is about.
struct Question {
    path: String,
    about: Arc<About>,
}

/// What the numbers of an answer stand for.
#[derive(Debug, Default, PartialEq, Eq)]
struct About {
    /// The names that were sent.
    names: Vec<String>,
    /// The servers, by number, as they were named.
    servers: Vec<u32>,
    /// Where the fallback proxies begin.
    proxies_from: usize,
}

impl About {
    /// These servers, and one proxy of each fallback group.
    fn new(hosts: &[&str], fallback: &[Vec<Proxy>], is_fallback_only: bool) -> Self {
        let mut servers: Vec<(&str, u32)> = hosts.iter().copied().zip(0..).collect();
        // So that all who have the same servers ask the same question, which a proxy then keeps.
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

    /// The order of servers, and that of fallback groups, as an answer has them.
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

impl Shared {
    /// Asks some servers, one after the other, beside whatever is demanded; what is not answered changes nothing.
    pub(super) fn ask_who_is_near(self: &Arc<Self>) {
        let hosts: Vec<&str> = self.bases.iter().map(|base| base.host.as_str()).collect();
        let fallback = self.servers.fallback_groups();
        let about = About::new(&hosts, &fallback, self.servers.groups().len() == fallback.len());
        let Some(exit) = self.exit_to_sort_by() else { return };
        let (name, exit) = self.geo_name(exit, fallback.len());
        let path = format!("api/v1.0/geo/{name}/{}", about.names.join(","));
        let mut asked: Vec<u32> = (0..).take(self.bases.len()).collect();
        exits::shuffle(&mut asked);
        asked.truncate(ASKED_MAX);
        let question = Question { path, about: Arc::new(about) };
        self.clone().ask(question, exit, asked, None);
    }

    /// By which name this client is known, and how it asks: by that of its proxy, which others ask through as well; or by
    /// one that is nobody else's, so that what is meant for it is kept for no other.
    fn geo_name(&self, exit: Exit, fallback: usize) -> (String, Exit) {
        let own = || {
            let mut text = String::new();
            for part in 0..2 {
                // Writing to a string can't fail.
                let _ = write!(text, "{:016x}", RandomState::new().hash_one(part));
            }
            text
        };
        let ways = self.ways.lock();
        match ways.exits.name(exit.id).filter(|_| !ways.exits.is_in_last(exit.id, fallback)) {
            Some(proxy) => (self.servers.geo_name.clone().unwrap_or_else(|| proxy.to_owned()), exit),
            None => (self.servers.geo_name.clone().unwrap_or_else(own), Exit::DIRECT),
        }
    }

    fn ask(self: Arc<Self>, question: Question, exit: Exit, mut left: Vec<u32>, last: Option<StoreError>) {
        let Some(server) = left.pop() else {
            let why = last.map_or_else(|| "no answer made sense".to_owned(), |error| error.full_text());
            self.notes.say(&format!("servers are asked in the order in which they are named: {why}"));
            return self.ways.lock().keep(self.servers.most);
        };
        let source = self.take(&self.bases[server as usize], exit).source;
        let fetch = Fetch::new(question.path.clone(), "which servers are near", ANSWER_MAX);
        let answered = Done::new(move |outcome: Result<Stored, StoreError>| match outcome {
            Ok(stored) => match stored.into_bytes().ok().and_then(|bytes| question.about.read(&bytes)) {
                Some((servers, groups)) => self.sort_by(servers, &groups),
                None => self.ask(question, exit, left, last),
            },
            Err(error) => self.ask(question, exit, left, Some(error)),
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
            let mut ways = self.ways.lock();
            ways.sort(servers);
            ways.exits.sort_last(groups);
        }
        self.notes.say(&format!("the nearest server is {near}"));
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
        let about = About::new(&["c", "a", "b"], &[at("q"), at("p")], false);
        assert_eq!(about.names, ["a", "b", "c", "q", "p"]);
        // c, p, b, a, q.
        assert_eq!(about.read(b"3,5,2,1,4"), Some((vec![0, 2, 1], vec![1, 0])));
        let about = About::new(&["b", "a"], &[at("q"), at("p")], true);
        assert_eq!(about.names, ["a", "b", SEPARATOR, "q", "p"]);
        assert_eq!(about.read(b"1,2,5,4,3"), Some((vec![1, 0], vec![1, 0])));
    }
}
