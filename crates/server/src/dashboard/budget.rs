//! Bound of the work of one request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time and bytes that a request may spend on reading.
#[derive(Debug)]
pub(crate) struct Budget {
    ends: Instant,
    bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(time: Duration, bytes: u64) -> Self {
        Self { ends: Instant::now() + time, bytes: AtomicU64::new(bytes) }
    }

    /// Takes bytes that were read off the budget.
    pub(crate) fn spend(&self, bytes: u64) {
        // Only the thread of one request spends, so no update is lost.
        let left = self.bytes.load(Ordering::Relaxed).saturating_sub(bytes);
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Returns true if nothing more is to be read.
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0 || Instant::now() >= self.ends
    }
}
