//! Measures the path to one server: how long a round trip is, how much it delivers, and how many requests that allows.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::Instant;

use super::concurrency_window::ConcurrencyWindow;
use super::path_estimate::PathEstimate;
use super::traffic_counts::TrafficCounts;
use super::user_share::Throughput;
use crate::error::{Blame, Cause};

/// Assumed ratio of stored to plain size, until some objects were fetched.
const USUAL_RATIO: f64 = 0.4;

/// The path to a server.
pub(super) struct HostPath {
    estimate: RefCell<PathEstimate>,
    window: RefCell<ConcurrencyWindow>,
    throughput: RefCell<Throughput>,
    /// Received bytes of bodies.
    received: Cell<u64>,
    /// Ratio of stored to plain size.
    ratio: Cell<f64>,
}

impl Default for HostPath {
    fn default() -> Self {
        Self {
            estimate: RefCell::new(PathEstimate::new()),
            window: RefCell::new(ConcurrencyWindow::new()),
            throughput: RefCell::default(),
            received: Cell::new(0),
            ratio: Cell::new(USUAL_RATIO),
        }
    }
}

impl HostPath {
    /// Records the time that a connection took.
    pub(super) fn connected(&self, took: Duration) {
        self.estimate.borrow_mut().connected(took, Instant::now());
    }

    /// Records the start of a response after a wait; `most` requests may be in flight at once.
    pub(super) fn answered(&self, waited: Duration, most: usize, now: Instant) {
        self.estimate.borrow_mut().answered(waited, now);
        self.window.borrow_mut().answered(waited, most, now);
    }

    /// Records received bytes. Those that waited in a local queue don't measure the path.
    pub(super) fn delivered(&self, bytes: u64, waited_here: bool, now: Instant) {
        if !waited_here {
            self.estimate.borrow_mut().delivered(bytes, now);
        }
        self.window.borrow_mut().delivered(bytes);
        self.received.set(self.received.get() + bytes);
        self.throughput.borrow_mut().came(bytes, now);
    }

    /// Records that no request is in flight.
    pub(super) fn idle(&self) {
        self.estimate.borrow_mut().idle();
        self.window.borrow_mut().idle();
        self.throughput.borrow_mut().idle();
    }

    /// Records the failure of a request, if the server or the path is to blame and it may pass.
    pub(super) fn failed(&self, cause: &Cause) {
        if cause.may_pass() && cause.blame() == Blame::Host {
            let wait = if let Cause::Overloaded { after, .. } = cause { Some(*after) } else { None };
            self.window.borrow_mut().failed(wait, Instant::now());
        }
    }

    /// Returns the time until which no prefetch is to be sent, after a failure.
    pub(super) fn held(&self) -> Option<Instant> {
        self.window.borrow().held()
    }

    /// Returns the number of requests that may be in flight, at most `most`.
    pub(super) fn window(&self, most: usize) -> usize {
        self.window.borrow().size(most)
    }

    /// Returns true if a path with `active` requests and `coming` bytes in flight takes another prefetch; records what is
    /// full otherwise.
    pub(super) fn has_room(&self, active: usize, coming: u64, most: usize) -> bool {
        if active >= self.window(most) {
            self.window.borrow_mut().is_full();
            return false;
        }
        let is_full = active > 0 && coming >= self.budget();
        if is_full {
            self.estimate.borrow_mut().is_full();
        }
        !is_full
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.estimate.borrow().round_trip()
    }

    /// Returns the bytes that should be in flight.
    pub(super) fn budget(&self) -> u64 {
        self.estimate.borrow().budget()
    }

    pub(super) fn is_slow(&self) -> bool {
        self.throughput.borrow().is_slow()
    }

    /// Returns the received bytes of bodies.
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Returns the expected stored bytes of an object of this plain size.
    pub(super) fn stored_size(&self, plain: u64) -> u64 {
        (plain as f64 * self.ratio.get()) as u64
    }

    /// Updates the ratio of stored to plain size from an object.
    pub(super) fn learn(&self, plain: u64, stored: u64) {
        if plain > 0 {
            let seen = (stored as f64 / plain as f64).clamp(0.01, 1.0);
            // Large objects tell more.
            let weight = (plain as f64 / 1e6).clamp(0.01, 0.2);
            self.ratio.set(self.ratio.get() * (1.0 - weight) + seen * weight);
        }
    }

    /// Updates the traffic counters of a route over this path.
    pub(super) fn count(&self, counts: &TrafficCounts, most: usize) {
        counts.path(self.round_trip().unwrap_or_default(), self.estimate.borrow().rate(), self.window(most));
    }
}
