//! Merges concurrent requests for one key: the first leads, and those that come before it ends wait for its result.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Deref;

use parking_lot::Mutex;

/// Work in progress by key.
///
/// A flight has a state `S` of its owner and waiters `W`, one for each request. All functions that it calls hold a lock
/// and must not wait.
pub struct SingleFlight<K, S, W> {
    shards: Box<[Shard<K, S, W>]>,
    hasher: RandomState,
}

type Shard<K, S, W> = Mutex<HashMap<K, Flight<S, W>>>;

/// Work on one key, and the requests that wait for it.
pub struct Flight<S, W> {
    /// Notes of the owner about the work.
    pub state: S,
    /// Waiting requests, first the one that leads.
    pub waiters: Vec<W>,
}

impl<K, S, W> Default for SingleFlight<K, S, W> {
    fn default() -> Self {
        Self::with_shards(1)
    }
}

impl<K, S, W> fmt::Debug for SingleFlight<K, S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").finish_non_exhaustive()
    }
}

impl<K, S, W> SingleFlight<K, S, W> {
    /// Creates flights under `shards` locks, so that many threads with different keys rarely wait for each other.
    pub fn with_shards(shards: usize) -> Self {
        let shards = (0..shards.max(1)).map(|_| Mutex::default()).collect();
        Self { shards, hasher: RandomState::new() }
    }
}

impl<K: Eq + Hash, S, W> SingleFlight<K, S, W> {
    fn shard(&self, key: &K) -> &Shard<K, S, W> {
        &self.shards[self.hasher.hash_one(key) as usize % self.shards.len()]
    }

    /// Joins the flight of `key`, and returns the result of `joined`. Without one, starts it with the state that `start`
    /// makes and returns `None`: the caller leads, and must end it.
    pub fn join<R>(
        &self,
        key: K,
        waiter: W,
        start: impl FnOnce(&W) -> S,
        joined: impl FnOnce(&mut S, &W) -> R,
    ) -> Option<R> {
        match self.shard(&key).lock().entry(key) {
            Entry::Occupied(entry) => {
                let flight = entry.into_mut();
                let result = joined(&mut flight.state, &waiter);
                flight.waiters.push(waiter);
                Some(result)
            }
            Entry::Vacant(entry) => {
                entry.insert(Flight { state: start(&waiter), waiters: vec![waiter] });
                None
            }
        }
    }

    /// Changes the flight of `key`; `None` if there is none.
    pub fn change<R>(&self, key: &K, change: impl FnOnce(&mut Flight<S, W>) -> R) -> Option<R> {
        self.shard(key).lock().get_mut(key).map(change)
    }

    /// Ends the flight of `key` if `is_over` returns true for it, and returns its waiters. The next request leads again.
    pub fn end_if(&self, key: &K, is_over: impl FnOnce(&mut Flight<S, W>) -> bool) -> Option<Vec<W>> {
        let mut flights = self.shard(key).lock();
        let over = is_over(flights.get_mut(key)?);
        over.then(|| flights.remove(key)).flatten().map(|flight| flight.waiters)
    }

    /// Ends the flight of `key` and returns its waiters: none if it has ended already.
    pub fn end(&self, key: &K) -> Vec<W> {
        self.end_if(key, |_| true).unwrap_or_default()
    }

    /// Returns true if no work is in progress.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }
}

/// A flight to complete. Dropping it, as in a panic, ends the flight and drops its waiters.
pub struct Leader<P, K, S, W>
where
    P: Deref<Target = SingleFlight<K, S, W>>,
    K: Eq + Hash,
{
    flights: P,
    /// Key of the flight; `None` once it has ended, because another may have the key by then.
    key: Option<K>,
}

impl<P, K, S, W> Leader<P, K, S, W>
where
    P: Deref<Target = SingleFlight<K, S, W>>,
    K: Eq + Hash,
{
    /// Takes over the flight of `key`, which the caller leads.
    pub fn new(flights: P, key: K) -> Self {
        Self { flights, key: Some(key) }
    }

    /// Changes the flight.
    pub fn change<R>(&self, change: impl FnOnce(&mut Flight<S, W>) -> R) -> Option<R> {
        self.flights.change(self.key.as_ref()?, change)
    }

    /// Ends the flight and returns its waiters.
    pub fn end(mut self) -> Vec<W> {
        self.key.take().map(|key| self.flights.end(&key)).unwrap_or_default()
    }
}

impl<P, K, S, W> Drop for Leader<P, K, S, W>
where
    P: Deref<Target = SingleFlight<K, S, W>>,
    K: Eq + Hash,
{
    fn drop(&mut self) {
        drop(self.key.take().map(|key| self.flights.end(&key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_join_the_flight_of_their_key_until_it_ends() {
        for shards in [1, 64] {
            let flights = SingleFlight::<u8, u32, &str>::with_shards(shards);
            let join = |key, waiter| {
                flights.join(
                    key,
                    waiter,
                    |_| 1,
                    |count, _| {
                        *count += 1;
                        *count
                    },
                )
            };
            assert_eq!((join(1, "a"), join(2, "b"), join(1, "c")), (None, None, Some(2)));
            assert_eq!(flights.change(&1, |flight| flight.state), Some(2));
            assert_eq!(flights.end_if(&1, |_| false), None);
            assert_eq!(flights.end(&1), ["a", "c"]);
            assert!(flights.end(&1).is_empty() && !flights.is_empty());
            assert_eq!(join(1, "d"), None);
        }
    }

    #[test]
    fn a_dropped_leader_ends_only_its_own_flight() {
        let flights = SingleFlight::<u8, (), u8>::default();
        let join = |waiter| flights.join(7, waiter, |_| (), |(), _| ());
        assert!(join(1).is_none());
        drop(Leader::new(&flights, 7));
        assert!(flights.is_empty() && join(2).is_none());
        let leader = Leader::new(&flights, 7);
        assert_eq!(leader.change(|flight| flight.waiters.len()), Some(1));
        assert_eq!(leader.end(), [2]);
        assert!(join(3).is_none() && join(4).is_some());
    }
}
