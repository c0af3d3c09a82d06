//! The low-speed limit, and the rule for progress.
//!
//! A transfer has to deliver some bytes a second. Where many transfers share a slow link none may deliver that much;
//! then it is enough if all transfers from the server together do, and this one has a fair part of it.

use std::time::Duration;

use tokio::time::Instant;

/// Divisor of an equal share of the rate: a transfer that delivers at least this part has a fair rate.
const FAIR_PART: u64 = 4;
/// Number of periods in which a transfer may be too slow while the server sends others.
const SLOW_WINDOWS: u32 = 3;
/// Minimum time for which bytes are counted: a single one that comes at once is no progress.
const COUNTED: Duration = Duration::from_secs(1);

/// Bytes and requests of a server in total.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTotals {
    /// Received bytes of bodies.
    pub(super) bytes: u64,
    /// Number of requests in flight.
    pub(super) active: u64,
}

/// Checks that a transfer delivers enough bytes in each period.
pub(super) struct LowSpeedMeter {
    low_speed: u64,
    window: Duration,
    /// Current period, and the time since the last progress.
    now: Count,
    unmarked: Count,
    slow: u32,
}

/// Bytes since a point in time.
struct Count {
    since: Instant,
    bytes: u64,
    /// Total bytes of the server at that moment.
    totals: u64,
}

impl Count {
    fn start(totals: ServerTotals) -> Self {
        Self { since: Instant::now(), bytes: 0, totals: totals.bytes }
    }

    fn of_totals(&self, totals: ServerTotals) -> u64 {
        totals.bytes.saturating_sub(self.totals)
    }

    /// Returns true if this is a fair part at `speed` bytes a second.
    fn is_fair(&self, speed: u64, totals: ServerTotals) -> bool {
        let wanted = (speed as f64 * self.since.elapsed().max(COUNTED).as_secs_f64()) as u64;
        let of_totals = self.of_totals(totals);
        let part = self.bytes.saturating_mul(totals.active.max(1)).saturating_mul(FAIR_PART);
        self.bytes >= wanted || (self.bytes > 0 && of_totals >= wanted && part >= of_totals)
    }
}

impl LowSpeedMeter {
    pub(super) fn start(low_speed: u64, window: Duration, totals: ServerTotals) -> Self {
        Self { low_speed, window, now: Count::start(totals), unmarked: Count::start(totals), slow: 0 }
    }

    /// Counts received bytes; returns true if they are progress.
    pub(super) fn add(&mut self, bytes: u64, totals: ServerTotals) -> bool {
        self.now.bytes += bytes;
        self.unmarked.bytes += bytes;
        let is_progress = bytes > 0 && self.unmarked.is_fair(self.low_speed, totals);
        if is_progress {
            self.unmarked = Count::start(totals);
        }
        is_progress
    }

    /// Returns the end of the window.
    pub(super) fn deadline(&self) -> Instant {
        self.now.since + self.window
    }

    /// Begins the next period if this one is over; returns false if the transfer is too slow. If another route
    /// is left to try (`replaceable`), bytes of other transfers don't count.
    pub(super) fn fast_enough(&mut self, totals: ServerTotals, replaceable: bool) -> bool {
        if Instant::now() < self.deadline() {
            return true;
        }
        let fewest = (self.low_speed as f64 * self.window.as_secs_f64()) as u64;
        let enough = self.now.bytes >= fewest || (!replaceable && self.now.is_fair(self.low_speed, totals));
        let sends_others = !replaceable && self.now.of_totals(totals) >= fewest.max(1);
        self.slow = if enough { 0 } else { self.slow + 1 };
        self.restart(totals);
        enough || (sends_others && self.slow < SLOW_WINDOWS)
    }

    /// Begins a new period, after a pause that this process caused.
    pub(super) fn restart(&mut self, totals: ServerTotals) {
        self.now = Count::start(totals);
    }
}

/// Returns true if a transfer that began at `since` with `bytes` so far is as fast as can be expected of its
/// server.
pub(super) fn is_fair_at(
    speed: u64,
    (since, bytes, before): (Instant, u64, u64),
    totals: ServerTotals,
) -> bool {
    Count { since, bytes, totals: before }.is_fair(speed, totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn totals(bytes: u64, active: u64) -> ServerTotals {
        ServerTotals { bytes, active }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_ends_after_one_window() {
        let mut meter = LowSpeedMeter::start(1024, WINDOW, totals(0, 1));
        for second in 1..=10 {
            assert!(!meter.add(1, totals(second, 1)), "a byte a second");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!meter.fast_enough(totals(10, 1), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_beside_good_transfers_ends_after_three_windows() {
        let mut meter = LowSpeedMeter::start(1024, WINDOW, totals(0, 2));
        let mut all = 0;
        for window in 1..=SLOW_WINDOWS {
            tokio::time::advance(WINDOW).await;
            all += 1 << 20;
            assert!(!meter.add(1, totals(all, 2)), "a byte");
            assert_eq!(meter.fast_enough(totals(all, 2), false), window < SLOW_WINDOWS, "{window}");
        }
        let mut meter = LowSpeedMeter::start(1024, WINDOW, totals(0, 2));
        tokio::time::advance(WINDOW).await;
        assert!(!meter.fast_enough(totals(1 << 20, 2), true), "another way is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fair_part_of_a_slow_link_is_progress() {
        // 8 KiB a second for 64 transfers.
        let mut meter = LowSpeedMeter::start(1024, WINDOW, totals(0, 64));
        let mut all = 0;
        for second in 1..=60 {
            tokio::time::advance(Duration::from_secs(1)).await;
            all += 8 << 10;
            assert!(meter.add(128, totals(all, 64)), "after {second} seconds");
            assert!(meter.fast_enough(totals(all, 64), false), "after {second} seconds");
        }
    }
}
