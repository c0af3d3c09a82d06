//! The source that asks again.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::done::Done;
use crate::error::{Blame, Cause, StoreError};
use crate::http::Network;
use crate::source::{Fetch, Source, Stored};
use crate::status::NetworkStatus;

/// How often and after how long a request is repeated.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, for failures that may pass.
    pub attempts: u32,
    /// The first pause is a random part of this.
    pub first_pause: Duration,
    /// Each later pause is up to twice as long, up to this.
    pub longest_pause: Duration,
    /// A server may ask to be left alone for up to this. If it asks for longer the request fails at once: nobody waits
    /// that long, and asking earlier would only add to its work.
    pub longest_asked: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 4,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(5),
            longest_asked: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// The pause before the next attempt, after so many that failed, the last one like this; `None` if there is no use
    /// in another one.
    fn next(&self, failed: u32, error: &StoreError) -> Option<Duration> {
        let elsewhere = matches!(error.blame(), Blame::Host | Blame::Proxy);
        if !error.may_pass() || !elsewhere || failed >= self.attempts {
            return None;
        }
        let own = self.pause(failed);
        match error.cause() {
            // Everybody was told the same, so what is ours is added to it.
            Cause::Overloaded { after, .. } => (*after <= self.longest_asked).then(|| *after + own),
            _ => Some(own),
        }
    }

    /// The pause after so many failed attempts. Random, so that the nodes of a cluster that lost their server
    /// together don't come back together.
    fn pause(&self, failed: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << failed.saturating_sub(1).min(16));
        let most = doubled.min(self.longest_pause);
        let random = RandomState::new().hash_one(failed) % 1024;
        // Between half and all of it: a pause of nothing is no pause.
        most / 2 + most.mul_f64(random as f64 / 2048.0)
    }
}

/// Repeats requests whose failure may pass, after a pause, and asks once more for a damaged object, past the
/// caches on the way.
pub(crate) struct Retrying {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Source>,
    network: Arc<Network>,
    policy: RetryPolicy,
}

impl Retrying {
    pub(crate) fn new(inner: Arc<dyn Source>, network: Arc<Network>, policy: RetryPolicy) -> Self {
        Self { shared: Arc::new(Shared { inner, network, policy }) }
    }
}

impl Source for Retrying {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        self.shared.clone().attempt(fetch, 0, done);
    }

    fn describe(&self) -> String {
        self.shared.inner.describe()
    }

    fn network(&self) -> NetworkStatus {
        self.shared.inner.network()
    }
}

impl Shared {
    fn attempt(self: Arc<Self>, fetch: Fetch, failed: u32, done: Done<Stored>) {
        let inner = self.inner.clone();
        let next = fetch.clone();
        let answered = Done::new(move |outcome| match outcome {
            Ok(stored) => done.ok(stored),
            Err(error) => self.failed(next, failed + 1, error, done),
        });
        inner.fetch(fetch, answered);
    }

    fn failed(self: Arc<Self>, mut fetch: Fetch, failed: u32, error: StoreError, done: Done<Stored>) {
        // What nobody waits for is not asked for again: a server in trouble has enough to do.
        if fetch.priority.give_up() {
            return done.err(error);
        }
        if matches!(error.cause(), Cause::Corrupt { .. }) && !fetch.fresh {
            // A cache on the way may hold damaged bytes; a pause would not help.
            fetch.fresh = true;
            return self.attempt(fetch, failed, done);
        }
        match self.policy.next(failed, &error) {
            None => done.err(error),
            Some(pause) => self.network.clone().later(pause, move || self.attempt(fetch, failed, done)),
        }
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
    fn a_server_is_left_alone_for_as_long_as_it_asks() {
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
