//! Limits the rate at which objects are read or fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Keeps all threads together below a rate of bytes.
pub struct Pace {
    rate: Option<u64>,
    /// Set to stop early.
    stop: Arc<AtomicBool>,
    /// Time at which what was passed is within the rate.
    due: Mutex<Instant>,
}

impl Pace {
    /// Makes a pace of so many bytes a second; none and 0 are no limit.
    pub fn new(rate: Option<u64>, stop: Arc<AtomicBool>) -> Self {
        Self { rate: rate.filter(|rate| *rate > 0), stop, due: Mutex::new(Instant::now()) }
    }

    /// Returns the bytes that are passed in a second; none without a limit.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Waits until this many more bytes are within the rate.
    pub(crate) fn wait(&self, bytes: u64) {
        let Some(wait) = self.pass(bytes, Instant::now()) else { return };
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.load(Ordering::Relaxed) {
                return;
            }
            // The rate limit: this thread pauses until the bytes that all threads passed are due.
            std::thread::sleep(left.min(STOP_EVERY));
        }
    }

    /// Counts bytes, and returns how long they have to wait; time without any is no credit for later ones.
    fn pass(&self, bytes: u64, now: Instant) -> Option<Duration> {
        let mut due = self.due.lock();
        *due = (*due).max(now) + Duration::from_secs_f64(bytes as f64 / self.rate? as f64);
        Some(due.saturating_duration_since(now))
    }
}

/// Interval at which a waiting thread looks whether it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_the_rate_and_idle_time_is_no_credit() {
        let pace = Pace::new(Some(1000), Arc::default());
        let begun = Instant::now() + Duration::from_secs(1);
        assert_eq!(pace.pass(500, begun), Some(Duration::from_millis(500)));
        assert_eq!(pace.pass(500, begun), Some(Duration::from_secs(1)));
        let later = begun + Duration::from_secs(3600);
        assert_eq!(pace.pass(2000, later), Some(Duration::from_secs(2)));
        assert_eq!(Pace::new(None, Arc::default()).pass(1 << 40, later), None);
        // A signal ends the wait.
        Pace::new(Some(1), Arc::new(AtomicBool::new(true))).wait(1 << 40);
    }
}
