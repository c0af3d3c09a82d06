//! What a server offers beside single whole files, as it says with what is fetched from it anyway.
//!
//! Both are for a server that is asked directly. A proxy on the way would see other combinations and parts of objects each
//! time, and keep none of them for others.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use esker_format::batch;
use hyper::{Response, header};

/// Fields of answers that tell of a proxy on the way.
const OF_PROXIES: [&str; 4] = ["via", "x-cache", "age", "x-varnish"];
/// Stands for a site that is never asked for batches again.
const NEVER: usize = usize::MAX;

/// What is known of a site.
#[derive(Default)]
pub(super) struct Offer {
    batch: AtomicUsize,
    pieces: AtomicU8,
    /// Objects in a row of which a piece broke off.
    broken: AtomicU8,
}

/// So many objects in a row of which a piece broke off are no accident: somebody counts connections.
const BROKEN_MAX: u8 = 3;

/// Whether parts of objects are asked for.
const UNKNOWN: u8 = 0;
const OFFERED: u8 = 1;
const REFUSED: u8 = 2;

impl Offer {
    /// Reads what an answer says.
    pub(super) fn hear<T>(&self, response: &Response<T>) {
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
            // Whoever refused meanwhile stays refused.
            let _ = self.pieces.compare_exchange(UNKNOWN, OFFERED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// How many objects a batch may have; 0 or 1 for none.
    pub(super) fn in_batch(&self) -> usize {
        match self.batch.load(Ordering::Relaxed) {
            NEVER => 0,
            most => most,
        }
    }

    /// Ends batches for good.
    pub(super) fn no_batches(&self) {
        self.batch.store(NEVER, Ordering::Relaxed);
    }

    /// Whether an object may be asked for in pieces.
    pub(super) fn has_pieces(&self) -> bool {
        self.pieces.load(Ordering::Relaxed) == OFFERED
    }

    /// Takes note of an object that came in pieces, or of which one broke off.
    pub(super) fn came_in_pieces(&self, whole: bool) {
        if whole {
            self.broken.store(0, Ordering::Relaxed);
        } else if self.broken.fetch_add(1, Ordering::Relaxed) + 1 >= BROKEN_MAX {
            self.no_pieces();
        }
    }

    /// Ends pieces for good.
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
    fn batches_are_asked_of_servers_that_offer_them_directly() {
        let offer = Offer::default();
        offer.hear(&response(&[("server", "other")]));
        assert_eq!(offer.in_batch(), 0);
        offer.hear(&response(&[("esker-batch", "many")]));
        assert_eq!(offer.in_batch(), 0);
        offer.hear(&response(&[("esker-batch", "1000000")]));
        offer.hear(&response(&[]));
        assert_eq!(offer.in_batch(), batch::NAMES_MAX);
        offer.hear(&response(&[("esker-batch", "64"), ("via", "1.1 squid")]));
        offer.hear(&response(&[("esker-batch", "64")]));
        assert_eq!(offer.in_batch(), 0, "there is a proxy");
    }

    #[test]
    fn pieces_are_asked_of_servers_that_send_parts_directly() {
        let offer = Offer::default();
        for fields in [&[][..], &[("accept-ranges", "none")]] {
            offer.hear(&response(fields));
            assert!(!offer.has_pieces());
        }
        offer.hear(&response(&[("accept-ranges", "bytes")]));
        offer.hear(&response(&[]));
        assert!(offer.has_pieces());
        offer.hear(&response(&[("age", "3")]));
        offer.hear(&response(&[("accept-ranges", "bytes")]));
        assert!(!offer.has_pieces(), "there is a proxy");
    }

    #[test]
    fn pieces_that_break_off_again_and_again_are_not_asked_for() {
        let offer = Offer::default();
        offer.hear(&response(&[("accept-ranges", "bytes")]));
        for whole in [false, false, true, false, false] {
            offer.came_in_pieces(whole);
            assert!(offer.has_pieces());
        }
        offer.came_in_pieces(false);
        assert!(!offer.has_pieces());
    }
}
