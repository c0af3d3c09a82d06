//! Other proxies of the site, each of which owns a part of all objects by consistent hashing.
//!
//! A proxy asks the owner of an object before it asks upstream, so that a site fetches each object once. Each pair of
//! proxy and object has a score, and the proxy with the highest score is the owner (rendezvous hashing): without one
//! proxy, only its own objects move to others. A request of a peer is marked and never goes to another peer.

use std::time::{Duration, Instant};

use esker_format::object::ObjectName;
use esker_store::{Cause, StoreError};
use parking_lot::Mutex;

use super::destinations::{DestinationError, Upstream};

/// Time for which a peer that failed is not asked.
const PAUSE: Duration = Duration::from_secs(10);
/// Multiplier and increment of Knuth's MMIX generator.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Proxies of a site.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    own: u64,
    all: Vec<Peer>,
}

/// Another proxy.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) url: String,
    hash: u64,
    down_until: Mutex<Option<Instant>>,
}

impl Peers {
    /// Creates the site from the URL of this proxy and those of the others.
    pub(crate) fn new(own: &str, others: &[String]) -> Result<Self, DestinationError> {
        let url = |text: &str| Upstream::parse(text).map(|peer| peer.origin.to_string());
        let own = url(own)?;
        let mut urls = others.iter().map(|text| url(text)).collect::<Result<Vec<_>, _>>()?;
        urls.sort();
        urls.dedup();
        // All proxies may have the same list.
        urls.retain(|url| *url != own);
        let all = urls.into_iter().map(|url| Peer { hash: hash(&url), url, down_until: Mutex::default() });
        Ok(Self { own: hash(&own), all: all.collect() })
    }

    /// Returns the number and the peer that owns an object; `None` if this proxy does, or if the owner is down.
    pub(crate) fn owner(&self, name: ObjectName) -> Option<(usize, &Peer)> {
        let digest = name.hash.digest();
        let key = digest.iter().fold(0, |key: u64, byte| key.rotate_left(8) ^ u64::from(*byte));
        let (at, peer) = self.all.iter().enumerate().max_by_key(|(_, peer)| score(peer.hash, key))?;
        (score(peer.hash, key) > score(self.own, key) && peer.is_up()).then_some((at, peer))
    }

    /// Returns the URLs of the peers and whether each is in use.
    pub(crate) fn status(&self) -> Vec<(String, bool)> {
        self.all.iter().map(|peer| (peer.url.clone(), peer.is_up())).collect()
    }
}

impl Peer {
    fn is_up(&self) -> bool {
        self.down_until.lock().is_none_or(|until| Instant::now() >= until)
    }

    /// Records the failure of a request; a peer that can't be reached is not asked for a while.
    pub(crate) fn failed(&self, error: &StoreError) {
        if matches!(error.cause(), Cause::Missing { .. } | Cause::TooLarge { .. }) {
            return;
        }
        let was_up = self.is_up();
        *self.down_until.lock() = Some(Instant::now() + PAUSE);
        if was_up {
            tracing::warn!("the peer {} is not asked for {} s: {error}", self.url, PAUSE.as_secs());
        }
    }
}

fn score(proxy: u64, key: u64) -> u64 {
    mix(proxy ^ mix(key))
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0, |hash: u64, byte| mix(hash ^ u64::from(byte)))
}

/// Spreads the bits of a number.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_mul(MULTIPLIER).wrapping_add(1_442_695_040_888_963_407);
    let number = (number ^ (number >> 32)).wrapping_mul(MULTIPLIER);
    number ^ (number >> 29)
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::object::ObjectKind;

    use super::*;

    fn names() -> impl Iterator<Item = ObjectName> {
        (0..3000u32).map(|number| {
            ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes()), ObjectKind::File)
        })
    }

    fn site(number: usize, all: usize) -> Peers {
        let url = |number: usize| format!("http://p{number}.test:3128");
        Peers::new(&url(number), &(0..all).map(url).collect::<Vec<_>>()).expect("a site")
    }

    /// Returns the URL of an object's owner as one proxy sees it.
    fn owner(peers: &Peers, own: usize, name: ObjectName) -> String {
        peers.owner(name).map_or_else(|| format!("http://p{own}.test:3128"), |(_, peer)| peer.url.clone())
    }

    #[test]
    fn all_proxies_agree_and_share_objects_evenly() {
        let proxies: Vec<_> = (0..3).map(|number| site(number, 3)).collect();
        let mut counts = std::collections::BTreeMap::new();
        for name in names() {
            let owners: Vec<_> =
                proxies.iter().enumerate().map(|(own, peers)| owner(peers, own, name)).collect();
            assert!(owners.iter().all(|other| *other == owners[0]), "{owners:?}");
            *counts.entry(owners[0].clone()).or_insert(0) += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_further_proxy_takes_over_its_own_objects_only() {
        let (three, four) = (site(0, 3), site(0, 4));
        let moved: Vec<_> = names()
            .map(|name| (owner(&three, 0, name), owner(&four, 0, name)))
            .filter(|(before, after)| before != after)
            .collect();
        assert!(moved.iter().all(|(_, after)| after == "http://p3.test:3128"));
        assert!((500..1000).contains(&moved.len()), "{}", moved.len());
    }

    #[test]
    fn a_peer_that_failed_is_not_asked() {
        let peers = site(0, 2);
        let name = names().find(|name| peers.owner(*name).is_some()).expect("an object of the other");
        let (_, peer) = peers.owner(name).expect("an owner");
        peer.failed(&StoreError::new("x", Cause::Missing { status: "404".into() }));
        assert!(peers.owner(name).is_some(), "a missing object is no failure of the peer");
        peer.failed(&StoreError::new("x", Cause::Broken("reset".into())));
        assert!(peers.owner(name).is_none());
        assert_eq!(peers.status(), [("http://p1.test:3128".to_owned(), false)]);
    }
}
