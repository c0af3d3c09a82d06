//! Measures the rate of one response by round trips.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes of a new connection in its first round trip: ten segments (RFC 6928).
pub(super) const FIRST_ROUND: u64 = 14_600;

/// Bytes that a connection delivers in a round trip: twice as much in each until a loss or a full path, and
/// hardly more from then on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRate {
    began: Option<Instant>,
    /// Bytes of the current round trip, and of the previous one.
    now: u64,
    last: u64,
    grows: bool,
}

impl StreamRate {
    /// Returns the rate of a connection that delivered `last` bytes in its last round trip.
    pub(super) fn after(last: u64) -> Self {
        Self { began: None, now: 0, last, grows: true }
    }

    /// Returns the bytes delivered in a round trip.
    pub(super) fn in_a_round(&self) -> u64 {
        self.last.max(self.now)
    }

    /// Returns true if the last round brought hardly more than the previous one.
    pub(super) fn is_steady(&self) -> bool {
        !self.grows
    }

    /// Returns the bytes of the response that can be in flight at once. Counted whole, a large object on a new
    /// connection would keep other requests from using the free capacity.
    pub(super) fn on_path(&self) -> u64 {
        FIRST_ROUND.max(self.in_a_round() * if self.grows { 2 } else { 1 })
    }

    /// Records received bytes on a path with this round trip, if known; returns true if a round trip ended.
    pub(super) fn came(&mut self, bytes: u64, round_trip: Option<Duration>, now: Instant) -> bool {
        self.now = self.now.saturating_add(bytes);
        let began = *self.began.get_or_insert(now);
        let Some(round_trip) = round_trip.filter(|round_trip| !round_trip.is_zero()) else { return false };
        let rounds = now.saturating_duration_since(began).as_secs_f64() / round_trip.as_secs_f64();
        if rounds < 1.0 {
            return false;
        }
        let each = (self.now as f64 / rounds) as u64;
        self.grows = each >= self.last.saturating_mul(3) / 2;
        (self.last, self.now, self.began) = (each, 0, Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(80);

    #[test]
    fn only_a_growing_rate_is_expected_to_double() {
        let mut now = Instant::now();
        let mut stream_rate = StreamRate::after(0);
        assert_eq!(stream_rate.on_path(), FIRST_ROUND);
        stream_rate.came(0, Some(ROUND), now);
        for round in 0..6 {
            now += ROUND;
            stream_rate.came(FIRST_ROUND << round, Some(ROUND), now);
            assert_eq!(stream_rate.on_path(), FIRST_ROUND << (round + 1), "round {round}");
        }
        for _ in 0..2 {
            now += ROUND;
            stream_rate.came(FIRST_ROUND << 5, Some(ROUND), now);
            assert_eq!(stream_rate.on_path(), FIRST_ROUND << 5, "it is as fast as it gets");
        }
        now += ROUND * 10;
        stream_rate.came(FIRST_ROUND * 20, Some(ROUND), now);
        assert_eq!(
            (stream_rate.in_a_round(), stream_rate.on_path()),
            (FIRST_ROUND * 2, FIRST_ROUND * 2),
            "ten rounds in one"
        );
    }

    #[test]
    fn a_warm_connection_starts_with_its_last_window() {
        assert_eq!(StreamRate::after(1 << 20).on_path(), 2 << 20);
        let mut unknown = StreamRate::after(0);
        unknown.came(1 << 20, None, Instant::now());
        assert_eq!(unknown.on_path(), 2 << 20, "without a round trip all counts as one");
    }
}
