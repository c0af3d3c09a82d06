//! Work on many items by several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::RepositoryError;

/// Calls `work` for every item and returns the results in order; the first error ends it.
pub fn map<T: Sync, R: Send>(
    threads: usize,
    stop: &AtomicBool,
    items: &[T],
    work: impl Fn(&T) -> Result<R, RepositoryError> + Sync,
) -> Result<Vec<R>, RepositoryError> {
    let failed = AtomicBool::new(false);
    let unless_failed = |item: &T| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let result = match stop.load(Ordering::Relaxed) {
            true => Err(RepositoryError::Interrupted),
            false => work(item),
        };
        if result.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        Some(result)
    };
    each(threads, items, unless_failed).into_iter().flatten().collect()
}

/// Calls `work` for every item and returns the results in order.
pub fn each<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            results.lock().push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()).max(1) {
            scope.spawn(run);
        }
        run();
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        let stop = AtomicBool::new(false);
        assert_eq!(map(4, &stop, &items, |item| Ok(item * 2)).unwrap()[99], 198);
        assert!(map(4, &stop, &items, |_| Err::<(), _>(RepositoryError::Moving)).is_err());
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(map(4, &stop, &items, |_| Ok(())), Err(RepositoryError::Interrupted)));
        assert!(map(4, &AtomicBool::new(false), &[] as &[u8], |_| Ok(())).unwrap().is_empty());
    }
}
