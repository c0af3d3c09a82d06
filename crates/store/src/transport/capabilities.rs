//! Capabilities of a server beside single whole files, as announced in its responses.
//!
//! Both are used only without a proxy. A proxy would see other combinations and parts of objects each time, and cache
//! none of them for other clients.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use esker_format::batch;
use hyper::{Response, header};

/// Header fields that indicate a proxy.
const OF_PROXIES: [&str; 4] = ["via", "x-cache", "age", "x-varnish"];
/// Marks a site without batches.
const NEVER: usize = usize::MAX;

/// Capabilities of a site.
#[derive(Default)]
pub(super) struct Capabilities {
    batch: AtomicUsize,
    pieces: AtomicU8,
    /// Number of consecutive objects with a broken piece.
    broken: AtomicU8,
}

/// Number of consecutive objects with a broken piece after which the client stops using pieces.
const BROKEN_MAX: u8 = 3;

/// States of `pieces`.
const UNKNOWN: u8 = 0;
const OFFERED: u8 = 1;
const REFUSED: u8 = 2;

impl Capabilities {
    /// Reads the capabilities from a response.
    pub(super) fn note_response<T>(&self, response: &Response<T>) {
        let headers = response.headers();
        if OF_PROXIES.iter().any(|name| headers.contains_key(*name)) {
            self.no_batches();
            return self.no_pieces();
        }
        let field = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let offered = field(batch::HEADER).and_then(|value| value.parse().ok());
        if let Some(most) = offered
            && self.batch.load(Ordering::Relaxed) != NEVER
        {
            self.batch.store(batch::NAMES_MAX.min(most), Ordering::Relaxed);
        }
        if field(header::ACCEPT_RANGES.as_str()) == Some("bytes") {
            // A refusal stays.
            let _ = self.pieces.compare_exchange(UNKNOWN, OFFERED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the maximum number of objects in a batch; 0 or 1 for no batches.
    pub(super) fn in_batch(&self) -> usize {
        match self.batch.load(Ordering::Relaxed) {
            NEVER => 0,
            most => most,
        }
    }

    /// Disables batches permanently.
    pub(super) fn no_batches(&self) {
        self.batch.store(NEVER, Ordering::Relaxed);
    }

    /// Returns whether an object may be requested in pieces.
    pub(super) fn has_pieces(&self) -> bool {
        self.pieces.load(Ordering::Relaxed) == OFFERED
    }

    /// Records whether all pieces of an object arrived.
    pub(super) fn came_in_pieces(&self, whole: bool) {
        if whole {
            self.broken.store(0, Ordering::Relaxed);
        } else if self.broken.fetch_add(1, Ordering::Relaxed) + 1 >= BROKEN_MAX {
            self.no_pieces();
        }
    }

    /// Disables pieces permanently.
    pub(super) fn no_pieces(&self) {
        self.pieces.store(REFUSED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(fields: &[(&str, &str)]) -> Response<()> {
        let mut response = Response::builder();
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    #[test]
    fn batches_are_requested_from_direct_servers_that_offer_them() {
        let offer = Capabilities::default();
        offer.note_response(&response(&[("server", "other")]));
        assert_eq!(offer.in_batch(), 0);
        offer.note_response(&response(&[("esker-batch", "many")]));
        assert_eq!(offer.in_batch(), 0);
        offer.note_response(&response(&[("esker-batch", "1000000")]));
        offer.note_response(&response(&[]));
        assert_eq!(offer.in_batch(), batch::NAMES_MAX);
        offer.note_response(&response(&[("esker-batch", "64"), ("via", "1.1 squid")]));
        offer.note_response(&response(&[("esker-batch", "64")]));
        assert_eq!(offer.in_batch(), 0, "there is a proxy");
    }

    #[test]
    fn pieces_are_requested_from_direct_servers_that_send_ranges() {
        let offer = Capabilities::default();
        for fields in [&[][..], &[("accept-ranges", "none")]] {
            offer.note_response(&response(fields));
            assert!(!offer.has_pieces());
        }
        offer.note_response(&response(&[("accept-ranges", "bytes")]));
        offer.note_response(&response(&[]));
        assert!(offer.has_pieces());
        offer.note_response(&response(&[("age", "3")]));
        offer.note_response(&response(&[("accept-ranges", "bytes")]));
        assert!(!offer.has_pieces(), "there is a proxy");
    }

    #[test]
    fn pieces_are_given_up_after_repeated_broken_connections() {
        let offer = Capabilities::default();
        offer.note_response(&response(&[("accept-ranges", "bytes")]));
        for whole in [false, false, true, false, false] {
            offer.came_in_pieces(whole);
            assert!(offer.has_pieces());
        }
        offer.came_in_pieces(false);
        assert!(!offer.has_pieces());
    }
}
