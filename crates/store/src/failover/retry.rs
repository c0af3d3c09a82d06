//! Policy for retries.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::error::{Blame, Cause, StoreError};

/// Number and pauses of attempts.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Maximum number of rounds over all routes, for temporary failures.
    pub attempts: u32,
    /// Time after which no further attempt begins.
    pub total: Duration,
    /// The first pause is a random part of this.
    pub first_pause: Duration,
    /// Maximum pause; each pause is up to twice as long as the previous one.
    pub longest_pause: Duration,
    /// Maximum `Retry-After` that is honoured. A longer one fails the request at once: no reader waits that
    /// long, and an earlier retry would only add load.
    pub longest_asked: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 4,
            // Below the time after which reads give up, so that they can say why.
            total: Duration::from_secs(45),
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(5),
            longest_asked: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// Returns the pause before the next attempt after `failed` attempts; `None` if another one is useless.
    pub(crate) fn next(&self, failed: u32, error: &StoreError) -> Option<Duration> {
        let elsewhere = matches!(error.blame(), Blame::Host | Blame::Proxy);
        if !error.may_pass() || !elsewhere || failed >= self.attempts {
            return None;
        }
        let own = self.pause(failed);
        match error.cause() {
            // All clients got the same time, so the random pause is added.
            Cause::Overloaded { after, .. } => (*after <= self.longest_asked).then(|| *after + own),
            _ => Some(own),
        }
    }

    /// Returns the pause after `failed` attempts. Random, so that the nodes of a cluster that lost their server
    /// together don't retry together.
    pub(crate) fn pause(&self, failed: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << failed.saturating_sub(1).min(16));
        let most = doubled.min(self.longest_pause);
        let random = RandomState::new().hash_one(failed) % 1024;
        // Between half and all of it: a pause of nothing is no pause.
        most / 2 + most.mul_f64(random as f64 / 2048.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let policy = RetryPolicy::default();
        for failed in 1..100 {
            let pause = policy.pause(failed);
            assert!(pause <= policy.longest_pause);
            assert!(pause >= policy.first_pause / 2, "{failed}: {pause:?}");
        }
        assert!(policy.pause(10) >= policy.longest_pause / 2);
    }

    #[test]
    fn a_requested_pause_is_kept() {
        let policy = RetryPolicy::default();
        let overloaded = |seconds| {
            let after = Duration::from_secs(seconds);
            StoreError::new("an object", Cause::Overloaded { status: 503, after })
        };
        for asked in [0, 7, 20] {
            let pause = policy.next(1, &overloaded(asked)).expect("another attempt");
            assert!(pause >= Duration::from_secs(asked) + policy.first_pause / 2, "{asked}: {pause:?}");
            assert!(pause <= Duration::from_secs(asked) + policy.first_pause, "{asked}: {pause:?}");
        }
        for asked in [21, u64::MAX] {
            assert_eq!(policy.next(1, &overloaded(asked)), None);
        }
        assert_eq!(policy.next(policy.attempts, &overloaded(1)), None, "attempts are counted all the same");
    }
}
