//! Counters that many threads increment.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Cells of a counter. Threads are spread over them, so that counting doesn't contend for one cache line.
const CELLS: usize = 16;

#[repr(align(128))]
#[derive(Debug, Default)]
struct Cell(AtomicU64);

/// A counter that many threads increment.
#[derive(Debug, Default)]
pub struct Counter([Cell; CELLS]);

static NEXT_CELL: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CELL: usize = NEXT_CELL.fetch_add(1, Ordering::Relaxed) % CELLS;
}

impl Counter {
    /// Adds one.
    pub fn count(&self) {
        // A thread whose locals are gone still counts.
        let cell = CELL.try_with(|cell| *cell).unwrap_or(0);
        self.0[cell].0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sum of all cells.
    pub fn value(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_increment_one_counter() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| counter.count()));
            }
        });
        assert_eq!(counter.value(), 8000);
    }
}
