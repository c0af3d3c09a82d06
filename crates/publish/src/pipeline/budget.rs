//! A bounded amount of memory that threads share.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Limit for the bytes in the pipeline.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    free: Mutex<u64>,
    returned: Condvar,
}

/// A reservation of bytes, which is released on drop.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Arc::new(State { free: Mutex::new(bytes), returned: Condvar::new() }))
    }

    /// Waits until the budget has this many free bytes and reserves them.
    ///
    /// A caller must hold no other share, and must not ask for more than the whole budget.
    pub(super) fn take(&self, bytes: u64) -> Share {
        let mut free = self.0.free.lock();
        while *free < bytes {
            self.0.returned.wait(&mut free);
        }
        *free -= bytes;
        Share { budget: self.clone(), bytes }
    }
}

impl Share {
    /// Releases all but this many bytes.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        *self.budget.0.free.lock() += surplus;
        self.budget.0.returned.notify_all();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}
