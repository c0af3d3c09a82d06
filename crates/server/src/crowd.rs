//! Clients that have no place yet, and who makes room for them.
//!
//! Word of it goes to one idle connection a client, not to all: a full server has thousands, and clients all the time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Whether somebody waits for a place because every connection or descriptor is taken.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Whoever is answered meanwhile goes.
    waits: AtomicBool,
    /// Clients that have asked and wait for a place.
    waiting: AtomicUsize,
    wanted: Notify,
}

/// A client that waits.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Crowd);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crowd {
    /// Somebody waits: of those who are idle, the one that is for longest is to go.
    pub(crate) fn begin(&self) {
        self.waits.store(true, Ordering::Relaxed);
        self.one_more();
    }

    /// Begins to wait for a place, until the answer is dropped.
    pub(crate) fn join(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// One more of those who are idle is to go.
    pub(crate) fn one_more(&self) {
        self.wanted.notify_one();
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) || self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until the caller, who is idle, has to go.
    pub(crate) async fn wants_my_place(&self) {
        loop {
            self.wanted.notified().await;
            // Whoever waited may have found a place elsewhere.
            if self.waits() {
                return;
            }
        }
    }
}
