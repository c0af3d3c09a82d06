//! Counts connections and batches by client address.
//!
//! Many clients may have one address, behind a proxy or a router, so an address is bounded only while other clients
//! wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Number of permits by address.
#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<HashMap<IpAddr, AddressUse>>);

#[derive(Debug, Default)]
struct AddressUse {
    count: usize,
    cut: Arc<Notify>,
}

/// One permit of an address; released on drop.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    address: IpAddr,
    cut: Arc<Notify>,
}

impl Shares {
    /// Takes one more permit for an address, unless it has as many as one may have.
    pub(crate) fn take_at_most(self: &Arc<Self>, address: IpAddr, most: Option<usize>) -> Option<Share> {
        self.take_below(address, most.unwrap_or(usize::MAX))
    }

    /// Takes a permit unless the address has `most` already.
    pub(crate) fn take_below(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<Share> {
        let address = site(address);
        // Held until it is counted, or else clients that come at once pass the bound.
        let mut all = self.0.lock();
        let has = all.get(&address).map_or(0, |held| held.count);
        (has < most).then(|| self.one_more(&mut all, address))
    }

    fn one_more(self: &Arc<Self>, all: &mut HashMap<IpAddr, AddressUse>, address: IpAddr) -> Share {
        let held = all.entry(address).or_default();
        held.count += 1;
        Share { shares: self.clone(), address, cut: held.cut.clone() }
    }

    /// Closes one connection of the address with the most, if that exceeds its share of `all` and the caller's
    /// number.
    pub(crate) fn cut_most(&self, caller: IpAddr, all: usize) {
        let shares = self.0.lock();
        let own = shares.get(&site(caller)).map_or(0, |held| held.count);
        let part = all / (shares.len() + usize::from(own == 0));
        let most = shares.iter().max_by_key(|(_, held)| held.count);
        if let Some((_, held)) = most
            && held.count > part
            && held.count > own + 1
        {
            held.cut.notify_one();
        }
    }
}

impl Share {
    /// Waits until this connection must close for clients at other addresses.
    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.shares.0.lock();
        if let Some(held) = all.get_mut(&self.address) {
            held.count -= 1;
            if held.count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// Returns the address to count: an IPv6 client has a whole network.
pub(crate) fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn simultaneous_clients_do_not_exceed_the_limit() {
        let shares = Arc::<Shares>::default();
        let address = "192.0.2.1".parse().expect("an address");
        let client = || {
            let taken = || {
                let _share = shares.take_below(address, 1)?;
                let most = shares.0.lock().values().map(|held| held.count).max();
                thread::yield_now();
                most
            };
            (0..500_000).filter_map(|_| taken()).max()
        };
        let most = thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|_| scope.spawn(client)).collect();
            clients.into_iter().filter_map(|client| client.join().expect("a client")).max()
        });
        assert_eq!(most, Some(1), "clients at one address had more at once");
    }

    #[test]
    fn an_address_is_counted_and_forgotten() {
        let shares = Arc::<Shares>::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (one, other) = (address("2001:db8::1"), address("2001:db8::2"));
        let held = [one, other].map(|address| shares.take_at_most(address, None).expect("a permit"));
        assert!(shares.take_below(one, 2).is_none(), "one network of IPv6");
        assert!(shares.take_below(address("192.0.2.1"), 1).is_some());
        drop(held);
        assert!(shares.take_below(other, 1).is_some());
        assert!(shares.0.lock().is_empty());
    }
}
