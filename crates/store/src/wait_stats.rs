//! Counts the waits of jobs for a thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Distribution of waits. Times are powers of two, the upper ends of the classes counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitStatus {
    /// Number of jobs.
    pub jobs: u64,
    /// Median wait in microseconds.
    pub half_us: u64,
    /// 99th percentile of the waits in microseconds.
    pub p99_us: u64,
}

/// Number of classes of waits: less than 1, 2, 4, … microseconds; the last one is for all longer waits.
const CLASSES: usize = 24;

/// Counts waits by their length: a few instructions each.
#[derive(Debug, Default)]
pub(crate) struct WaitStats([AtomicU64; CLASSES]);

impl WaitStats {
    /// A function that is never inlined, so that a probe can be set on it: `docs/benchmarks.md` compares waits with
    /// the use of cores.
    #[inline(never)]
    pub(crate) fn note(&self, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        self.0[class.min(CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> WaitStatus {
        let counts: Vec<u64> = self.0.iter().map(|class| class.load(Ordering::Relaxed)).collect();
        let jobs: u64 = counts.iter().sum();
        // The upper end of the class in which the part `percent` of all is reached.
        let at = |percent: u64| {
            let wanted = (jobs * percent).div_ceil(100);
            let mut seen = 0;
            let class = counts.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            if jobs == 0 { 0 } else { 1 << class.unwrap_or(CLASSES - 1) }
        };
        WaitStatus { jobs, half_us: at(50), p99_us: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_wait_is_reported() {
        let waits = WaitStats::default();
        assert_eq!(waits.status(), WaitStatus { jobs: 0, half_us: 0, p99_us: 0 });
        for _ in 0..98 {
            waits.note(Duration::from_micros(5));
        }
        waits.note(Duration::from_millis(3));
        assert_eq!(waits.status(), WaitStatus { jobs: 99, half_us: 8, p99_us: 4096 });
        waits.note(Duration::from_secs(1 << 40));
        assert_eq!(waits.status().p99_us, 4096);
        waits.note(Duration::MAX);
        assert_eq!(waits.status().p99_us, 1 << (CLASSES - 1));
    }
}
