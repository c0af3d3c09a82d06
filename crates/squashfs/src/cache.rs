//! Bounded cache that survives scans.
//!
//! S3-FIFO: new entries go to a small queue. An entry used again before it leaves that queue moves to the
//! main queue; an unused one is dropped, and only its key is remembered for a while. A reader that touches
//! everything once passes through the small queue. A hit takes a shared lock and increments a counter; no
//! entry moves.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU8, Ordering};

use foldhash::fast::RandomState;
use foldhash::{HashMap, HashSet};
use parking_lot::RwLock;

/// Maximum use count of an entry; further uses are not counted.
const USES_MAX: u8 = 3;
/// Divisor of the capacity that gives the size of the small queue.
const SMALL_PART: usize = 10;
const SHARDS_MAX: usize = 16;
/// Number of the largest entries that a shard should have room for.
const ENTRIES_A_SHARD: usize = 16;

struct Entry<V> {
    value: V,
    weight: usize,
    uses: AtomicU8,
    main: bool,
}

struct Shard<K, V> {
    capacity: usize,
    entries: HashMap<K, Entry<V>>,
    small: VecDeque<K>,
    main: VecDeque<K>,
    small_weight: usize,
    main_weight: usize,
    /// Keys that left the small queue unused, oldest first.
    gone: VecDeque<K>,
    is_gone: HashSet<K>,
}

/// Sharded S3-FIFO cache.
pub(crate) struct Cache<K, V> {
    shards: Box<[RwLock<Shard<K, V>>]>,
    hasher: RandomState,
}

impl<K: Copy + Eq + Hash, V: Clone> Cache<K, V> {
    /// Creates a cache of `capacity` bytes in total, for entries of at most `largest` bytes.
    pub(crate) fn new(capacity: usize, largest: usize) -> Self {
        let shards = (capacity / (largest.max(1) * ENTRIES_A_SHARD)).clamp(1, SHARDS_MAX);
        let shard = || {
            RwLock::new(Shard {
                capacity: capacity / shards,
                entries: HashMap::default(),
                small: VecDeque::new(),
                main: VecDeque::new(),
                small_weight: 0,
                main_weight: 0,
                gone: VecDeque::new(),
                is_gone: HashSet::default(),
            })
        };
        Self { shards: std::iter::repeat_with(shard).take(shards).collect(), hasher: RandomState::default() }
    }

    fn shard(&self, key: &K) -> &RwLock<Shard<K, V>> {
        let shards = self.shards.len() as u64;
        let number = self.hasher.hash_one(key) % shards;
        self.shards
            .get(usize::try_from(number).unwrap_or(0))
            .expect("the remainder is less than the number of shards, and there is one")
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let shard = self.shard(key).read();
        let entry = shard.entries.get(key)?;
        let uses = entry.uses.load(Ordering::Relaxed);
        if uses < USES_MAX {
            // A use that is lost in a race does no harm.
            entry.uses.store(uses + 1, Ordering::Relaxed);
        }
        Some(entry.value.clone())
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.shard(key).read().entries.contains_key(key)
    }

    /// Inserts `value`, unless it is larger than a shard.
    pub(crate) fn insert(&self, key: K, value: V, weight: usize) {
        let mut shard = self.shard(&key).write();
        if weight > shard.capacity || shard.entries.contains_key(&key) {
            return;
        }
        while shard.small_weight + shard.main_weight + weight > shard.capacity {
            shard.evict();
        }
        let main = shard.is_gone.remove(&key);
        if main {
            shard.main.push_back(key);
            shard.main_weight += weight;
        } else {
            shard.small.push_back(key);
            shard.small_weight += weight;
        }
        shard.entries.insert(key, Entry { value, weight, uses: AtomicU8::new(0), main });
    }

    /// Returns the size of all entries in bytes.
    pub(crate) fn weight(&self) -> usize {
        let of = |shard: &RwLock<Shard<K, V>>| {
            let shard = shard.read();
            shard.small_weight + shard.main_weight
        };
        self.shards.iter().map(of).sum()
    }
}

impl<K: Copy + Eq + Hash, V> Shard<K, V> {
    /// Evicts an entry, or moves one to the main queue.
    fn evict(&mut self) {
        if self.small_weight > self.capacity / SMALL_PART || self.main.is_empty() {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    fn evict_small(&mut self) {
        let Some(key) = self.small.pop_front() else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        self.small_weight -= entry.weight;
        if *entry.uses.get_mut() > 0 {
            *entry.uses.get_mut() = 0;
            entry.main = true;
            self.main_weight += entry.weight;
            self.main.push_back(key);
            return;
        }
        self.entries.remove(&key);
        self.gone.push_back(key);
        self.is_gone.insert(key);
        // Remembering more keys than there are entries has no benefit.
        while self.gone.len() > self.entries.len().max(ENTRIES_A_SHARD) {
            if let Some(forgotten) = self.gone.pop_front() {
                self.is_gone.remove(&forgotten);
            }
        }
    }

    fn evict_main(&mut self) {
        let Some(key) = self.main.pop_front() else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let uses = entry.uses.get_mut();
        if *uses > 0 {
            *uses -= 1;
            self.main.push_back(key);
            return;
        }
        self.main_weight -= entry.weight;
        self.entries.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_limit_holds_and_used_entries_survive_a_scan() {
        let cache = Cache::new(1000, 10);
        let popular: Vec<u64> = (0..20).collect();
        for key in &popular {
            cache.insert(*key, *key, 10);
            assert_eq!(cache.get(key), Some(*key));
        }
        for key in 1_000..100_000u64 {
            cache.insert(key, key, 10);
            assert!(cache.weight() <= 1000);
            // Every fiftieth entry is read now and then.
            if key % 50 == 0 {
                assert!(popular.iter().all(|key| cache.get(key).is_some()));
            }
        }
        let left = popular.iter().filter(|key| cache.contains(key)).count();
        assert_eq!(left, popular.len());
    }

    #[test]
    fn an_entry_inserted_again_soon_after_eviction_is_kept() {
        let cache = Cache::new(160, 10);
        cache.insert(1u64, 'a', 10);
        for key in 100..116 {
            cache.insert(key, 'x', 10);
        }
        assert!(!cache.contains(&1));
        cache.insert(1, 'a', 10);
        for key in 200..230 {
            cache.insert(key, 'x', 10);
        }
        assert!(cache.contains(&1));
    }

    #[test]
    fn an_entry_larger_than_a_shard_is_not_cached() {
        let cache = Cache::new(100, 10);
        cache.insert(1u64, (), 101);
        assert!(!cache.contains(&1));
        assert_eq!(cache.weight(), 0);
    }
}
