//! Accounts for objects that are served uncached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Account of bytes that are served uncached.
pub(crate) struct UncachedAccount {
    limit: u64,
    used: AtomicU64,
    pub(super) served: AtomicU64,
}

/// Bytes of an uncached object, released with its last handle.
pub(crate) struct UncachedShare {
    pub(super) account: Arc<UncachedAccount>,
    pub(super) bytes: u64,
}

impl UncachedAccount {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), served: AtomicU64::new(0) })
    }

    /// Returns the limit in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Reserves room for an object, unless the limit is reached.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<UncachedShare> {
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.limit)
        });
        taken.ok().map(|_| UncachedShare { account: self.clone(), bytes })
    }
}

impl UncachedShare {
    /// Reserves more room, unless the limit is reached.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let Some(mut more) = self.account.take(bytes) else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Releases bytes, at most those reserved; returns their number.
    pub(super) fn shrink(&mut self, bytes: u64) -> u64 {
        let less = bytes.min(self.bytes);
        self.bytes -= less;
        self.account.used.fetch_sub(less, Ordering::AcqRel);
        less
    }
}

impl Drop for UncachedShare {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
