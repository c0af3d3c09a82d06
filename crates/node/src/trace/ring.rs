//! Bounded queue between the workers of a mount and the thread that writes to a client.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Maximum number of queued items.
const ITEMS_MAX: usize = 16 * 1024;

/// Queue that drops and counts what it has no room for.
pub(super) struct Ring<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limit: usize,
}

struct State<T> {
    items: VecDeque<T>,
    /// Number of announced items that have not come.
    expected: usize,
    closed: bool,
    dropped: u64,
}

impl<T> Ring<T> {
    pub(super) fn new() -> Self {
        Self::with_limit(ITEMS_MAX)
    }

    fn with_limit(limit: usize) -> Self {
        let state = State { items: VecDeque::new(), expected: 0, closed: false, dropped: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    /// Announces an item: [`Ring::close`] waits for it.
    pub(super) fn expect(&self) {
        self.state.lock().expected += 1;
    }

    /// Ends the wait for an announced item, and adds it if there is one.
    pub(super) fn came(&self, item: Option<T>) {
        let mut state = self.state.lock();
        state.expected = state.expected.saturating_sub(1);
        let is_last = state.expected == 0;
        let wakes = match item {
            Some(_) if state.closed => false,
            Some(_) if state.items.len() >= self.limit => {
                state.dropped += 1;
                false
            }
            Some(item) => {
                state.items.push_back(item);
                state.items.len() == 1
            }
            None => false,
        };
        drop(state);
        if wakes || is_last {
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
        let mut state = self.state.lock();
        while state.expected > 0 && !state.closed {
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
