//! How much may be fetched that perhaps nobody reads.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::CacheKey;

/// For guesses of our own, that is this much.
const FLOOR: u64 = 32 << 20;

/// Most objects of which we remember that nobody has read them yet.
const UNREAD_MAX: usize = 1 << 16;

/// Keeps what was fetched ahead and not read below what was demanded, so that prefetching at most doubles the bytes
/// that come (beyond the first few). Guesses that come true earn more of them.
///
/// A [bounded](Self::bounded) one saves nothing up: what is read gives back what it took, and makes up for as much that
/// was not read, but no more than the first few bytes are allowed at any time, whatever was demanded.
pub struct Budget {
    /// What may lie there unread before anything was read: plain bytes.
    floor: u64,
    /// Whether what is demanded counts.
    is_bounded: bool,
    /// Plain bytes that programs read.
    demanded: AtomicU64,
    /// Plain bytes that were fetched ahead and not read so far, but for those that others made up for.
    guessed: AtomicU64,
    /// These objects, with their sizes.
    unread: papaya::HashMap<CacheKey, u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(FLOOR)
    }
}

impl Budget {
    /// A credit that begins with this many plain bytes.
    pub fn new(floor: u64) -> Self {
        Self {
            floor,
            is_bounded: false,
            demanded: AtomicU64::new(0),
            guessed: AtomicU64::new(0),
            unread: papaya::HashMap::new(),
        }
    }

    /// One that allows this many plain bytes, and never more.
    pub fn bounded(floor: u64) -> Self {
        Self { is_bounded: true, ..Self::new(floor) }
    }

    /// Whether so many more bytes may be guessed.
    pub fn allows(&self, bytes: u64) -> bool {
        let demanded = self.demanded.load(Ordering::Relaxed);
        let guessed = self.guessed.load(Ordering::Relaxed);
        guessed.saturating_add(bytes) <= self.floor.saturating_add(demanded)
    }

    /// Notes a guess.
    pub fn candidate(&self, key: CacheKey, bytes: u64) {
        let unread = self.unread.pin();
        if unread.len() >= UNREAD_MAX {
            // Hours of guesses: what of them is unread now stays so.
            unread.clear();
            self.guessed.store(0, Ordering::Relaxed);
        }
        if unread.insert(key, bytes).is_none() {
            self.guessed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes a guess back: nothing came.
    pub fn forget(&self, key: &CacheKey) {
        self.take(key);
    }

    /// Notes that a program reads an object that was in the cache; tells whether it had been guessed.
    pub fn read(&self, key: &CacheKey) -> bool {
        let Some(bytes) = self.take(key) else { return false };
        if self.is_bounded {
            self.give_back(bytes);
        } else {
            self.demanded.fetch_add(bytes, Ordering::Relaxed);
        }
        true
    }

    /// Notes that a program waits for an object, of so many bytes if it did not wait for it before; tells whether it
    /// had been guessed.
    pub fn missed(&self, key: &CacheKey, bytes: u64) -> bool {
        let guessed = self.take(key).is_some();
        if !self.is_bounded {
            self.demanded.fetch_add(bytes, Ordering::Relaxed);
        }
        guessed
    }

    fn take(&self, key: &CacheKey) -> Option<u64> {
        // Most reads are of nothing that was guessed.
        if self.unread.is_empty() {
            return None;
        }
        let bytes = *self.unread.pin().remove(key)?;
        self.give_back(bytes);
        Some(bytes)
    }

    fn give_back(&self, bytes: u64) {
        // Emptied or made up for meanwhile, they are no longer counted.
        let less = |guessed: u64| Some(guessed.saturating_sub(bytes));
        let _ = self.guessed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
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
    fn guesses_that_come_true_earn_more() {
        let budget = Budget::default();
        assert!(budget.allows(FLOOR) && !budget.allows(FLOOR + 1));
        budget.candidate(key(1), FLOOR);
        budget.candidate(key(1), FLOOR);
        assert!(!budget.allows(1), "the same guess counts once, and uses all there is");
        assert!(budget.read(&key(1)) && !budget.read(&key(1)));
        assert!(budget.allows(2 * FLOOR) && !budget.allows(2 * FLOOR + 1));
    }

    #[test]
    fn what_is_never_read_stays_below_what_was_demanded() {
        let budget = Budget::default();
        let mut wrong = 0;
        for number in 0..=255 {
            assert!(!budget.missed(&key(number), 1 << 20));
            if number % 2 == 0 && budget.allows(4 << 20) {
                let candidate = ContentHash::new(HashAlgorithm::Rmd160, [number; 20]);
                budget.candidate(CacheKey { hash: candidate, compression: Compression::Zlib }, 4 << 20);
                wrong += 4;
            }
            assert!(wrong << 20 <= FLOOR + ((u64::from(number) + 1) << 20));
        }
        assert!(wrong > 200, "and it was tried");
    }

    #[test]
    fn one_that_is_bounded_allows_no_more_whatever_is_demanded_or_read() {
        let budget = Budget::bounded(100);
        assert!(!budget.missed(&key(0), 1000) && budget.allows(100) && !budget.allows(101));
        // Of what comes a half is read, and makes up for the other one.
        for number in 0..=255 {
            budget.candidate(key(number), 50);
            assert!(number % 2 == 0 || budget.read(&key(number)));
            assert!(budget.allows(50) && !budget.allows(101), "{number}");
        }
        budget.candidate(key(255), 50);
        assert!(budget.missed(&key(255), 50) && budget.allows(50) && !budget.allows(101));
    }

    #[test]
    fn what_did_not_come_is_no_guess() {
        let budget = Budget::default();
        budget.candidate(key(1), FLOOR);
        budget.forget(&key(1));
        assert!(budget.allows(FLOOR) && !budget.missed(&key(1), 0));
    }
}
