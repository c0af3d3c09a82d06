//! Cancellation of prefetches.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Cancellation token of a group of prefetches, such as the files that follow a trigger. Cancelling it drops prefetches
/// that are queued for this token alone and completes them with [`Cause::Cancelled`](crate::Cause::Cancelled); requests
/// already sent go on. Cheap to clone.
#[derive(Clone)]
pub struct CancelToken(Arc<Inner>);

struct Inner {
    number: u64,
    over: AtomicBool,
    on_cancel: Mutex<Vec<OnEnd>>,
}

type OnEnd = Box<dyn FnOnce() + Send>;

impl CancelToken {
    /// Creates a token.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { number, over: AtomicBool::new(false), on_cancel: Mutex::default() }))
    }

    /// Returns the token's number, unique in this process.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Cancels the token, as does dropping its last clone.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Calls `tell` when the token is cancelled; at once if it is.
    pub fn on_cancel(&self, tell: impl FnOnce() + Send + 'static) {
        let mut on_cancel = self.0.on_cancel.lock();
        if self.is_cancelled() {
            drop(on_cancel);
            tell();
        } else {
            on_cancel.push(Box::new(tell));
        }
    }
}

impl Inner {
    fn cancel(&self) {
        let told = {
            let mut on_cancel = self.on_cancel.lock();
            self.over.store(true, Ordering::Release);
            std::mem::take(&mut *on_cancel)
        };
        for tell in told {
            tell();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_cancelled() { "over" } else { "open" };
        write!(f, "CancelToken({}, {state})", self.0.number)
    }
}
