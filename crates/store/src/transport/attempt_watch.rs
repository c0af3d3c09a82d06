//! Observes from outside of the network thread how a request proceeds, and ends its attempts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::low_speed::{ServerTotals, is_fair_at};
use super::options::HttpOptions;

/// Maximum announced length in bytes that extends the limit of an object of unknown size: the server may claim any.
const CLAIMED_MAX: u64 = 32 << 20;

/// Observes the attempts of a request that another route may serve, too: they are late if the object should have arrived,
/// and end once it came over the other route.
#[derive(Default)]
pub struct AttemptWatch {
    /// Multiple of the time that an object may take.
    patience: u32,
    /// Time at which the first attempt was sent.
    sent: Mutex<Option<Instant>>,
    attempts: AtomicU32,
    late: AtomicBool,
    over: AtomicBool,
}

impl AttemptWatch {
    /// Creates a watch with a multiple of the usual patience.
    pub(crate) fn new(patience: u32) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Records an attempt.
    pub(super) fn sent(&self, now: Instant) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.sent.lock().get_or_insert(now);
    }

    /// Returns when an object of so many expected bytes should have arrived; `announced` by the server are more.
    pub(super) fn due(
        &self,
        options: &HttpOptions,
        expected: u64,
        announced: Option<u64>,
    ) -> Option<Instant> {
        let bytes = announced.unwrap_or(0).min(CLAIMED_MAX).max(expected);
        let usual = options.hedge + Duration::from_secs_f64(bytes as f64 / options.hedge_speed.max(1) as f64);
        Some((*self.sent.lock())? + usual.saturating_mul(self.patience.max(1)))
    }

    /// Marks the attempts as late at `due`, unless the first one shares a path that is as fast as can be expected.
    pub(super) fn look(
        &self,
        due: Option<Instant>,
        (since, bytes, before): (Instant, u64, u64),
        totals: ServerTotals,
        options: &HttpOptions,
    ) {
        if self.is_late() || due.is_none_or(|due| Instant::now() < due) {
            return;
        }
        let is_first = self.attempts.load(Ordering::Relaxed) <= 1;
        if !(is_first && is_fair_at(options.hedge_speed, (since, bytes, before), totals)) {
            self.late.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the object should have arrived by now.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Ends the attempts, because the object is there.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Returns true if no further byte is needed.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AttemptWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptWatch")
            .field("late", &self.late)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}
