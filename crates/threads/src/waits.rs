//! Measures the time for which calls wait, by cause.
//!
//! A wait on the calling thread is measured by [`timed`], into a tally of the thread. A wait for other threads, which
//! several calls may share, is measured by a [`WaitClock`], which each of them reads when it begins to wait and when it
//! ends.

use std::cell::Cell;
use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Cause of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// A server, including the queue for it.
    Network,
    /// A local file.
    Disk,
    /// Decompression and verification.
    Processing,
    /// A thread, or a free descriptor.
    Thread,
}

/// Time for which calls waited, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes {
    /// Time for which calls waited for a server.
    pub network: Duration,
    /// Time for which calls waited for a local file.
    pub disk: Duration,
    /// Time in which objects were decompressed and verified.
    pub processing: Duration,
    /// Time for which calls waited for a thread or a free descriptor.
    pub thread: Duration,
}

impl WaitTimes {
    /// Returns a wait of one cause.
    pub fn of(cause: WaitCause, time: Duration) -> Self {
        let mut times = Self::default();
        *times.of_cause(cause) = time;
        times
    }

    fn of_cause(&mut self, cause: WaitCause) -> &mut Duration {
        match cause {
            WaitCause::Network => &mut self.network,
            WaitCause::Disk => &mut self.disk,
            WaitCause::Processing => &mut self.processing,
            WaitCause::Thread => &mut self.thread,
        }
    }

    /// Returns the times in the order network, disk, processing, thread.
    pub const fn all(&self) -> [Duration; 4] {
        [self.network, self.disk, self.processing, self.thread]
    }

    fn map2(self, other: Self, join: impl Fn(Duration, Duration) -> Duration) -> Self {
        Self {
            network: join(self.network, other.network),
            disk: join(self.disk, other.disk),
            processing: join(self.processing, other.processing),
            thread: join(self.thread, other.thread),
        }
    }

    /// Returns the sum of all causes.
    pub fn total(&self) -> Duration {
        self.all().into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Returns the times since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.map2(earlier, Duration::saturating_sub)
    }

    /// Returns the times, reduced in proportion so that their sum is at most `limit`: a call that waits for several
    /// objects at once waits only once.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        let total = self.total();
        if total <= limit {
            return self;
        }
        let share = limit.as_secs_f64() / total.as_secs_f64();
        self.map2(self, |time, _| time.mul_f64(share))
    }
}

impl Add for WaitTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.map2(other, Duration::saturating_add)
    }
}

impl AddAssign for WaitTimes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// No waits.
const NONE: WaitTimes = WaitTimes {
    network: Duration::ZERO,
    disk: Duration::ZERO,
    processing: Duration::ZERO,
    thread: Duration::ZERO,
};

thread_local! {
    static TALLY: Cell<WaitTimes> = const { Cell::new(NONE) };
    /// Tally at the beginning of the current job, on threads of pools.
    static JOB: Cell<Option<WaitTimes>> = const { Cell::new(None) };
}

/// Returns the waits of this thread so far.
pub fn tally() -> WaitTimes {
    // A thread whose locals are gone is ending.
    TALLY.try_with(Cell::get).unwrap_or_default()
}

/// Adds waits to those of this thread.
pub fn add_to_tally(times: WaitTimes) {
    let _ = TALLY.try_with(|tally| tally.set(tally.get() + times));
}

/// Runs something that waits, and adds its time to the waits of this thread.
pub fn timed<T>(cause: WaitCause, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let value = run();
    add_to_tally(WaitTimes::of(cause, began.elapsed()));
    value
}

/// Begins a job of a pool that was queued for this time.
pub(crate) fn begin_job(queued: Duration) {
    let before = tally();
    let _ = JOB.try_with(|job| job.set(Some(before)));
    add_to_tally(WaitTimes::of(WaitCause::Thread, queued));
}

/// Returns the waits of the current job, its wait for a thread included; none on a thread that is in no pool.
pub fn of_this_job() -> WaitTimes {
    JOB.try_with(Cell::get).ok().flatten().map_or(NONE, |began| tally().since(began))
}

/// Measures a wait that passes through several phases on several threads.
#[derive(Debug, Default)]
pub struct WaitClock(Mutex<ClockState>);

#[derive(Debug, Default)]
struct ClockState {
    times: WaitTimes,
    running: Option<(WaitCause, Instant)>,
}

impl ClockState {
    fn times(&self, now: Instant) -> WaitTimes {
        let running =
            self.running.map(|(cause, since)| WaitTimes::of(cause, now.saturating_duration_since(since)));
        self.times + running.unwrap_or_default()
    }
}

impl WaitClock {
    /// Starts a phase with this cause, or with none; returns the cause of the previous phase.
    pub fn enter(&self, cause: Option<WaitCause>) -> Option<WaitCause> {
        let now = Instant::now();
        let mut state = self.0.lock();
        state.times = state.times(now);
        let before = state.running.map(|(cause, _)| cause);
        state.running = cause.map(|cause| (cause, now));
        before
    }

    /// Adds waits that were measured elsewhere.
    pub fn add(&self, times: WaitTimes) {
        self.0.lock().times += times;
    }

    /// Returns the times so far, those of the current phase included.
    pub fn times(&self) -> WaitTimes {
        self.0.lock().times(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn waits_for_several_objects_at_once_are_reduced_to_the_elapsed_time() {
        let times = WaitTimes { network: ms(30), disk: ms(10), ..WaitTimes::default() };
        let reduced = times.within(ms(20));
        assert_eq!((reduced.network, reduced.disk), (ms(15), ms(5)));
        assert_eq!(times.within(ms(40)), times);
    }

    #[test]
    fn a_clock_attributes_time_to_the_phase_that_runs() {
        let clock = WaitClock::default();
        let began = Instant::now() - ms(500);
        clock.0.lock().running = Some((WaitCause::Network, began));
        assert_eq!(clock.enter(Some(WaitCause::Disk)), Some(WaitCause::Network));
        let first = clock.times();
        assert!(first.network >= ms(500), "{first:?}");
        clock.add(WaitTimes::of(WaitCause::Thread, ms(3)));
        assert_eq!(clock.enter(None), Some(WaitCause::Disk));
        let (last, later) = (clock.times(), clock.times());
        assert_eq!((last.network, last.thread), (first.network, ms(3)));
        assert_eq!(last, later, "no phase runs");
    }

    #[test]
    fn a_job_counts_its_wait_for_a_thread_and_its_own_waits() {
        add_to_tally(WaitTimes::of(WaitCause::Disk, ms(7)));
        let before = tally();
        begin_job(ms(2));
        assert_eq!(timed(WaitCause::Processing, || 5), 5);
        let job = of_this_job();
        assert_eq!((job.thread, job.disk), (ms(2), Duration::ZERO));
        assert_eq!(tally().since(before), job);
    }
}
