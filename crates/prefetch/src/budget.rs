//! Limits the bytes that are prefetched and not read.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::CacheKey;

/// Bytes that may be prefetched before programs have read anything.
const FLOOR: u64 = 32 << 20;

/// Maximum number of prefetched objects that are tracked as unread.
const UNREAD_MAX: usize = 1 << 16;

/// Keeps prefetched, unread bytes below the bytes that programs demanded.
///
/// Prefetching therefore at most doubles the fetched bytes (beyond the first few), and reads of prefetched objects
/// raise the limit.
///
/// A [bounded](Self::bounded) budget does not grow: a read gives back the bytes of its object and makes up for as many
/// bytes that were not read, but the unread bytes never exceed the initial limit, whatever was demanded.
pub(crate) struct Budget {
    /// Plain bytes that may be unread before programs have read anything.
    floor: u64,
    /// True if demanded bytes do not raise the limit.
    is_bounded: bool,
    /// Plain bytes that programs read.
    demanded: AtomicU64,
    /// Plain bytes that were prefetched and not read so far, minus a credit for reads.
    unread_bytes: AtomicU64,
    /// Unread objects with their plain sizes in bytes.
    unread: papaya::HashMap<CacheKey, u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(FLOOR)
    }
}

impl Budget {
    /// Returns a budget with this initial size in plain bytes.
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            floor,
            is_bounded: false,
            demanded: AtomicU64::new(0),
            unread_bytes: AtomicU64::new(0),
            unread: papaya::HashMap::new(),
        }
    }

    /// Returns a budget that never allows more than this many plain bytes.
    pub(crate) fn bounded(floor: u64) -> Self {
        Self { is_bounded: true, ..Self::new(floor) }
    }

    /// Returns true if this many more bytes may be prefetched.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        let demanded = self.demanded.load(Ordering::Relaxed);
        let unread_bytes = self.unread_bytes.load(Ordering::Relaxed);
        unread_bytes.saturating_add(bytes) <= self.floor.saturating_add(demanded)
    }

    /// Records that an object is being prefetched.
    pub(crate) fn spend(&self, key: CacheKey, bytes: u64) {
        let unread = self.unread.pin();
        if unread.len() >= UNREAD_MAX {
            // This takes hours of prefetching; objects that are unread by now stay unread.
            unread.clear();
            self.unread_bytes.store(0, Ordering::Relaxed);
        }
        if unread.insert(key, bytes).is_none() {
            self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Removes an object that was not fetched.
    pub(crate) fn forget(&self, key: &CacheKey) {
        self.take(key);
    }

    /// Records a read of a cached object; returns true if the object was prefetched.
    pub(crate) fn read(&self, key: &CacheKey) -> bool {
        let Some(bytes) = self.take(key) else { return false };
        if self.is_bounded {
            self.give_back(bytes);
        } else {
            self.demanded.fetch_add(bytes, Ordering::Relaxed);
        }
        true
    }

    /// Records a cache miss; returns true if the object was being prefetched.
    ///
    /// `bytes` is 0 if a program waited for the object before.
    pub(crate) fn missed(&self, key: &CacheKey, bytes: u64) -> bool {
        let was_prefetched = self.take(key).is_some();
        if !self.is_bounded {
            self.demanded.fetch_add(bytes, Ordering::Relaxed);
        }
        was_prefetched
    }

    fn take(&self, key: &CacheKey) -> Option<u64> {
        // Most objects that programs read were not prefetched.
        if self.unread.is_empty() {
            return None;
        }
        let bytes = *self.unread.pin().remove(key)?;
        self.give_back(bytes);
        Some(bytes)
    }

    fn give_back(&self, bytes: u64) {
        // The counter may be lower by now: it was reset, or other reads made up for these bytes.
        let less = |unread_bytes: u64| Some(unread_bytes.saturating_sub(bytes));
        let _ = self.unread_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::*;

    fn key(number: u8) -> CacheKey {
        let hash = ContentHash::new(HashAlgorithm::Sha1, [number; 20]);
        CacheKey { hash, compression: Compression::Zlib }
    }

    #[test]
    fn reads_of_prefetched_objects_raise_the_budget() {
        let budget = Budget::default();
        assert!(budget.allows(FLOOR) && !budget.allows(FLOOR + 1));
        budget.spend(key(1), FLOOR);
        budget.spend(key(1), FLOOR);
        assert!(!budget.allows(1), "the same guess counts once, and uses all there is");
        assert!(budget.read(&key(1)) && !budget.read(&key(1)));
        assert!(budget.allows(2 * FLOOR) && !budget.allows(2 * FLOOR + 1));
    }

    #[test]
    fn unread_bytes_stay_below_demanded_bytes() {
        let budget = Budget::default();
        let mut wrong = 0;
        for number in 0..=255 {
            assert!(!budget.missed(&key(number), 1 << 20));
            if number % 2 == 0 && budget.allows(4 << 20) {
                let candidate = ContentHash::new(HashAlgorithm::Rmd160, [number; 20]);
                budget.spend(CacheKey { hash: candidate, compression: Compression::Zlib }, 4 << 20);
                wrong += 4;
            }
            assert!(wrong << 20 <= FLOOR + ((u64::from(number) + 1) << 20));
        }
        assert!(wrong > 200, "and it was tried");
    }

    #[test]
    fn a_bounded_budget_never_exceeds_its_limit() {
        let budget = Budget::bounded(100);
        assert!(!budget.missed(&key(0), 1000) && budget.allows(100) && !budget.allows(101));
        // Half of the prefetched objects are read, and make up for the other half.
        for number in 0..=255 {
            budget.spend(key(number), 50);
            assert!(number % 2 == 0 || budget.read(&key(number)));
            assert!(budget.allows(50) && !budget.allows(101), "{number}");
        }
        budget.spend(key(255), 50);
        assert!(budget.missed(&key(255), 50) && budget.allows(50) && !budget.allows(101));
    }

    #[test]
    fn failed_prefetches_are_returned_to_the_budget() {
        let budget = Budget::default();
        budget.spend(key(1), FLOOR);
        budget.forget(&key(1));
        assert!(budget.allows(FLOOR) && !budget.missed(&key(1), 0));
    }
}
