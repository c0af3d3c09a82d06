//! Memory limit that the stages of a build share.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Limit on the bytes of content between the readers and the image.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    free: Mutex<Option<u64>>,
    returned: Condvar,
}

/// Reserved bytes, released when dropped.
#[derive(Debug)]
pub(super) struct MemoryShare {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Arc::new(State { free: Mutex::new(Some(bytes)), returned: Condvar::new() }))
    }

    /// Waits until `bytes` are free and reserves them; none once the budget is closed.
    ///
    /// `bytes` may never be more than the budget has in total. Only the feeder calls this, in the order of
    /// the files: so a file with a reservation always precedes the file that waits for one, and can finish.
    pub(super) fn take(&self, bytes: u64) -> Option<MemoryShare> {
        let mut free = self.0.free.lock();
        loop {
            match *free {
                None => return None,
                Some(left) if left >= bytes => {
                    *free = Some(left - bytes);
                    return Some(MemoryShare { budget: self.clone(), bytes });
                }
                Some(_) => self.0.returned.wait(&mut free),
            }
        }
    }

    /// Wakes the waiting thread, and lets no thread wait from now on.
    pub(super) fn close(&self) {
        *self.0.free.lock() = None;
        self.0.returned.notify_all();
    }
}

impl Drop for MemoryShare {
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
    fn dropped_shares_are_released() {
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
    fn taking_from_a_closed_budget_does_not_block() {
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
