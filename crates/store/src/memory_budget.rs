//! A budget for bytes in memory between server and disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit of bytes in memory over all requests.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
}

impl MemoryBudget {
    /// Returns a budget of this many bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns an empty share, to be grown.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// Bytes of a [`MemoryBudget`], released on drop.
#[derive(Debug)]
pub struct Share {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Share {
    /// Takes more bytes; returns false if the budget is exhausted.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let limit = self.budget.limit;
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
