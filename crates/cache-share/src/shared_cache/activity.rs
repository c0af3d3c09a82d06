//! Decides when a request causes a check of the broker, the disk and the folder.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time of the last check. Requests cause checks, so a cache without requests wakes no thread.
pub(super) struct Activity {
    began: Instant,
    pause: u64,
    /// Milliseconds after `began` before which no check is due.
    next: AtomicU64,
}

impl Activity {
    pub(super) fn new(pause: Duration) -> Self {
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        Self { began: Instant::now(), pause, next: AtomicU64::new(pause) }
    }

    /// Returns true for the first request after the pause.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_after(self.began.elapsed())
    }

    fn is_due_after(&self, elapsed: Duration) -> bool {
        let now = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let later = now.saturating_add(self.pause);
        // The winner of several threads does the check.
        now >= next && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_due_once_after_each_pause() {
        let activity = Activity::new(Duration::from_secs(5));
        let due = |seconds| activity.is_due_after(Duration::from_secs(seconds));
        assert!(!due(0) && !due(4), "a new cache was checked when it was opened");
        assert!(due(5) && !due(5) && !due(9));
        assert!(due(3600) && !due(3604) && due(3605));
    }
}
