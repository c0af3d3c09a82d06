//! Bounds the number of repositories that are copied at once.

use std::sync::{Condvar, Mutex, PoisonError};

/// A number of places that threads take in turn.
pub(super) struct Turns {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Turns {
    pub(super) fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), freed: Condvar::new() }
    }

    /// Does `work` as soon as a place is free.
    pub(super) fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        let done = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
        done
    }
}
