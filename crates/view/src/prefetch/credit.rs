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
pub(crate) struct Credit {
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

impl Default for Credit {
    fn default() -> Self {
        Self::new(FLOOR)
    }
}

impl Credit {
    /// A credit that begins with this many plain bytes.
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            floor,
            is_bounded: false,
            demanded: AtomicU64::new(0),
            guessed: AtomicU64::new(0),
            unread: papaya::HashMap::new(),
        }
    }

    /// One that allows this many plain bytes, and never more.
    pub(crate) fn bounded(floor: u64) -> Self {
        Self { is_bounded: true, ..Self::new(floor) }
    }

    /// Whether so many more bytes may be guessed.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        let demanded = self.demanded.load(Ordering::Relaxed);
        let guessed = self.guessed.load(Ordering::Relaxed);
        guessed.saturating_add(bytes) <= self.floor.saturating_add(demanded)
    }

    /// Notes a guess.
    pub(crate) fn guess(&self, key: CacheKey, bytes: u64) {
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
    pub(crate) fn forget(&self, key: &CacheKey) {
        self.take(key);
    }

    /// Notes that a program reads an object that was in the cache; tells whether it had been guessed.
    pub(crate) fn read(&self, key: &CacheKey) -> bool {
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
    pub(crate) fn missed(&self, key: &CacheKey, bytes: u64) -> bool {
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
        let credit = Credit::default();
        assert!(credit.allows(FLOOR) && !credit.allows(FLOOR + 1));
        credit.guess(key(1), FLOOR);
        credit.guess(key(1), FLOOR);
        assert!(!credit.allows(1), "the same guess counts once, and uses all there is");
        assert!(credit.read(&key(1)) && !credit.read(&key(1)));
        assert!(credit.allows(2 * FLOOR) && !credit.allows(2 * FLOOR + 1));
    }

    #[test]
    fn what_is_never_read_stays_below_what_was_demanded() {
        let credit = Credit::default();
        let mut wrong = 0;
        for number in 0..=255 {
            assert!(!credit.missed(&key(number), 1 << 20));
            if number % 2 == 0 && credit.allows(4 << 20) {
                let guess = ContentHash::new(HashAlgorithm::Rmd160, [number; 20]);
                credit.guess(CacheKey { hash: guess, compression: Compression::Zlib }, 4 << 20);
                wrong += 4;
            }
            assert!(wrong << 20 <= FLOOR + ((u64::from(number) + 1) << 20));
        }
        assert!(wrong > 200, "and it was tried");
    }

    #[test]
    fn one_that_is_bounded_allows_no_more_whatever_is_demanded_or_read() {
        let credit = Credit::bounded(100);
        assert!(!credit.missed(&key(0), 1000) && credit.allows(100) && !credit.allows(101));
        // Of what comes a half is read, and makes up for the other one.
        for number in 0..=255 {
            credit.guess(key(number), 50);
            assert!(number % 2 == 0 || credit.read(&key(number)));
            assert!(credit.allows(50) && !credit.allows(101), "{number}");
        }
        credit.guess(key(255), 50);
        assert!(credit.missed(&key(255), 50) && credit.allows(50) && !credit.allows(101));
    }

    #[test]
    fn what_did_not_come_is_no_guess() {
        let credit = Credit::default();
        credit.guess(key(1), FLOOR);
        credit.forget(&key(1));
        assert!(credit.allows(FLOOR) && !credit.missed(&key(1), 0));
    }
}
