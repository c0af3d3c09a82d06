//! Asks clients to release objects before eviction.
//!
//! A client that replies decides. One that doesn't (a stopped process, a loaded machine) counts as holding everything,
//! but only for a limited time: its kernel keeps its page cache anyway, and missing objects are fetched again, so
//! eviction under it costs traffic and never a wrong byte. While it is silent the writer doesn't wait for it again: a
//! dead client must not slow down eviction.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use esker_store::{CacheKey, Holder};
use parking_lot::{Condvar, Mutex};

use super::wire::RELEASE_MAX;

/// Timeout of one release request: longer than a kernel takes to send its FORGETs.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of a release request to another user's client. All clients are asked in parallel, so that an
/// eviction of many objects loses little time by silent ones.
const STRANGER_TIMEOUT: Duration = Duration::from_millis(250);

/// Time after a timeout during which another user's client isn't waited for again.
const STRANGER_PAUSE: Duration = Duration::from_secs(60);

/// Time for which a silent client counts as holding everything.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

type Ask = Box<dyn Fn(u64, &[CacheKey]) -> bool + Send + Sync>;

/// A client as a holder of objects.
pub(super) struct RemoteHolder {
    /// Function that sends the request; `false` if the client is gone.
    ask: Ask,
    state: Mutex<State>,
    answered: Condvar,
    answer_patience: Duration,
    silence_max: Duration,
    binding: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    answers: HashMap<u64, Vec<bool>>,
    awaited: Option<u64>,
    silent_since: Option<Instant>,
    gone: bool,
}

impl RemoteHolder {
    pub(super) fn new(ask: impl Fn(u64, &[CacheKey]) -> bool + Send + Sync + 'static) -> Self {
        Self::with_patience(ask, ANSWER_TIMEOUT, SILENCE_MAX)
    }

    fn with_patience(
        ask: impl Fn(u64, &[CacheKey]) -> bool + Send + Sync + 'static,
        answer_patience: Duration,
        silence_max: Duration,
    ) -> Self {
        let (state, answered) = (Mutex::default(), Condvar::new());
        Self { ask: Box::new(ask), state, answered, answer_patience, silence_max, binding: true }
    }

    /// Creates a holder for a client of another user: it is asked with a short timeout, holds nothing if it is
    /// silent, and is not asked in an emergency.
    pub(super) fn of_stranger(ask: impl Fn(u64, &[CacheKey]) -> bool + Send + Sync + 'static) -> Self {
        Self { binding: false, ..Self::with_patience(ask, STRANGER_TIMEOUT, Duration::ZERO) }
    }

    /// Handles the client's reply. A late one shows at least that the client is alive.
    pub(super) fn answer(&self, id: u64, held: Vec<bool>) {
        let mut state = self.state.lock();
        state.silent_since = None;
        if state.awaited == Some(id) {
            state.answers.insert(id, held);
            self.answered.notify_all();
        }
    }

    /// Records that the client is gone and holds no objects.
    pub(super) fn gone(&self) {
        self.state.lock().gone = true;
        self.answered.notify_all();
    }

    fn release_some(&self, victims: &[CacheKey]) -> Vec<bool> {
        let deadline = Instant::now() + self.answer_patience;
        let mut state = self.state.lock();
        if state.gone {
            return vec![false; victims.len()];
        }
        if let Some(since) = state.silent_since {
            if self.binding {
                return vec![since.elapsed() < self.silence_max; victims.len()];
            }
            if since.elapsed() < STRANGER_PAUSE {
                // Still sent, so that the client closes its files, but without waiting.
                let id = state.next;
                state.next += 1;
                drop(state);
                (self.ask)(id, victims);
                return vec![false; victims.len()];
            }
        }
        let id = state.next;
        state.next += 1;
        state.awaited = Some(id);
        // Sending only queues; but the answer needs the lock.
        let sent = parking_lot::MutexGuard::unlocked(&mut state, || (self.ask)(id, victims));
        while sent && !state.gone && !state.answers.contains_key(&id) {
            if self.answered.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.awaited = None;
        let answer = state.answers.remove(&id);
        if state.gone || !sent {
            return vec![false; victims.len()];
        }
        match answer {
            Some(held) if held.len() == victims.len() => held,
            Some(_) => vec![true; victims.len()],
            None => {
                state.silent_since = Some(Instant::now());
                vec![self.binding; victims.len()]
            }
        }
    }
}

impl Holder for RemoteHolder {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        victims.chunks(RELEASE_MAX).flat_map(|some| self.release_some(some)).collect()
    }

    fn is_binding(&self) -> bool {
        self.binding
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Weak};

    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::*;

    fn keys(count: usize) -> Vec<CacheKey> {
        let key = |n: usize| CacheKey {
            hash: ContentHash::of(HashAlgorithm::Sha1, &n.to_le_bytes()),
            compression: Compression::Zlib,
        };
        (0..count).map(key).collect()
    }

    #[test]
    fn the_client_decides_for_each_object() {
        let holder = Arc::new_cyclic(|me: &Weak<RemoteHolder>| {
            let me = me.clone();
            RemoteHolder::new(move |id, victims| {
                let holder = me.upgrade().expect("alive");
                holder.answer(id, (0..victims.len()).map(|n| n % 2 == 0).collect());
                true
            })
        });
        let held = holder.release(&keys(RELEASE_MAX + 2));
        assert_eq!(held.len(), RELEASE_MAX + 2);
        assert!(held.iter().enumerate().all(|(n, held)| *held == (n % 2 == 0)));
    }

    #[test]
    fn a_silent_client_counts_as_holding_everything_for_a_limited_time() {
        let asked = Arc::new(AtomicU64::new(0));
        let counter = asked.clone();
        let ask = move |_, _: &[CacheKey]| {
            counter.fetch_add(1, Ordering::SeqCst);
            true
        };
        let patient =
            RemoteHolder::with_patience(ask.clone(), Duration::from_millis(10), Duration::from_secs(3600));
        assert_eq!(patient.release(&keys(2)), [true, true]);
        assert_eq!(patient.release(&keys(2)), [true, true]);
        assert_eq!(asked.load(Ordering::SeqCst), 1, "a silent client was waited for twice");
        patient.answer(0, vec![false, false]);
        assert_eq!(patient.release(&keys(1)), [true]);
        assert_eq!(asked.load(Ordering::SeqCst), 2, "a client that speaks again was not asked");

        let impatient = RemoteHolder::with_patience(ask, Duration::from_millis(1), Duration::ZERO);
        assert_eq!(impatient.release(&keys(1)), [true]);
        assert_eq!(impatient.release(&keys(1)), [false]);
    }

    #[test]
    fn a_disconnected_client_holds_nothing() {
        let holder = RemoteHolder::new(|_, _| false);
        assert_eq!(holder.release(&keys(1)), [false]);
        let holder = Arc::new_cyclic(|me: &Weak<RemoteHolder>| {
            let me = me.clone();
            RemoteHolder::new(move |_, _| {
                me.upgrade().expect("alive").gone();
                true
            })
        });
        assert_eq!(holder.release(&keys(3)), [false; 3]);
    }
}
