//! Counters of a repository's traffic with its server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::status::NetworkStatus;

/// Counters of one repository on one server.
#[derive(Default)]
pub(crate) struct TrafficCounts {
    requests: AtomicU64,
    connections: AtomicU64,
    received: AtomicU64,
    round_trip_us: AtomicU64,
    rate: AtomicU64,
    window: AtomicU64,
}

impl TrafficCounts {
    pub(super) fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records the current state of the path.
    pub(super) fn path(&self, round_trip: Duration, rate: u64, window: usize) {
        self.round_trip_us
            .store(u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.rate.store(rate, Ordering::Relaxed);
        self.window.store(window as u64, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> NetworkStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetworkStatus {
            requests: get(&self.requests),
            connections: get(&self.connections),
            received_bytes: get(&self.received),
            round_trip_us: get(&self.round_trip_us),
            bytes_per_second: get(&self.rate),
            window: get(&self.window),
            ..NetworkStatus::default()
        }
    }
}
