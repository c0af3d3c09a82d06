//! Waits for conditions without a notification: polls with pauses that grow.
//!
//! Where there is something to wait for (a channel, a condition variable, the end of a process), use that.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Intervals of polling.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// First pause; each pause is twice as long as the previous one.
    first: Duration,
    /// Maximum pause.
    longest: Duration,
}

impl Pace {
    /// For a cheap check: a value in memory, a file.
    pub const LOOK: Pace = Pace { first: Duration::from_micros(100), longest: Duration::from_millis(20) };
    /// Interval for a check that starts a process.
    pub const PROCESS: Pace = Pace { first: Duration::from_millis(10), longest: Duration::from_millis(500) };

    /// Waits until `look` returns a value; returns the value, or none at the time limit.
    pub fn until_some<T>(self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let (deadline, mut pause) = (Instant::now() + limit, self.first);
        loop {
            // Checked after the deadline too: this thread may have been the late one.
            let is_over = Instant::now() >= deadline;
            let found = look();
            if found.is_some() || is_over {
                return found;
            }
            sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(self.longest);
        }
    }

    /// Waits until a condition holds; returns false at the time limit.
    pub fn until(self, limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
        self.until_some(limit, || holds().then_some(())).is_some()
    }
}

/// Waits until a cheap check returns a value; returns the value, or none at the time limit.
pub fn until_some<T>(limit: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    Pace::LOOK.until_some(limit, look)
}

/// Waits until a cheap condition holds; returns false at the time limit.
pub fn until(limit: Duration, holds: impl FnMut() -> bool) -> bool {
    Pace::LOOK.until(limit, holds)
}

/// Lets time pass until the moment of a fault. Only for a fault at a random moment, which nothing announces.
pub fn for_moment_of_fault(delay: Duration) {
    sleep(delay);
}
