//! The path to a server: its round trip, its delivery rate, and how many bytes of prefetch may be on it without making
//! a queue. After BBR (decision 0050): the capacity of a path is the fastest delivery seen times the least round trip
//! seen; more bytes only wait in a queue, before the next demand.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Budget in bytes while the path is unknown, and minimum while delivery still grows.
const FIRST: u64 = 256 << 10;
/// Minimum budget in bytes: with less, requests cost more than they bring.
const LEAST: u64 = 32 << 10;
/// Divisor of the round trip that limits queueing beyond the path's capacity
const QUEUE_PART: u32 = 4;
/// Minimum queueing time: on a short path the time to pass a packet between threads counts.
const QUEUE_LEAST: Duration = Duration::from_micros(500);
/// Minimum time over which delivery is measured; a shorter one measures the kernel's clock.
const ROUND_LEAST: Duration = Duration::from_millis(4);
/// Full rounds without growth that end the fast growth at the start.
const FLAT_ROUNDS: u32 = 3;
/// Number of full rounds over which the fastest delivery is remembered.
const RATES_KEPT: usize = 10;
/// Time after which a minimum is renewed.
const LEAST_FOR: Duration = Duration::from_secs(30);

/// Estimate of rate and round trip of one path.
#[derive(Debug)]
pub(super) struct PathEstimate {
    /// Time to connect.
    handshake: WindowedMinimum,
    /// From request to the first byte of the answer.
    answer: WindowedMinimum,
    round: Option<Round>,
    /// Bytes a second in the last rounds.
    rates: VecDeque<f64>,
    /// Number of rounds without growth; the start phase ends after [`FLAT_ROUNDS`].
    flat: u32,
}

/// Bytes delivered since a point in time.
#[derive(Debug)]
struct Round {
    began: Instant,
    bytes: u64,
    /// True if more would have been requested with a larger budget.
    full: bool,
}

impl PathEstimate {
    pub(super) fn new() -> Self {
        Self {
            handshake: WindowedMinimum::default(),
            answer: WindowedMinimum::default(),
            round: None,
            rates: VecDeque::new(),
            flat: 0,
        }
    }

    /// Records the time of a handshake.
    pub(super) fn connected(&mut self, took: Duration, now: Instant) {
        self.handshake.note(took, now);
    }

    /// Notes the first byte of a response.
    pub(super) fn answered(&mut self, took: Duration, now: Instant) {
        self.answer.note(took, now);
    }

    /// Returns the shortest recent round trip. That of a handshake counts only until there is another: the peer of
    /// the handshake may be nearer than the server.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.answer.get().or_else(|| self.handshake.get())
    }

    /// Returns the fastest recent delivery, in bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.best_rate() as u64
    }

    /// Records received bytes.
    pub(super) fn delivered(&mut self, bytes: u64, now: Instant) {
        let round = self.round.get_or_insert(Round { began: now, bytes: 0, full: false });
        round.bytes += bytes;
        let took = now.saturating_duration_since(round.began);
        if took >= ROUND_LEAST.max(self.answer.get().unwrap_or_default()) {
            let (rate, full) = (round.bytes as f64 / took.as_secs_f64(), round.full);
            self.round = Some(Round { began: now, bytes: 0, full: false });
            self.ended(rate, full);
        }
    }

    /// Records that the budget held a request back.
    pub(super) fn is_full(&mut self) {
        if let Some(round) = &mut self.round {
            round.full = true;
        }
    }

    /// Records that the path is idle; the idle time is not measured.
    pub(super) fn idle(&mut self) {
        self.round = None;
    }

    /// Returns the maximum number of bytes in flight for sending another prefetch.
    pub(super) fn budget(&self) -> u64 {
        let starting = self.is_starting();
        let Some(round_trip) = self.round_trip() else { return FIRST };
        let queue = if starting { round_trip } else { round_trip / QUEUE_PART };
        let holds = self.best_rate() * (round_trip + queue.max(QUEUE_LEAST)).as_secs_f64();
        (holds as u64).max(if starting { FIRST } else { LEAST })
    }

    fn is_starting(&self) -> bool {
        self.flat < FLAT_ROUNDS
    }

    fn best_rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn ended(&mut self, rate: f64, full: bool) {
        let best = self.best_rate();
        // A round with too few requests doesn't show that the path is slow.
        if !full && rate <= best {
            return;
        }
        if full && self.is_starting() {
            self.flat = if rate < best * 1.25 { self.flat + 1 } else { 0 };
        }
        if self.rates.len() == RATES_KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }
}

/// Minimum over the last half to one minute.
#[derive(Debug, Default)]
struct WindowedMinimum {
    before: Option<Duration>,
    lately: Option<(Duration, Instant)>,
}

impl WindowedMinimum {
    fn note(&mut self, took: Duration, now: Instant) {
        match &mut self.lately {
            Some((least, since)) if now.saturating_duration_since(*since) < LEAST_FOR => {
                *least = took.min(*least);
            }
            lately => {
                self.before = lately.map(|(least, _)| least);
                *lately = Some((took, now));
            }
        }
    }

    fn get(&self) -> Option<Duration> {
        let (lately, _) = self.lately?;
        Some(self.before.map_or(lately, |before| before.min(lately)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a link with one queue, on which a request for `object` bytes is sent whenever the budget
    /// allows it. Returns the final path, the used part of the link's time, and the longest wait of a byte in
    /// the queue in the second half.
    fn simulate(rate: f64, round_trip: Duration, object: u64, rounds: u32) -> (PathEstimate, f64, Duration) {
        let start = Instant::now();
        let mut path = PathEstimate::new();
        path.connected(round_trip, start);
        let (mut now, end) = (start, start + round_trip * rounds);
        // When the link is free; bytes in flight: arrival of the last byte, bytes.
        let mut free = start;
        let mut coming: VecDeque<(Instant, u64)> = VecDeque::new();
        let (mut on_the_way, mut sent, mut longest) = (0, 0u64, Duration::ZERO);
        while now < end {
            while on_the_way < path.budget() {
                let reaches = now + round_trip / 2;
                if now > start + round_trip * (rounds / 2) {
                    longest = longest.max(free.saturating_duration_since(reaches));
                }
                free = free.max(reaches) + Duration::from_secs_f64(object as f64 / rate);
                coming.push_back((free + round_trip / 2, object));
                on_the_way += object;
                sent += object;
            }
            path.is_full();
            let (when, bytes) = coming.pop_front().expect("something is always on its way");
            now = when;
            path.answered(round_trip, now);
            path.delivered(bytes, now);
            on_the_way -= bytes;
        }
        let used = sent as f64 / rate / (end - start).as_secs_f64();
        (path, used, longest)
    }

    #[test]
    fn a_path_is_filled_with_little_queueing() {
        let paths = [(35e6, 84), (116e6, 14), (117e6, 2), (1.25e9, 1), (0.5e6, 40)];
        for (rate, millis) in paths {
            let round_trip = Duration::from_millis(millis);
            let (path, used, longest) = simulate(rate, round_trip, 8 << 10, 400);
            assert!(used > 0.9, "{rate} bytes/s, {millis} ms: only {used:.2} of it used");
            // A quarter of a round trip, or the least; and the one object that was sent for last.
            let most = (round_trip / 4).max(QUEUE_LEAST).as_secs_f64() + f64::from(16 << 10) / rate;
            let most = most.max(f64::from(40 << 10) / rate);
            assert!(
                longest.as_secs_f64() < most * 1.2,
                "{rate} bytes/s, {millis} ms: {longest:?} in the queue; {path:?}"
            );
        }
    }

    #[test]
    fn rounds_without_enough_requests_do_not_lower_the_estimate() {
        let start = Instant::now();
        let mut path = PathEstimate::new();
        path.answered(Duration::from_millis(10), start);
        let mut now = start;
        let mut deliver = |path: &mut PathEstimate, bytes, full: bool| {
            path.delivered(bytes, now);
            if full {
                path.is_full();
            }
            now += Duration::from_millis(10);
            path.delivered(0, now);
        };
        deliver(&mut path, 1_000_000, true);
        assert_eq!(path.rate(), 100_000_000);
        for _ in 0..100 {
            deliver(&mut path, 1000, false);
        }
        assert_eq!(path.rate(), 100_000_000);
        for _ in 0..RATES_KEPT {
            deliver(&mut path, 1000, true);
        }
        assert_eq!(path.rate(), 100_000, "the path has become slow");
    }

    #[test]
    fn the_minimum_round_trip_expires() {
        let start = Instant::now();
        let mut least = WindowedMinimum::default();
        least.note(Duration::from_millis(1), start);
        least.note(Duration::from_millis(9), start + LEAST_FOR);
        assert_eq!(least.get(), Some(Duration::from_millis(1)));
        least.note(Duration::from_millis(9), start + LEAST_FOR * 2);
        assert_eq!(least.get(), Some(Duration::from_millis(9)));
    }
}
