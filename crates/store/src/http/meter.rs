//! The low-speed limit, and what counts as progress.
//!
//! A transfer has to bring some bytes a second. Where a slow link is shared by many transfers none may bring that much;
//! so it is enough, too, if all transfers from the server together do, and this one has a fair part of it.

use std::time::Duration;

use tokio::time::Instant;

/// A transfer has a fair part if it brings at least one in so many of what an equal share would be.
const FAIR_PART: u64 = 4;
/// Windows in which a transfer may be too slow while the server sends others.
const SLOW_WINDOWS: u32 = 3;
/// The least time for which bytes are counted: a single one that comes at once is no progress.
const COUNTED: Duration = Duration::from_secs(1);

/// What comes from a server as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Bytes of bodies that came from it so far.
    pub(super) bytes: u64,
    /// Requests under way.
    pub(super) active: u64,
}

/// Watches that a transfer brings enough bytes in each window of time.
pub(super) struct Meter {
    low_speed: u64,
    window: Duration,
    /// The window that is going on, and the time since the last progress.
    now: Count,
    unmarked: Count,
    slow: u32,
}

/// Bytes since a moment.
struct Count {
    since: Instant,
    bytes: u64,
    /// What had come from the server then.
    whole: u64,
}

impl Count {
    fn start(whole: Whole) -> Self {
        Self { since: Instant::now(), bytes: 0, whole: whole.bytes }
    }

    fn of_whole(&self, whole: Whole) -> u64 {
        whole.bytes.saturating_sub(self.whole)
    }

    /// Whether this is a fair part of so many bytes a second.
    fn is_fair(&self, speed: u64, whole: Whole) -> bool {
        let wanted = (speed as f64 * self.since.elapsed().max(COUNTED).as_secs_f64()) as u64;
        let of_whole = self.of_whole(whole);
        let part = self.bytes.saturating_mul(whole.active.max(1)).saturating_mul(FAIR_PART);
        self.bytes >= wanted || (self.bytes > 0 && of_whole >= wanted && part >= of_whole)
    }
}

impl Meter {
    pub(super) fn start(low_speed: u64, window: Duration, whole: Whole) -> Self {
        Self { low_speed, window, now: Count::start(whole), unmarked: Count::start(whole), slow: 0 }
    }

    /// Counts bytes that came; tells whether they are progress.
    pub(super) fn add(&mut self, bytes: u64, whole: Whole) -> bool {
        self.now.bytes += bytes;
        self.unmarked.bytes += bytes;
        let is_progress = bytes > 0 && self.unmarked.is_fair(self.low_speed, whole);
        if is_progress {
            self.unmarked = Count::start(whole);
        }
        is_progress
    }

    /// When the window ends.
    pub(super) fn deadline(&self) -> Instant {
        self.now.since + self.window
    }

    /// Begins the next window if this one is over; false if too few bytes came in it and in those before. If another way
    /// is left to try (`replaceable`), nothing is allowed for what the server sends others.
    pub(super) fn fast_enough(&mut self, whole: Whole, replaceable: bool) -> bool {
        if Instant::now() < self.deadline() {
            return true;
        }
        let fewest = (self.low_speed as f64 * self.window.as_secs_f64()) as u64;
        let enough = self.now.bytes >= fewest || (!replaceable && self.now.is_fair(self.low_speed, whole));
        let sends_others = !replaceable && self.now.of_whole(whole) >= fewest.max(1);
        self.slow = if enough { 0 } else { self.slow + 1 };
        self.restart(whole);
        enough || (sends_others && self.slow < SLOW_WINDOWS)
    }

    /// Begins a new window, after a pause that was our own.
    pub(super) fn restart(&mut self, whole: Whole) {
        self.now = Count::start(whole);
    }
}

/// Whether a transfer that began then and brought so many bytes is as fast as can be expected of its server.
pub(super) fn is_fair_at(speed: u64, (since, bytes, before): (Instant, u64, u64), whole: Whole) -> bool {
    Count { since, bytes, whole: before }.is_fair(speed, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn whole(bytes: u64, active: u64) -> Whole {
        Whole { bytes, active }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_no_progress_and_is_given_up_after_one_window() {
        let mut meter = Meter::start(1024, WINDOW, whole(0, 1));
        for second in 1..=10 {
            assert!(!meter.add(1, whole(second, 1)), "a byte a second");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!meter.fast_enough(whole(10, 1), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_beside_good_transfers_is_no_progress_and_is_given_up_after_three_windows() {
        let mut meter = Meter::start(1024, WINDOW, whole(0, 2));
        let mut all = 0;
        for window in 1..=SLOW_WINDOWS {
            tokio::time::advance(WINDOW).await;
            all += 1 << 20;
            assert!(!meter.add(1, whole(all, 2)), "a byte");
            assert_eq!(meter.fast_enough(whole(all, 2), false), window < SLOW_WINDOWS, "{window}");
        }
        let mut meter = Meter::start(1024, WINDOW, whole(0, 2));
        tokio::time::advance(WINDOW).await;
        assert!(!meter.fast_enough(whole(1 << 20, 2), true), "another way is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fair_part_of_a_slow_link_is_progress() {
        // 8 KiB a second for 64 transfers.
        let mut meter = Meter::start(1024, WINDOW, whole(0, 64));
        let mut all = 0;
        for second in 1..=60 {
            tokio::time::advance(Duration::from_secs(1)).await;
            all += 8 << 10;
            assert!(meter.add(128, whole(all, 64)), "after {second} seconds");
            assert!(meter.fast_enough(whole(all, 64), false), "after {second} seconds");
        }
    }
}
