//! Tracks the progress of a client's requests, to report it to the client.
//!
//! A client doesn't see the transfers that its requests wait for, but its readers have deadlines that count from the
//! last progress. So the writer reports from time to time which of its requests made progress; without progress,
//! nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use esker_store::Progress;
use parking_lot::Mutex;

/// Maximum number of ids in one message, which is far below the size limit.
const IDS_MAX: usize = 2048;

/// Requests of one client without a reply.
#[derive(Default)]
pub(super) struct Requests(Mutex<State>);

#[derive(Default)]
struct State {
    /// Open requests by id, with the progress that was sent to the client.
    open: BTreeMap<u64, (Progress, Option<Instant>)>,
    /// Id of the newest request that the writer has read.
    heard: u64,
}

/// Requests with progress since the previous call.
pub(super) struct ProgressedRequests {
    pub(super) ids: Vec<u64>,
    pub(super) heard: u64,
}

impl Requests {
    /// Adds a request; returns true if it is the only one.
    pub(super) fn begin(&self, id: u64, progress: &Progress) -> bool {
        let mut state = self.0.lock();
        state.heard = state.heard.max(id);
        state.open.insert(id, (progress.clone(), None));
        state.open.len() == 1
    }

    /// Removes a request.
    pub(super) fn end(&self, id: u64) {
        self.0.lock().open.remove(&id);
    }

    /// True if no request is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().open.is_empty()
    }

    /// Returns the requests with progress since the last call; empty if there are none.
    pub(super) fn further(&self) -> Vec<ProgressedRequests> {
        let mut state = self.0.lock();
        let mut ids = Vec::new();
        for (id, (progress, known)) in &mut state.open {
            let last = progress.last();
            if last > *known {
                *known = last;
                ids.push(*id);
            }
        }
        ids.chunks(IDS_MAX).map(|ids| ProgressedRequests { ids: ids.to_vec(), heard: state.heard }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_progress_of_its_own_requests_only() {
        let requests = Requests::default();
        let (first, second) = (Progress::default(), Progress::default());
        requests.begin(3, &first);
        requests.begin(5, &second);
        assert!(requests.further().is_empty());
        second.mark();
        let told = requests.further();
        assert_eq!((told.len(), &*told[0].ids, told[0].heard), (1, &[5][..], 5));
        assert!(requests.further().is_empty(), "it was told before");
        second.mark();
        first.mark();
        assert_eq!(requests.further()[0].ids, [3, 5]);
        requests.end(3);
        first.mark();
        assert!(requests.further().is_empty());
        assert!(!requests.is_empty());
        requests.end(5);
        assert!(requests.is_empty());
    }
}
