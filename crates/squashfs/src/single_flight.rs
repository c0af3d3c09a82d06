//! Single-flight: concurrent requests for the same key share one load.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

use crate::fault::Fault;

/// Callback of a waiting request. It runs on the loading thread, which holds no lock.
pub(crate) type Waiter<V> = Box<dyn FnOnce(Result<V, Fault>) + Send>;

/// Loads in progress, by key.
pub(crate) struct SingleFlight<K, V> {
    single_flight: Mutex<HashMap<K, Load<V>>>,
}

struct Load<V> {
    waiters: Vec<Waiter<V>>,
    /// Whether a thread has started the load; before that it is queued.
    taken: bool,
    /// Whether a request waits for the load; false for a prefetch.
    demanded: bool,
}

/// Outcome of joining a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// There is no load of this key yet: the caller must start one.
    MustLoad,
    /// The load was queued as a prefetch and is now a demand.
    Promoted,
    /// The load is in progress or queued already.
    Pending,
}

impl<K: Copy + Eq + Hash, V: Clone> SingleFlight<K, V> {
    pub(crate) fn new() -> Self {
        Self { single_flight: Mutex::default() }
    }

    /// Joins the load of `key`; a call without a waiter is a prefetch.
    pub(crate) fn join(&self, key: K, waiter: Option<Waiter<V>>) -> Joined {
        let mut single_flight = self.single_flight.lock();
        let demanded = waiter.is_some();
        let Some(load) = single_flight.get_mut(&key) else {
            let waiters = waiter.into_iter().collect();
            single_flight.insert(key, Load { waiters, taken: false, demanded });
            return Joined::MustLoad;
        };
        load.waiters.extend(waiter);
        let promoted = demanded && !load.demanded && !load.taken;
        load.demanded |= demanded;
        if promoted { Joined::Promoted } else { Joined::Pending }
    }

    /// Starts the queued load of `key`; `None` if another thread has started or finished it.
    pub(crate) fn take(&self, key: K) -> Option<LoadGuard<'_, K, V>> {
        let mut single_flight = self.single_flight.lock();
        let load = single_flight.get_mut(&key).filter(|load| !load.taken)?;
        load.taken = true;
        Some(LoadGuard { single_flight: Some(self), key })
    }

    /// Drops a prefetch that can't be queued; returns true if a demand has joined it meanwhile.
    pub(crate) fn cancel_prefetch(&self, key: K) -> bool {
        let mut single_flight = self.single_flight.lock();
        let demanded = single_flight.get(&key).is_some_and(|load| load.demanded);
        if !demanded {
            single_flight.remove(&key);
        }
        demanded
    }

    fn finish(&self, key: K) -> Vec<Waiter<V>> {
        self.single_flight.lock().remove(&key).map(|load| load.waiters).unwrap_or_default()
    }
}

/// A load that this thread has to complete. Dropping it without an answer drops its waiters, which a reply
/// turns into an error.
pub(crate) struct LoadGuard<'a, K: Copy + Eq + Hash, V: Clone> {
    /// State of the load; none once the load is complete.
    single_flight: Option<&'a SingleFlight<K, V>>,
    key: K,
}

impl<K: Copy + Eq + Hash, V: Clone> LoadGuard<'_, K, V> {
    /// Completes the load and calls all waiters. The caller must have put the value into the cache before.
    pub(crate) fn complete(mut self, answer: &Result<V, Fault>) {
        let waiters = self.single_flight.take().map(|single_flight| single_flight.finish(self.key));
        for waiter in waiters.into_iter().flatten() {
            waiter(answer.clone());
        }
    }
}

impl<K: Copy + Eq + Hash, V: Clone> Drop for LoadGuard<'_, K, V> {
    fn drop(&mut self) {
        drop(self.single_flight.take().map(|single_flight| single_flight.finish(self.key)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn completing_a_load_does_not_take_waiters_from_the_next_load() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let single_flight = std::sync::Arc::new(SingleFlight::<u8, u8>::new());
        let tell = || -> Waiter<u8> {
            Box::new(|answer| {
                TOLD.fetch_add(answer.unwrap().into(), Ordering::Relaxed);
            })
        };
        let again = std::sync::Arc::clone(&single_flight);
        // A waiter requests the key again, which starts another load.
        let first: Waiter<u8> = Box::new(move |_| assert_eq!(again.join(1, Some(tell())), Joined::MustLoad));
        assert_eq!(single_flight.join(1, Some(first)), Joined::MustLoad);
        single_flight.take(1).unwrap().complete(&Ok(1));
        assert_eq!(TOLD.load(Ordering::Relaxed), 0);
        single_flight.take(1).expect("the second load is queued").complete(&Ok(7));
        assert_eq!(TOLD.load(Ordering::Relaxed), 7);
        assert!(single_flight.take(1).is_none());
    }

    #[test]
    fn a_demand_promotes_a_queued_prefetch() {
        let single_flight = SingleFlight::<u8, u8>::new();
        let waiter = || -> Waiter<u8> { Box::new(|_| {}) };
        assert_eq!(single_flight.join(1, None), Joined::MustLoad);
        assert_eq!(single_flight.join(1, None), Joined::Pending);
        assert_eq!(single_flight.join(1, Some(waiter())), Joined::Promoted);
        assert_eq!(single_flight.join(1, Some(waiter())), Joined::Pending);
        assert!(single_flight.cancel_prefetch(1));
        let taken = single_flight.take(1).unwrap();
        assert!(single_flight.take(1).is_none());
        drop(taken);
        assert_eq!(single_flight.join(1, None), Joined::MustLoad);
        assert!(!single_flight.cancel_prefetch(1));
        assert_eq!(single_flight.join(1, Some(waiter())), Joined::MustLoad);
    }
}
