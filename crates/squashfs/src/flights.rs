//! Single-flight: what several want at once is loaded once.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::fault::Fault;

/// Who is told when it is there. Called on the thread that loaded it, holding no lock.
pub(crate) type Waiter<V> = Box<dyn FnOnce(Result<V, Fault>) + Send>;

/// What is being loaded.
pub(crate) struct Flights<K, V> {
    flights: Mutex<HashMap<K, Flight<V>>>,
}

struct Flight<V> {
    waiters: Vec<Waiter<V>>,
    /// Whether a thread loads it; until then it only waits in a queue.
    taken: bool,
    /// Whether somebody waits for it, or it is loaded on suspicion.
    demanded: bool,
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Somebody has to load it: the caller sees to that.
    First,
    /// It waits in the queue of what nobody demanded; now it is demanded.
    Promoted,
    /// It will come.
    Coming,
}

impl<K: Copy + Eq + Hash, V: Clone> Flights<K, V> {
    pub(crate) fn new() -> Self {
        Self { flights: Mutex::default() }
    }

    /// Waits for `key`; without a waiter it is not demanded.
    pub(crate) fn join(&self, key: K, waiter: Option<Waiter<V>>) -> Joined {
        let mut flights = self.flights.lock();
        let demanded = waiter.is_some();
        let Some(flight) = flights.get_mut(&key) else {
            let waiters = waiter.into_iter().collect();
            flights.insert(key, Flight { waiters, taken: false, demanded });
            return Joined::First;
        };
        flight.waiters.extend(waiter);
        let promoted = demanded && !flight.demanded && !flight.taken;
        flight.demanded |= demanded;
        if promoted { Joined::Promoted } else { Joined::Coming }
    }

    /// Takes it on to load it; `None` if another thread did, or has loaded it.
    pub(crate) fn take(&self, key: K) -> Option<Taken<'_, K, V>> {
        let mut flights = self.flights.lock();
        let flight = flights.get_mut(&key).filter(|flight| !flight.taken)?;
        flight.taken = true;
        Some(Taken { flights: Some(self), key })
    }

    /// Gives it up that nobody demanded it; `true` if somebody did by now.
    pub(crate) fn cancel(&self, key: K) -> bool {
        let mut flights = self.flights.lock();
        let demanded = flights.get(&key).is_some_and(|flight| flight.demanded);
        if !demanded {
            flights.remove(&key);
        }
        demanded
    }

    fn finish(&self, key: K) -> Vec<Waiter<V>> {
        self.flights.lock().remove(&key).map(|flight| flight.waiters).unwrap_or_default()
    }
}

/// Somebody loads it. Dropped without an answer, those who wait are dropped too, which a reply turns into an error.
pub(crate) struct Taken<'a, K: Copy + Eq + Hash, V: Clone> {
    /// None once it is given: the next flight of the same key is another's.
    flights: Option<&'a Flights<K, V>>,
    key: K,
}

impl<K: Copy + Eq + Hash, V: Clone> Taken<'_, K, V> {
    /// Tells all who wait. What others are to find has to be in the cache by now.
    pub(crate) fn give(mut self, answer: &Result<V, Fault>) {
        let waiters = self.flights.take().map(|flights| flights.finish(self.key));
        for waiter in waiters.into_iter().flatten() {
            waiter(answer.clone());
        }
    }
}

impl<K: Copy + Eq + Hash, V: Clone> Drop for Taken<'_, K, V> {
    fn drop(&mut self) {
        drop(self.flights.take().map(|flights| flights.finish(self.key)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn what_was_given_takes_nothing_from_those_who_come_next() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let flights = std::sync::Arc::new(Flights::<u8, u8>::new());
        let tell = || -> Waiter<u8> {
            Box::new(|answer| {
                TOLD.fetch_add(answer.unwrap().into(), Ordering::Relaxed);
            })
        };
        let again = std::sync::Arc::clone(&flights);
        // Whoever is told wants it again, which is another flight.
        let first: Waiter<u8> = Box::new(move |_| assert_eq!(again.join(1, Some(tell())), Joined::First));
        assert_eq!(flights.join(1, Some(first)), Joined::First);
        flights.take(1).unwrap().give(&Ok(1));
        assert_eq!(TOLD.load(Ordering::Relaxed), 0);
        flights.take(1).expect("the second flight is there").give(&Ok(7));
        assert_eq!(TOLD.load(Ordering::Relaxed), 7);
        assert!(flights.take(1).is_none());
    }

    #[test]
    fn a_demand_promotes_what_only_waits() {
        let flights = Flights::<u8, u8>::new();
        let nobody = || -> Waiter<u8> { Box::new(|_| {}) };
        assert_eq!(flights.join(1, None), Joined::First);
        assert_eq!(flights.join(1, None), Joined::Coming);
        assert_eq!(flights.join(1, Some(nobody())), Joined::Promoted);
        assert_eq!(flights.join(1, Some(nobody())), Joined::Coming);
        assert!(flights.cancel(1));
        let taken = flights.take(1).unwrap();
        assert!(flights.take(1).is_none());
        drop(taken);
        assert_eq!(flights.join(1, None), Joined::First);
        assert!(!flights.cancel(1));
        assert_eq!(flights.join(1, Some(nobody())), Joined::First);
    }
}
