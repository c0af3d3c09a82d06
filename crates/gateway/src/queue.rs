//! Publishers that wait for a directory, in the order in which they came.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::lease::Millis;
use crate::lease_path::LeasePath;

/// Time for which the place of a publisher is kept between two of its requests, in milliseconds.
const KEPT: i64 = 10_000;
/// Most publishers that wait at once.
const WAITING_MAX: usize = 1000;

/// Publishers that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    all: Mutex<(u64, BTreeMap<u64, Waiting>)>,
}

/// A publisher that waits.
#[derive(Debug)]
struct Waiting {
    /// Name of the key, and host of the publisher.
    publisher: (String, String),
    path: LeasePath,
    /// Time of its last sign of life.
    seen: Millis,
}

impl Queue {
    /// Joins the queue, or keeps the place in it; returns true if the publisher is the next one.
    ///
    /// False if one that came before waits for an overlapping directory, or the queue is full.
    pub(crate) fn is_next(&self, publisher: (&str, &str), path: &LeasePath, now: Millis) -> bool {
        let mut all = self.all.lock();
        let (last, waiting) = &mut *all;
        waiting.retain(|_, other| other.seen.after(KEPT) > now);
        let is_this =
            |other: &Waiting| (&*other.publisher.0, &*other.publisher.1) == publisher && other.path == *path;
        let number = waiting.iter().find(|(_, other)| is_this(other)).map(|(number, _)| *number);
        let number = match number {
            Some(number) => number,
            None if waiting.len() >= WAITING_MAX => return false,
            None => {
                *last += 1;
                *last
            }
        };
        let publisher = (publisher.0.to_owned(), publisher.1.to_owned());
        waiting.insert(number, Waiting { publisher, path: path.clone(), seen: now });
        !waiting.range(..number).any(|(_, other)| other.path.overlaps(path))
    }

    /// Leaves the queue.
    pub(crate) fn leave(&self, publisher: (&str, &str), path: &LeasePath) {
        let is_this =
            |other: &Waiting| (&*other.publisher.0, &*other.publisher.1) == publisher && other.path == *path;
        self.all.lock().1.retain(|_, other| !is_this(other));
    }

    /// Returns the number of publishers that wait.
    pub(crate) fn len(&self) -> usize {
        self.all.lock().1.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LeasePath {
        LeasePath::parse(text).unwrap()
    }

    #[test]
    fn publishers_of_one_directory_are_served_in_their_order() {
        let queue = Queue::default();
        let ask = |key: &'static str, at: &str, now: i64| queue.is_next((key, "h"), &path(at), Millis(now));
        assert!(ask("one", "r.test/a", 0));
        assert!(!ask("two", "r.test/a/b", 1), "the first one waits above");
        assert!(ask("three", "r.test/c", 2), "no other publisher waits for this one");
        assert!(!ask("four", "r.test/", 3));
        queue.leave(("one", "h"), &path("r.test/a"));
        assert!(ask("two", "r.test/a/b", 4) && !ask("four", "r.test/", 5));
        // A publisher that doesn't ask again loses its place.
        assert!(ask("four", "r.test/", 5 + KEPT));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = Queue::default();
        for number in 0..WAITING_MAX {
            assert!(queue.is_next(("k", "h"), &path(&format!("r.test/{number}")), Millis(0)));
        }
        assert!(!queue.is_next(("k", "h"), &path("r.test/x"), Millis(0)));
        assert_eq!(queue.len(), WAITING_MAX);
    }
}
