//! Bounded queue between the workers of a mount and the thread that writes to a client.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Maximum number of queued items.
const ITEMS_MAX: usize = 16 * 1024;

/// Queue that drops and counts what it has no room for.
pub(super) struct Ring<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Number of announced items that have not come. Outside the lock: most requests of `esker top` bring none.
    expected: AtomicUsize,
    /// True if the last of them has to be reported.
    closing: AtomicBool,
    limit: usize,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    dropped: u64,
}

impl<T> Ring<T> {
    pub(super) fn new() -> Self {
        Self::with_limit(ITEMS_MAX)
    }

    fn with_limit(limit: usize) -> Self {
        let state = State { items: VecDeque::new(), closed: false, dropped: 0 };
        let (expected, closing) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { state: Mutex::new(state), changed: Condvar::new(), expected, closing, limit }
    }

    /// Announces an item: [`Ring::close`] waits for it.
    pub(super) fn expect(&self) {
        self.expected.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the wait for an announced item, and adds it if there is one.
    pub(super) fn came(&self, item: Option<T>) {
        if let Some(item) = item {
            self.add(item);
        }
        let is_last = self.expected.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.closing.load(Ordering::SeqCst) {
            // Under the lock, so that it is not missed between the check of the number and the wait.
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }

    fn add(&self, item: T) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if state.items.len() >= self.limit {
            state.dropped += 1;
            return;
        }
        state.items.push_back(item);
        let is_first = state.items.len() == 1;
        drop(state);
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Returns all queued items; waits for one. `None` once it is closed and empty.
    pub(super) fn take(&self) -> Option<VecDeque<T>> {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
        Some(std::mem::take(&mut state.items))
    }

    /// Waits for announced items, at most `patience`, and closes the queue.
    pub(super) fn close(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        self.closing.store(true, Ordering::SeqCst);
        let mut state = self.state.lock();
        while self.expected.load(Ordering::SeqCst) > 0 && !state.closed {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.closed = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the number of dropped items.
    pub(super) fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn add(ring: &Ring<u32>, item: u32) {
        ring.expect();
        ring.came(Some(item));
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let ring = Ring::with_limit(2);
        (0..5).for_each(|item| add(&ring, item));
        assert_eq!(ring.take().expect("items"), [0, 1]);
        add(&ring, 9);
        assert_eq!(ring.take().expect("items"), [9]);
        assert_eq!(ring.dropped(), 3);
    }

    #[test]
    fn a_closed_ring_delivers_announced_items() {
        let ring = Arc::new(Ring::with_limit(8));
        ring.expect();
        ring.expect();
        let closing = ring.clone();
        let closer = std::thread::spawn(move || closing.close(Duration::from_secs(30)));
        ring.came(Some(7));
        ring.came(None);
        closer.join().expect("closed");
        add(&ring, 8);
        assert_eq!(ring.take().expect("items"), [7], "a later item is not queued");
        assert_eq!(ring.take(), None);
    }

    #[test]
    fn an_announced_item_is_awaited_only_for_a_time() {
        let ring = Ring::<u32>::with_limit(8);
        ring.expect();
        ring.close(Duration::ZERO);
        assert_eq!(ring.take(), None);
    }
}
