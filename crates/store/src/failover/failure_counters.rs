//! Counters of fail-overs.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::unix_now;
use crate::error::StoreError;

/// Failure counters of one route.
#[derive(Default)]
pub(super) struct FailureCounters {
    pub(super) proxies: AtomicU64,
    pub(super) servers: AtomicU64,
    pub(super) back: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) last: Mutex<Option<(u64, String)>>,
}

impl FailureCounters {
    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn error(&self, error: &StoreError) {
        *self.last.lock() = Some((unix_now(), error.full_text()));
    }
}
