//! Loads of an image's parts: concurrent requests for the same key share one load, and a demand promotes a prefetch.

use std::hash::Hash;

use esker_threads::single_flight::{self, Leader};

use crate::fault::Fault;

/// Callback of a waiting request. It runs on the loading thread, which holds no lock.
pub(crate) type Waiter<V> = Box<dyn FnOnce(Result<V, Fault>) + Send>;

type Flights<K, V> = single_flight::SingleFlight<K, Load, Option<Waiter<V>>>;

/// Loads in progress, by key; a prefetch has no waiter.
pub(crate) struct SingleFlight<K, V>(Flights<K, V>);

/// State of a load.
struct Load {
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
        Self(Flights::default())
    }

    /// Joins the load of `key`; a call without a waiter is a prefetch.
    pub(crate) fn join(&self, key: K, waiter: Option<Waiter<V>>) -> Joined {
        let start = |waiter: &Option<_>| Load { taken: false, demanded: waiter.is_some() };
        let joined = |load: &mut Load, waiter: &Option<_>| {
            let promoted = waiter.is_some() && !load.demanded && !load.taken;
            load.demanded |= waiter.is_some();
            if promoted { Joined::Promoted } else { Joined::Pending }
        };
        self.0.join(key, waiter, start, joined).unwrap_or(Joined::MustLoad)
    }

    /// Starts the queued load of `key`; `None` if another thread has started or finished it.
    pub(crate) fn take(&self, key: K) -> Option<LoadGuard<'_, K, V>> {
        let was_taken = self.0.change(&key, |load| std::mem::replace(&mut load.state.taken, true))?;
        (!was_taken).then(|| LoadGuard(Leader::new(&self.0, key)))
    }

    /// Drops a prefetch that can't be queued; returns true if a demand has joined it meanwhile.
    pub(crate) fn cancel_prefetch(&self, key: K) -> bool {
        let mut demanded = false;
        let is_unwanted = |load: &mut single_flight::Flight<Load, _>| {
            demanded = load.state.demanded;
            !demanded
        };
        self.0.end_if(&key, is_unwanted);
        demanded
    }
}

/// A load that this thread has to complete. Dropping it without an answer drops its waiters, which a reply
/// turns into an error.
pub(crate) struct LoadGuard<'a, K: Eq + Hash, V>(Leader<&'a Flights<K, V>, K, Load, Option<Waiter<V>>>);

impl<K: Eq + Hash, V: Clone> LoadGuard<'_, K, V> {
    /// Completes the load and calls all waiters. The caller must have put the value into the cache before.
    pub(crate) fn complete(self, answer: &Result<V, Fault>) {
        for waiter in self.0.end().into_iter().flatten() {
            waiter(answer.clone());
        }
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
