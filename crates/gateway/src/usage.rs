//! What keys and leases use of their limits. The database keeps what leases have sent.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::lease::Millis;
use crate::token::Token;

/// Use of the limits of keys and leases.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Second, and requests in it, by name of a key.
    requests: Mutex<BTreeMap<String, (i64, u32)>>,
    /// Bytes that were sent, by lease.
    bytes: Mutex<BTreeMap<Token, u64>>,
}

impl Usage {
    /// Creates a use with what leases have sent before.
    pub(crate) fn of(sent: BTreeMap<Token, u64>) -> Self {
        Self { requests: Mutex::default(), bytes: Mutex::new(sent) }
    }

    /// Counts a request; returns false if the key has sent too many in this second.
    pub(crate) fn may_ask(&self, key: &str, most: Option<u32>, now: Millis) -> bool {
        let Some(most) = most else { return true };
        let mut all = self.requests.lock();
        let (second, count) = all.entry(key.to_owned()).or_default();
        let current = now.0.div_euclid(1000);
        if *second != current {
            (*second, *count) = (current, 0);
        }
        *count = count.saturating_add(1);
        *count <= most
    }

    /// Reserves bytes of a lease before they are sent; returns the number of all, or fails with that of those that are left.
    pub(crate) fn reserve(&self, lease: &Token, bytes: u64, most: Option<u64>) -> Result<u64, u64> {
        let mut all = self.bytes.lock();
        let used = all.entry(lease.clone()).or_default();
        let left = most.unwrap_or(u64::MAX).saturating_sub(*used);
        if bytes > left {
            return Err(left);
        }
        *used += bytes;
        Ok(*used)
    }

    /// Gives back bytes that were not stored.
    pub(crate) fn release(&self, lease: &Token, bytes: u64) {
        if let Some(used) = self.bytes.lock().get_mut(lease) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Forgets leases that are gone.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Token) -> bool) {
        self.bytes.lock().retain(|lease, _| !is_gone(lease));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_second_and_key() {
        let usage = Usage::default();
        let ask = |key: &str, at: i64| usage.may_ask(key, Some(2), Millis(at));
        assert!(ask("a", 0) && ask("a", 999) && !ask("a", 999) && ask("b", 999) && ask("a", 1000));
        assert!((0..100).all(|_| usage.may_ask("c", None, Millis(0))));
    }

    #[test]
    fn bytes_are_reserved_by_lease_and_given_back() {
        let (usage, lease) = (Usage::default(), Token::named("a"));
        assert_eq!(usage.reserve(&lease, 6, Some(10)), Ok(6));
        assert_eq!(usage.reserve(&lease, 5, Some(10)), Err(4));
        assert_eq!(usage.reserve(&Token::named("b"), 5, Some(10)), Ok(5));
        usage.release(&lease, 6);
        assert_eq!(usage.reserve(&lease, 10, Some(10)), Ok(10));
        usage.forget(|_| true);
        assert_eq!(usage.reserve(&lease, u64::MAX, None), Ok(u64::MAX));
    }
}
