//! The low-speed limit.

use std::time::Duration;

use tokio::time::Instant;

/// Watches that a transfer brings enough bytes in each window of time.
pub(super) struct Meter {
    fewest: u64,
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl Meter {
    pub(super) fn start(low_speed: u64, window: Duration) -> Self {
        let fewest = (low_speed as f64 * window.as_secs_f64()) as u64;
        Self { fewest, window, since: Instant::now(), bytes: 0 }
    }

    /// Counts bytes that came.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// When the window ends.
    pub(super) fn deadline(&self) -> Instant {
        self.since + self.window
    }

    /// Begins the next window if this one is over; false if too few bytes came in it.
    pub(super) fn fast_enough(&mut self) -> bool {
        if Instant::now() < self.deadline() {
            return true;
        }
        let enough = self.bytes >= self.fewest;
        self.restart();
        enough
    }

    /// Begins a new window, after a pause that was our own.
    pub(super) fn restart(&mut self) {
        self.since = Instant::now();
        self.bytes = 0;
    }
}
