//! A bounded amount of memory that the stages of a build share.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Bytes of content that may be between its reader and the image.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    free: Mutex<Option<u64>>,
    returned: Condvar,
}

/// Bytes that were taken; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Arc::new(State { free: Mutex::new(Some(bytes)), returned: Condvar::new() }))
    }

    /// Waits until this many bytes are free, which may never be more than there are in all. None once the budget
    /// is closed. Only the feeder calls it, in the order of the files: so whoever has a share is before whoever
    /// waits for one, and gets through.
    pub(super) fn take(&self, bytes: u64) -> Option<Share> {
        let mut free = self.0.free.lock();
        loop {
            match *free {
                None => return None,
                Some(left) if left >= bytes => {
                    *free = Some(left - bytes);
                    return Some(Share { budget: self.clone(), bytes });
                }
                Some(_) => self.0.returned.wait(&mut free),
            }
        }
    }

    /// Lets nobody wait any longer.
    pub(super) fn close(&self) {
        *self.0.free.lock() = None;
        self.0.returned.notify_all();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(free) = &mut *self.budget.0.free.lock() {
            *free += self.bytes;
        }
        self.budget.0.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_back() {
        let budget = Budget::new(10);
        let share = budget.take(7).expect("open");
        let waiting = std::thread::spawn({
            let budget = budget.clone();
            move || budget.take(4).is_some()
        });
        drop(share);
        assert!(waiting.join().expect("a share"));
        assert_eq!(*budget.0.free.lock(), Some(10));
    }

    #[test]
    fn nobody_waits_for_a_closed_budget() {
        let budget = Budget::new(1);
        let _all = budget.take(1).expect("open");
        let waiting = std::thread::spawn({
            let budget = budget.clone();
            move || budget.take(1).is_none()
        });
        budget.close();
        assert!(waiting.join().expect("an answer"));
    }
}
