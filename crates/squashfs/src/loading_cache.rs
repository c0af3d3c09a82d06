//! Cache whose missing values are loaded once: concurrent requests for a key share one load, and a demand promotes a
//! prefetch.

use std::hash::Hash;
use std::sync::mpsc::sync_channel;

use esker_threads::single_flight::{self, Leader};

use crate::cache::Cache;
use crate::fault::Fault;

/// Callback of a waiting request. It runs on the loading thread, which holds no lock.
pub(crate) type Waiter<V> = Box<dyn FnOnce(Result<V, Fault>) + Send>;

/// Cached values, and loads in progress; a prefetch has no waiter.
pub(crate) struct LoadingCache<K, V> {
    values: Cache<K, V>,
    loads: single_flight::SingleFlight<K, Load, Option<Waiter<V>>>,
    weigh: fn(&V) -> usize,
}

/// State of a load.
struct Load {
    /// True once a thread loads the block; before that the load is queued.
    started: bool,
    /// True if a request waits for the load; false for a prefetch.
    demanded: bool,
}

impl<K: Copy + Eq + Hash, V: Clone + Send + 'static> LoadingCache<K, V> {
    /// Creates a cache of `capacity` bytes in total, for values of at most `largest` bytes, which `weigh` returns.
    pub(crate) fn new(capacity: usize, largest: usize, weigh: fn(&V) -> usize) -> Self {
        Self { values: Cache::new(capacity, largest), loads: single_flight::SingleFlight::default(), weigh }
    }

    /// Returns the value if it is cached.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.values.get(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.values.contains(key)
    }

    /// Returns the size of all cached values in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.values.weight()
    }

    /// Joins the load of `key`, as a prefetch without a waiter; returns true if the caller must queue the load: there is
    /// none yet, or it is queued as a prefetch and is now a demand.
    pub(crate) fn join(&self, key: K, waiter: Option<Waiter<V>>) -> bool {
        let start = |waiter: &Option<_>| Load { started: false, demanded: waiter.is_some() };
        let joined = |load: &mut Load, waiter: &Option<_>| {
            let promoted = waiter.is_some() && !load.demanded && !load.started;
            load.demanded |= waiter.is_some();
            promoted
        };
        self.loads.join(key, waiter, start, joined).unwrap_or(true)
    }

    /// Drops a prefetch that can't be queued; returns true if a demand has joined it meanwhile.
    pub(crate) fn cancel_prefetch(&self, key: K) -> bool {
        let mut demanded = false;
        let is_unwanted = |load: &mut single_flight::Flight<Load, _>| {
            demanded = load.state.demanded;
            !demanded
        };
        self.loads.end_if(&key, is_unwanted);
        demanded
    }

    /// Loads, caches and returns the value of a key with a queued load, and calls its waiters; `None` if another thread
    /// has started the load. Without a result of `load`, as in a panic, the waiters are dropped, which a reply turns into
    /// an error.
    pub(crate) fn load(&self, key: K, load: impl FnOnce() -> Result<V, Fault>) -> Option<Result<V, Fault>> {
        let started = self.loads.change(&key, |load| std::mem::replace(&mut load.state.started, true));
        if started != Some(false) {
            return None;
        }
        let leader = Leader::new(&self.loads, key);
        let value = self.values.get(&key).map_or_else(load, Ok);
        if let Ok(value) = &value {
            // Before the waiters run, so that they find it.
            self.values.insert(key, value.clone(), (self.weigh)(value));
        }
        for waiter in leader.end().into_iter().flatten() {
            waiter(value.clone());
        }
        Some(value)
    }

    /// Returns the value of a key that wasn't cached: loads it on this thread, or waits for the thread that does; `None`
    /// if it would have to wait and `may_wait` is false, or if that thread gave up.
    pub(crate) fn load_or_wait(
        &self,
        key: K,
        may_wait: bool,
        load: impl FnOnce() -> Result<V, Fault>,
    ) -> Option<Result<V, Fault>> {
        let (sender, answer) = sync_channel(1);
        let waiter = may_wait.then(|| -> Waiter<V> {
            Box::new(move |value| {
                // The receiver is gone if this thread loads the value itself.
                let _ = sender.send(value);
            })
        });
        let loaded = if self.join(key, waiter) { self.load(key, load) } else { None };
        loaded.or_else(|| if may_wait { answer.recv().ok() } else { None })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn cache() -> LoadingCache<u8, u8> {
        LoadingCache::new(1000, 1, |_| 1)
    }

    fn fault() -> Result<u8, Fault> {
        Err(Fault::damaged(&"it".into(), 0, "it failed"))
    }

    #[test]
    fn completing_a_load_does_not_take_waiters_from_the_next_load() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let cache = Arc::new(cache());
        let again = Arc::clone(&cache);
        // A waiter requests the key again, which starts another load.
        let first: Waiter<u8> = Box::new(move |_| {
            let tell = move |answer: Result<u8, Fault>| {
                TOLD.fetch_add(answer.unwrap().into(), Ordering::Relaxed);
            };
            assert!(again.join(1, Some(Box::new(tell))));
        });
        assert!(cache.join(1, Some(first)));
        assert!(cache.load(1, fault).is_some_and(|failed| failed.is_err()));
        assert_eq!((TOLD.load(Ordering::Relaxed), cache.get(&1)), (0, None));
        assert!(cache.load(1, || Ok(7)).is_some());
        assert_eq!((TOLD.load(Ordering::Relaxed), cache.get(&1)), (7, Some(7)));
        assert!(cache.load(1, || Ok(1)).is_none());
    }

    #[test]
    fn a_demand_promotes_a_queued_prefetch() {
        let cache = cache();
        let waiter = || -> Option<Waiter<u8>> { Some(Box::new(|_| {})) };
        assert!(cache.join(1, None) && !cache.join(1, None));
        assert!(cache.join(1, waiter()) && !cache.join(1, waiter()));
        assert!(cache.cancel_prefetch(1));
        let inner = cache.load(1, || {
            assert!(!cache.join(1, waiter()) && cache.load(1, || Ok(3)).is_none());
            fault()
        });
        assert!(inner.is_some());
        assert!(cache.join(1, None) && !cache.cancel_prefetch(1) && cache.join(1, waiter()));
    }

    #[test]
    fn threads_that_need_a_value_share_one_load() {
        let cache = cache();
        let waiting = || cache.loads.change(&1, |load| load.waiters.len());
        let read = || cache.load_or_wait(1, true, || panic!("a second load"));
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            let first = cache.load_or_wait(1, true, || {
                others.extend((0..3).map(|_| scope.spawn(read)));
                while waiting() != Some(4) {
                    std::thread::yield_now();
                }
                Ok(5)
            });
            let values = others.into_iter().map(|reader| reader.join().unwrap()).chain([first]);
            values.for_each(|value| assert_eq!(value.and_then(Result::ok), Some(5)));
        });
    }

    #[test]
    fn a_thread_that_may_not_wait_loads_or_returns() {
        let cache = cache();
        let value = cache.load_or_wait(1, false, || {
            assert!(cache.load_or_wait(1, false, || Ok(2)).is_none());
            Ok(1)
        });
        assert_eq!((value.and_then(Result::ok), cache.get(&1)), (Some(1), Some(1)));
        assert_eq!(cache.load_or_wait(1, true, fault).and_then(Result::ok), Some(1));
    }
}
