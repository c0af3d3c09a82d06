//! Computes for how long a program waited for mounts, and for what.

use std::collections::HashMap;
use std::time::Duration;

use esker_node::trace::TracedCall;

/// Interval in which a thread waited for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) tid: u32,
    begin: u64,
    end: u64,
    /// Parts of the interval by cause: network, disk, decompression, hand-over; the rest has other causes. Nanoseconds.
    parts: [u64; 4],
}

impl Wait {
    /// Returns the interval of a request that the kernel needs `hand_over` to hand over, there and back.
    pub(super) fn of(call: &TracedCall, hand_over: Duration) -> Self {
        let waits = call.waits;
        let hand_over = u64::try_from(hand_over.as_nanos()).unwrap_or(u64::MAX);
        let half = hand_over / 2;
        Self {
            tid: call.tid,
            begin: call.began_ns.saturating_sub(half),
            end: call.began_ns.saturating_add(call.took_ns).saturating_add(half),
            parts: [waits.network, waits.disk, waits.processing, hand_over],
        }
    }

    /// Returns the shares of [`CAUSES`]; their sum is 1.
    fn shares(&self) -> [f64; 5] {
        let parts = self.parts.map(|part| part as f64);
        let named: f64 = parts.iter().sum();
        let whole = ((self.end - self.begin) as f64).max(named);
        if whole == 0.0 {
            return [0.0, 0.0, 0.0, 0.0, 1.0];
        }
        let [network, disk, processing, hand_over] = parts.map(|part| part / whole);
        [network, disk, processing, hand_over, 1.0 - network - disk - processing - hand_over]
    }
}

/// Names of the causes, in the order of [`Blocked::by_cause`].
pub(super) const CAUSES: [&str; 5] = ["network", "disk", "decompression", "hand-over", "other"];

/// Time for which a program waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Blocked {
    /// Time in which at least one thread waited.
    pub(super) wall: Duration,
    /// Waits of all threads together.
    pub(super) sum: Duration,
    /// Parts of `wall` by cause. While several requests wait, each has an equal part of the time.
    pub(super) by_cause: [Duration; 5],
}

impl Blocked {
    pub(super) fn of(waits: &[Wait]) -> Self {
        let wall_parts = sweep(waits.iter());
        let mut threads: HashMap<u32, Vec<&Wait>> = HashMap::new();
        for wait in waits {
            threads.entry(wait.tid).or_default().push(wait);
        }
        let sum =
            threads.into_values().map(|waits| sweep(waits.into_iter()).iter().sum::<f64>()).sum::<f64>();
        let by_cause = wall_parts.map(nanos);
        Self { wall: nanos(wall_parts.iter().sum()), sum: nanos(sum), by_cause }
    }

    /// Returns the part of the time in which at least one thread waited, from 0 to 1.
    pub(super) fn share(&self, of: Duration) -> f64 {
        if of.is_zero() { 0.0 } else { (self.wall.as_secs_f64() / of.as_secs_f64()).min(1.0) }
    }
}

fn nanos(count: f64) -> Duration {
    Duration::from_nanos(count.max(0.0).round() as u64)
}

/// Returns the length of the union of intervals in nanoseconds, by cause.
fn sweep<'w>(waits: impl Iterator<Item = &'w Wait>) -> [f64; 5] {
    let mut edges: Vec<(u64, bool, [f64; 5])> = Vec::new();
    for wait in waits.filter(|wait| wait.end > wait.begin) {
        let shares = wait.shares();
        edges.push((wait.begin, true, shares));
        edges.push((wait.end, false, shares));
    }
    edges.sort_unstable_by_key(|(at, begins, _)| (*at, *begins));
    let mut total = [0.0; 5];
    let (mut active, mut shares, mut last) = (0_u64, [0.0; 5], 0);
    for (at, begins, of_wait) in edges {
        if active > 0 {
            let length = (at - last) as f64 / active as f64;
            for (sum, share) in total.iter_mut().zip(shares) {
                *sum += length * share;
            }
        }
        last = at;
        let sign = if begins { 1.0 } else { -1.0 };
        active = if begins { active + 1 } else { active - 1 };
        for (all, one) in shares.iter_mut().zip(of_wait) {
            *all += sign * one;
        }
        if active == 0 {
            // Rounding errors must not grow.
            shares = [0.0; 5];
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(tid: u32, begin: u64, end: u64, [network, disk, processing]: [u64; 3]) -> Wait {
        Wait { tid, begin, end, parts: [network, disk, processing, 0] }
    }

    #[test]
    fn a_hand_over_extends_the_wait_at_both_ends() {
        let call = super::super::tests::call("/a", esker_node::trace::Operation::Read);
        let blocked = Blocked::of(&[Wait::of(&call, Duration::from_nanos(300))]);
        assert_eq!(blocked.wall, Duration::from_nanos(800));
        assert_eq!(blocked.by_cause.map(|part| part.as_nanos()), [0, 0, 0, 300, 500]);
    }

    #[test]
    fn waits_at_the_same_time_count_once_in_wall_and_each_in_sum() {
        let waits = [
            wait(1, 0, 100, [100, 0, 0]),
            wait(2, 50, 150, [0, 50, 50]),
            // Read-ahead of the same thread.
            wait(2, 60, 140, [0, 0, 0]),
            wait(1, 1_000, 1_010, [0, 0, 0]),
        ];
        let blocked = Blocked::of(&waits);
        assert_eq!(blocked.wall, Duration::from_nanos(160));
        assert_eq!(blocked.sum, Duration::from_nanos(100 + 100 + 10));
        let parts: Duration = blocked.by_cause.iter().sum();
        assert!(parts.abs_diff(blocked.wall) <= Duration::from_nanos(2), "{blocked:?}");
        assert!(blocked.by_cause[0] >= Duration::from_nanos(50), "{blocked:?}");
        assert_eq!(blocked.share(Duration::from_nanos(320)), 0.5);
        assert_eq!(Blocked::of(&[]).share(Duration::ZERO), 0.0);
    }

    #[test]
    fn causes_that_overlap_in_a_request_are_reduced_to_its_length() {
        assert_eq!(wait(1, 0, 10, [20, 20, 0]).shares(), [0.5, 0.5, 0.0, 0.0, 0.0]);
        assert_eq!(wait(1, 5, 5, [0, 0, 0]).shares(), [0.0, 0.0, 0.0, 0.0, 1.0]);
    }
}
