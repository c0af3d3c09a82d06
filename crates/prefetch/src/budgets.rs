//! The budgets of one mount.

use std::sync::atomic::{AtomicBool, Ordering};

use esker_store::CacheKey;

use crate::budget::Budget;

/// Maximum plain bytes from bundles that are unread.
///
/// It is more than the largest of the packages that programs load at once, and never more than half of the cache.
const PUBLISHED_MAX: u64 = 2 << 30;

/// The budgets of one mount, by where a candidate comes from.
#[derive(Default)]
pub struct Budgets {
    /// Budget of low-confidence candidates.
    pub(crate) likely: Budget,
    /// Budget of objects from bundles, which is larger.
    pub(crate) published: Budget,
    /// Budget of objects from sequences.
    pub(crate) learned: Budget,
    /// True if a candidate waits for a budget.
    pub(crate) is_starved: AtomicBool,
}

/// Effect of a read on the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// True if the object was prefetched.
    pub was_prefetched: bool,
    /// True if it was a low-confidence candidate.
    pub was_likely: bool,
}

impl Budgets {
    /// Returns the budgets for a cache of this size in bytes.
    pub fn new(quota: u64) -> Self {
        Self { published: Budget::bounded(PUBLISHED_MAX.min(quota / 2)), ..Self::default() }
    }

    /// Records a read of a cached object.
    pub fn read(&self, key: &CacheKey) -> Settled {
        let was_likely = self.likely.read(key);
        let was_prefetched = self.published.read(key) | self.learned.read(key) | was_likely;
        Settled { was_prefetched, was_likely }
    }

    /// Records a cache miss of an object of this size; returns true if the object was being prefetched.
    pub fn missed(&self, key: &CacheKey, bytes: u64) -> bool {
        self.likely.missed(key, bytes) | self.published.missed(key, bytes) | self.learned.missed(key, bytes)
    }

    /// Returns true, once, if a candidate waits for a budget.
    pub fn take_starved(&self) -> bool {
        self.is_starved.swap(false, Ordering::Relaxed)
    }

    /// Removes an object that was not fetched.
    pub(crate) fn forget(&self, key: &CacheKey) {
        for budget in [&self.likely, &self.published, &self.learned] {
            budget.forget(key);
        }
    }
}
