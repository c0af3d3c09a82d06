//! Limits the number of requests in flight to one server, adaptively.
//!
//! It doubles as long as that brings more responses or more bytes. When more requests only make each response wait
//! longer, the server or a proxy is saturated: the window shrinks, and it takes a while until it grows again. A
//! failure halves it and holds prefetches back for a time that doubles.

use std::time::Duration;

use tokio::time::Instant;

/// Initial number of concurrent requests.
const FIRST: usize = 8;
/// Minimum number, unless the server fails.
const LEAST: usize = 4;
/// Time for which a window that was too large is not tried again.
const SETTLED: Duration = Duration::from_secs(5);
/// Initial time for which prefetches are held back after a failure; it doubles with each further failure.
const HOLD: Duration = Duration::from_millis(250);
/// Maximum time for which prefetches are held back.
const HOLD_MAX: Duration = Duration::from_secs(30);
/// Minimum factor that counts as growth.
const GROWTH: f64 = 1.1;
/// Factor of growth of the wait that indicates queueing.
const LONGER: f64 = 1.5;

/// The adaptive limit of concurrent requests.
#[derive(Debug)]
pub(super) struct ConcurrencyWindow {
    size: usize,
    period: Option<Period>,
    /// A smaller window and its rate.
    smaller: Option<(usize, Rate)>,
    settled: Option<Instant>,
    failures: u32,
    held: Option<Instant>,
}

/// Counters over some responses.
#[derive(Debug)]
struct Period {
    began: Instant,
    answers: usize,
    bytes: u64,
    waited: Duration,
    /// True if more requests were ready than the window allowed.
    full: bool,
}

/// Rate over a period.
#[derive(Clone, Copy, Debug)]
struct Rate {
    answers: f64,
    bytes: f64,
    wait: f64,
}

impl ConcurrencyWindow {
    pub(super) fn new() -> Self {
        Self { size: FIRST, period: None, smaller: None, settled: None, failures: 0, held: None }
    }

    /// Returns the limit of concurrent requests, at most `most`.
    pub(super) fn size(&self, most: usize) -> usize {
        self.size.min(most)
    }

    /// Returns the time until which prefetches are held back because the server fails.
    pub(super) fn held(&self) -> Option<Instant> {
        self.held
    }

    /// Records that the window is full while more requests are queued.
    pub(super) fn is_full(&mut self) {
        if let Some(period) = &mut self.period {
            period.full = true;
        }
    }

    /// Records that no request is in flight.
    pub(super) fn idle(&mut self) {
        self.period = None;
    }

    pub(super) fn delivered(&mut self, bytes: u64) {
        if let Some(period) = &mut self.period {
            period.bytes += bytes;
        }
    }

    /// Records a successful response that began after a wait.
    pub(super) fn answered(&mut self, waited: Duration, most: usize, now: Instant) {
        self.failures = 0;
        let period = self.period.get_or_insert(Period {
            began: now,
            answers: 0,
            bytes: 0,
            waited: Duration::ZERO,
            full: false,
        });
        period.answers += 1;
        period.waited += waited;
        let took = now.saturating_duration_since(period.began);
        if period.answers < 2 * self.size || took < 2 * waited {
            return;
        }
        let rate = Rate {
            answers: period.answers as f64 / took.as_secs_f64(),
            bytes: period.bytes as f64 / took.as_secs_f64(),
            wait: period.waited.as_secs_f64() / period.answers as f64,
        };
        let full = period.full;
        self.period = None;
        if full {
            self.judge(rate, most, now);
        }
    }

    fn judge(&mut self, rate: Rate, most: usize, now: Instant) {
        if let Some((size, before)) = self.smaller.take() {
            let more = rate.answers > before.answers * GROWTH || rate.bytes > before.bytes * GROWTH;
            if !more && rate.wait > before.wait * LONGER {
                self.size = size;
                self.settled = Some(now + SETTLED);
                return;
            }
        }
        if self.size < most && self.settled.is_none_or(|until| now >= until) {
            self.smaller = Some((self.size, rate));
            self.size = (self.size * 2).max(LEAST).min(most);
        }
    }

    /// Notes a failure of the server or the network; `wait` if the server asks for one.
    pub(super) fn failed(&mut self, wait: Option<Duration>, now: Instant) {
        // Requests that were under way together fail together; that is one failure.
        if self.held.is_some_and(|until| now < until) {
            return;
        }
        let pause = HOLD.saturating_mul(1 << self.failures.min(16)).min(HOLD_MAX);
        self.held = Some(now + pause.max(wait.unwrap_or_default().min(HOLD_MAX)));
        self.failures = self.failures.saturating_add(1);
        self.size = (self.size / 2).max(1);
        (self.smaller, self.period) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 48;

    /// Simulates a server that takes `service` for a response and works on `lanes` at once, at the end of a path.
    fn run(window: &mut ConcurrencyWindow, round_trip: f64, service: f64, lanes: usize, answers: usize) {
        let start = Instant::now();
        let mut lane_free = vec![0.0_f64; lanes];
        let mut under_way: Vec<(f64, f64)> = Vec::new();
        let mut now = 0.0;
        for _ in 0..answers {
            while under_way.len() < window.size(MOST) {
                lane_free.sort_by(f64::total_cmp);
                let begins = lane_free[0].max(now + round_trip / 2.0);
                lane_free[0] = begins + service;
                under_way.push((begins + service + round_trip / 2.0, now));
            }
            window.is_full();
            under_way.sort_by(|a, b| b.0.total_cmp(&a.0));
            let (when, asked) = under_way.pop().expect("something is under way");
            now = when;
            window.answered(Duration::from_secs_f64(now - asked), MOST, start + Duration::from_secs_f64(now));
        }
    }

    #[test]
    fn a_long_path_needs_many_requests() {
        let mut window = ConcurrencyWindow::new();
        run(&mut window, 0.084, 0.000_1, 64, 2000);
        assert_eq!(window.size(MOST), MOST);
    }

    #[test]
    fn a_saturated_proxy_gets_no_further_requests() {
        let mut window = ConcurrencyWindow::new();
        run(&mut window, 0.000_2, 0.002, 4, 1000);
        assert!(window.size(MOST) <= FIRST, "{window:?}");
    }

    #[test]
    fn repeated_failures_hold_prefetches_back_longer() {
        let mut now = Instant::now();
        let mut window = ConcurrencyWindow::new();
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            window.failed(None, now);
            let held = window.held().expect("held") - now;
            assert!(held >= last && held <= HOLD_MAX);
            window.failed(None, now);
            assert_eq!(window.held(), Some(now + held), "they failed together");
            (last, now) = (held, now + held);
        }
        assert_eq!((last, window.size(MOST)), (HOLD_MAX, 1));
        window.answered(Duration::from_millis(1), MOST, now);
        window.failed(None, now);
        assert_eq!(window.held(), Some(now + HOLD), "an answer came in between");
        now += HOLD;
        window.failed(Some(Duration::from_secs(20)), now);
        assert_eq!(window.held(), Some(now + Duration::from_secs(20)));
    }
}
