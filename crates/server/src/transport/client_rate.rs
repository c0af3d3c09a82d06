//! The rate of requests of each client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::shares::site;

/// Maximum number of addresses that are remembered. More clients than that within a second are not limited.
const ADDRESSES_MAX: usize = 64 * 1024;

/// Limit of the requests of one address.
///
/// A client may send as many requests at once as it may send in a second.
#[derive(Debug)]
pub(crate) struct ClientRate {
    /// Time between two requests at the limit.
    interval: Duration,
    /// For each address the time at which its allowance is whole again.
    whole_at: Mutex<HashMap<IpAddr, Instant>>,
}

impl ClientRate {
    pub(crate) fn new(requests_per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / requests_per_second.max(1);
        Self { interval, whole_at: Mutex::default() }
    }

    /// Counts a request; returns the time to wait if it is over the limit.
    pub(crate) fn count(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut all = self.whole_at.lock();
        let client = site(client);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&client) {
            all.retain(|_, whole_at| *whole_at > now);
            if all.len() >= ADDRESSES_MAX {
                return Ok(());
            }
        }
        let whole_at = all.entry(client).or_insert(now);
        let next = (*whole_at).max(now) + self.interval;
        let ahead = next.duration_since(now);
        match ahead.checked_sub(Duration::from_secs(1).max(self.interval)) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                *whole_at = next;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_send_a_burst_and_then_its_rate() {
        let rate = ClientRate::new(10);
        let (begin, client) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let allowed = |at: Duration| (0..100).take_while(|_| rate.count(client, begin + at).is_ok()).count();
        assert_eq!(allowed(Duration::ZERO), 10);
        assert!(rate.count(client, begin).expect_err("too many") <= Duration::from_millis(100));
        assert_eq!(allowed(Duration::from_millis(250)), 2);
        assert_eq!(allowed(Duration::from_secs(60)), 10);
        assert!(rate.count(IpAddr::from([192, 0, 2, 2]), begin).is_ok(), "another client has its own");
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let (rate, now) = (ClientRate::new(1), Instant::now());
        for number in 0..2 * ADDRESSES_MAX as u32 {
            assert!(rate.count(IpAddr::from(number.to_be_bytes()), now).is_ok());
        }
        assert!(rate.whole_at.lock().len() <= ADDRESSES_MAX);
        let later = now + Duration::from_secs(2);
        assert!(rate.count(IpAddr::from([250, 0, 0, 1]), later).is_ok());
        assert_eq!(rate.whole_at.lock().len(), 1);
    }
}
