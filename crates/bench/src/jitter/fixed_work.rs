//! The loop of fixed work, one thread pinned to each core.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Approximate length of a repetition: shorter than the pause between two timer interrupts.
const LENGTH: Duration = Duration::from_micros(200);
/// Part of the quickest repetition by which another one must be longer to count as an outlier.
const OUTLIER: f64 = 0.1;

/// Noise of a round, of all cores together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Noise {
    pub(super) repetitions: usize,
    pub(super) quickest_us: f64,
    /// Percentiles 50, 99, 99.9 and 100 of the time beyond the quickest repetition of the same core.
    pub(super) delay_us: [f64; 4],
    /// Outliers in a second and core.
    pub(super) outliers: f64,
    pub(super) lost_ppm: f64,
}

/// Runs the loop on each core that this process may use.
pub(super) fn measure(window: Duration) -> Result<Noise> {
    let allowed = sched_getaffinity(None).context("can't read the allowed cores")?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let (steps, start) = (calibrated(), Barrier::new(cores.len()));
    let times: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> =
            cores.iter().map(|core| scope.spawn(move || on_core(*core, steps, window, start))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        joined.collect::<Result<_>>()
    })?;
    Ok(Noise::of(&times, window))
}

fn on_core(core: usize, steps: u64, window: Duration, start: &Barrier) -> Result<Vec<u64>> {
    let mut set = CpuSet::new();
    set.set(core);
    let pinned = sched_setaffinity(None, &set).with_context(|| format!("can't use core {core}"));
    // All threads must come here, or the others wait for ever. The list is allocated and touched before.
    let room = usize::try_from(window.as_nanos() / LENGTH.as_nanos() * 2).unwrap_or(1 << 20);
    let mut times = vec![1; room];
    times.clear();
    start.wait();
    pinned?;
    let began = Instant::now();
    let mut last = began;
    while last.duration_since(began) < window && times.len() < room {
        black_box(work(steps));
        let now = Instant::now();
        times.push(u64::try_from(now.duration_since(last).as_nanos()).unwrap_or(u64::MAX));
        last = now;
    }
    Ok(times)
}

/// Computes without memory: caches and other cores don't change its time.
fn work(steps: u64) -> u64 {
    (0..steps).fold(black_box(0x9e37_79b9_7f4a_7c15_u64), |state, _| {
        let state = state ^ (state << 13);
        let state = state ^ (state >> 7);
        state ^ (state << 17)
    })
}

/// Returns the number of steps that take about [`LENGTH`]: of the quickest of several tries.
fn calibrated() -> u64 {
    const TRIED: u64 = 100_000;
    let tries = (0..20).map(|_| {
        let start = Instant::now();
        black_box(work(TRIED));
        start.elapsed()
    });
    let quickest = tries.min().unwrap_or(LENGTH).as_nanos().max(1);
    u64::try_from(u128::from(TRIED) * LENGTH.as_nanos() / quickest).unwrap_or(TRIED).max(1)
}

impl Noise {
    fn of(times: &[Vec<u64>], window: Duration) -> Self {
        let quickest: Vec<u64> = times.iter().map(|core| core.iter().copied().min().unwrap_or(0)).collect();
        let of_cores = times.iter().zip(&quickest);
        let mut delays: Vec<u64> =
            of_cores.flat_map(|(core, quickest)| core.iter().map(move |time| time - quickest)).collect();
        delays.sort_unstable();
        let base = quickest.iter().copied().min().unwrap_or(0) as f64;
        let at = |share: f64| {
            let place = (delays.len() as f64 * share).ceil() as usize;
            delays.get(place.saturating_sub(1)).copied().unwrap_or(0) as f64 / 1e3
        };
        let outliers = delays.iter().filter(|delay| **delay as f64 > OUTLIER * base).count() as f64;
        let core_seconds = (window.as_secs_f64() * times.len() as f64).max(f64::MIN_POSITIVE);
        let lost: u64 = delays.iter().sum();
        Self {
            repetitions: delays.len(),
            quickest_us: base / 1e3,
            delay_us: [at(0.5), at(0.99), at(0.999), at(1.0)],
            outliers: outliers / core_seconds,
            lost_ppm: lost as f64 / 1e3 / core_seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_count_from_the_quickest_repetition_of_their_core() {
        let mut slow = vec![300_000; 998];
        slow.extend([310_000, 400_000]);
        let noise = Noise::of(&[vec![200_000; 1000], slow], Duration::from_secs(1));
        assert_eq!(noise.repetitions, 2000);
        assert_eq!(noise.quickest_us, 200.0);
        assert_eq!(noise.delay_us, [0.0, 0.0, 0.0, 100.0]);
        assert_eq!(noise.outliers, 0.5, "one in two core seconds");
        assert_eq!(noise.lost_ppm, 55.0);
        assert_eq!(Noise::of(&[], Duration::ZERO).repetitions, 0);
    }

    #[test]
    fn every_core_repeats_the_work() {
        let noise = measure(Duration::from_millis(20)).expect("a measurement");
        assert!(noise.repetitions > 0 && noise.quickest_us > 1.0, "{noise:?}");
    }
}
