//! Tracks reads of the last minute, whose data is therefore in memory.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Maximum number of recorded keys.
const MAX: usize = 1 << 16;
/// Seconds after which keys are dropped. Memory that is short is reused within minutes.
const SECONDS: u64 = 60;

/// Keys of recent reads.
pub struct RecentReads<K> {
    keys: papaya::HashSet<K>,
    began: Instant,
    /// Time of the last reset, in seconds since `began`.
    forgotten: AtomicU64,
}

impl<K: Copy + Eq + Hash> Default for RecentReads<K> {
    fn default() -> Self {
        Self { keys: papaya::HashSet::new(), began: Instant::now(), forgotten: AtomicU64::new(0) }
    }
}

impl<K: Copy + Eq + Hash> RecentReads<K> {
    /// Records a read; returns true if it is the first of this key in a while.
    pub fn is_first(&self, key: K) -> bool {
        let keys = self.keys.pin();
        // Most reads repeat earlier ones; those write nothing and read no clock.
        let first = !keys.contains(&key) && keys.insert(key);
        if first {
            let now = self.began.elapsed().as_secs();
            if now - self.forgotten.load(Ordering::Relaxed).min(now) >= SECONDS || keys.len() > MAX {
                self.forgotten.store(now, Ordering::Relaxed);
                keys.clear();
                keys.insert(key);
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_store::CacheKey;

    use super::*;

    #[test]
    fn a_key_is_first_once_and_memory_is_bounded() {
        let recent_reads = RecentReads::default();
        let key = |number: u32| {
            let mut digest = [0; 20];
            digest[..4].copy_from_slice(&number.to_le_bytes());
            CacheKey { hash: ContentHash::new(HashAlgorithm::Sha1, digest), compression: Compression::Zlib }
        };
        for number in 0..2 * MAX as u32 {
            assert!(recent_reads.is_first(key(number)));
            assert!(!recent_reads.is_first(key(number)));
            assert!(recent_reads.keys.len() <= MAX);
        }
    }
}
