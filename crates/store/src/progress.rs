//! Progress of a request.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use esker_threads::waits::{WaitCause, WaitClock, WaitTimes};
use parking_lot::Mutex;

/// Time of the last progress of a request, so that its deadline can measure silence; and its waits, by cause.
///
/// A request makes progress when bytes of its object arrive, and, while it is queued, when bytes of any request before
/// it in that queue arrive: it follows the progress of the queue. Clones share one progress.
#[derive(Clone, Default)]
pub struct Progress(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Nanoseconds from [`START`] to the last mark; 0 if there was none.
    last: AtomicU64,
    /// Followed requests, and their waits before that.
    followed: Mutex<Vec<(Progress, WaitTimes)>>,
    /// Waits of the request itself, and of those that it followed before.
    waits: WaitClock,
    origin: OnceLock<ObjectOrigin>,
}

/// Place from which an object came that was not in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOrigin {
    /// A server, with its URL and perhaps the proxy.
    Server(Arc<str>),
    /// A lower tier, with its path.
    Lower(Arc<str>),
    /// Another process that fetches objects for this one, with the path of its socket or cache.
    Process(Arc<str>),
}

/// Reference time for marks.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Progress {
    /// Records that bytes arrived now.
    pub fn mark(&self) {
        // Not 0, which stands for no mark.
        let now = u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        self.0.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns when bytes last arrived for this or any followed progress.
    pub fn last(&self) -> Option<Instant> {
        let nanos = self.nanos();
        (nanos > 0).then(|| *START + Duration::from_nanos(nanos))
    }

    fn nanos(&self) -> u64 {
        let own = self.0.last.load(Ordering::Relaxed);
        let followed = self.0.followed.lock();
        followed.iter().map(|(progress, _)| progress.nanos()).fold(own, u64::max)
    }

    /// Begins a phase of the request's wait, or ends the last one; returns the cause of the phase before.
    pub(crate) fn enter(&self, cause: Option<WaitCause>) -> Option<WaitCause> {
        self.0.waits.enter(cause)
    }

    /// Adds waits that another process measured.
    pub fn add_waits(&self, times: WaitTimes) {
        self.0.waits.add(times);
    }

    /// Returns the waits of this request, and those of the requests that it follows since it does.
    pub fn waits(&self) -> WaitTimes {
        let own = self.0.waits.times();
        let followed = self.0.followed.lock();
        followed
            .iter()
            .map(|(progress, before)| progress.waits().since(*before))
            .fold(own, |all, one| all + one)
    }

    /// Records from where the object came; the first record counts.
    pub fn came_from(&self, origin: ObjectOrigin) {
        let _ = self.0.origin.set(origin);
    }

    /// Returns from where the object, or one of a followed request, came; `None` for cached ones.
    pub fn origin(&self) -> Option<ObjectOrigin> {
        let own = self.0.origin.get().cloned();
        own.or_else(|| self.0.followed.lock().iter().find_map(|(progress, _)| progress.origin()))
    }

    /// Includes the progress of another request in this one. Must not form a circle.
    pub fn follow(&self, other: &Self) {
        let before = other.waits();
        let mut followed = self.0.followed.lock();
        if !followed.iter().any(|(known, _)| Arc::ptr_eq(&known.0, &other.0)) {
            followed.push((other.clone(), before));
        }
    }

    /// Ends [`Progress::follow`]; bytes that arrived until now still count.
    pub fn unfollow(&self, other: &Self) {
        let (last, waits) = (other.nanos(), other.waits());
        let mut followed = self.0.followed.lock();
        let at = followed.iter().position(|(known, _)| Arc::ptr_eq(&known.0, &other.0));
        if let Some((_, before)) = at.map(|at| followed.swap_remove(at)) {
            self.0.last.fetch_max(last, Ordering::Relaxed);
            self.0.waits.add(waits.since(before));
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.last().map(|last| last.elapsed())).finish()
    }
}

/// User and progress of a request.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// User id; none for requests of the node itself.
    pub user: Option<u32>,
    /// Progress of the bytes that the requester waits for.
    pub progress: Progress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_progress_of_its_queue_only_while_queued() {
        let (request, queue) = (Progress::default(), Progress::default());
        queue.mark();
        assert_eq!(request.last(), None);
        request.follow(&queue);
        let first = request.last().expect("the queue's");
        queue.mark();
        let second = request.last().expect("the queue's");
        assert!(second >= first);
        request.unfollow(&queue);
        let left = request.last();
        assert_eq!(left, Some(second), "what came until then counts");
        queue.mark();
        assert_eq!(request.last(), left);
        request.mark();
        assert!(request.last() > left);
    }

    #[test]
    fn a_request_has_the_waits_of_others_only_while_it_follows_them() {
        let (request, flight) = (Progress::default(), Progress::default());
        let wait = |millis| WaitTimes::of(WaitCause::Network, Duration::from_millis(millis));
        flight.add_waits(wait(5));
        request.follow(&flight);
        assert_eq!(request.waits(), WaitTimes::default());
        flight.add_waits(wait(7));
        assert_eq!(request.waits(), wait(7));
        request.unfollow(&flight);
        flight.add_waits(wait(9));
        assert_eq!(request.waits(), wait(7));
    }
}
