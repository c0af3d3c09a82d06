//! Counters and log lines of fail-overs.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::unix_now;
use crate::error::StoreError;
use crate::log::Log;

/// Failure counters of one route.
pub(super) struct FailoverLog {
    pub(super) log: Log,
    pub(super) proxies: AtomicU64,
    pub(super) servers: AtomicU64,
    pub(super) back: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) last: Mutex<Option<(u64, String)>>,
}

impl FailoverLog {
    pub(super) fn new(log: Log) -> Self {
        let zero = || AtomicU64::new(0);
        Self { log, proxies: zero(), servers: zero(), back: zero(), retries: zero(), last: Mutex::default() }
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn error(&self, error: &StoreError) {
        *self.last.lock() = Some((unix_now(), error.full_text()));
    }

    pub(super) fn say(&self, text: &str) {
        self.log.say(text);
    }
}
