//! Clients that wait for a slot, and the eviction of idle connections.
//!
//! One idle connection is notified for each client, not all: a full server has thousands, and new clients all the
//! time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Clients that wait because all connections or descriptors are in use.
#[derive(Debug, Default)]
pub(crate) struct AdmissionQueue {
    /// True while accepting fails; connections close after their current response.
    waits: AtomicBool,
    /// Clients with a request that wait for a slot.
    waiting: AtomicUsize,
    wanted: Notify,
}

/// A waiting client.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a AdmissionQueue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AdmissionQueue {
    /// Records that accepting failed, and evicts the longest idle connection.
    pub(crate) fn begin(&self) {
        self.waits.store(true, Ordering::Relaxed);
        self.evict_one();
    }

    /// Waits for a slot until the returned guard is dropped.
    pub(crate) fn join(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Evicts one more idle connection.
    pub(crate) fn evict_one(&self) {
        self.wanted.notify_one();
    }

    /// Records that accepting works again.
    pub(crate) fn end(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) || self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until the calling idle connection is evicted.
    pub(crate) async fn evicted_while_idle(&self) {
        loop {
            self.wanted.notified().await;
            // The waiting client may have found a slot elsewhere.
            if self.waits() {
                return;
            }
        }
    }
}
