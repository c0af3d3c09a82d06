//! Tracks the progress of a client's requests, to report it to the client.
//!
//! A client doesn't see the transfers that its requests wait for, but its readers have deadlines that count from the
//! last progress. So the writer reports from time to time which of its requests made progress; without progress,
//! nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use esker_store::Progress;
use parking_lot::Mutex;

/// Ids in one message: far below the longest one.
const IDS_MAX: usize = 2048;

/// The requests of one client that are not answered yet.
#[derive(Default)]
pub(super) struct Requests(Mutex<State>);

#[derive(Default)]
struct State {
    /// Open requests by id, with the progress that the client knows of.
    open: BTreeMap<u64, (Progress, Option<Instant>)>,
    /// The newest request that was heard.
    heard: u64,
}

/// Requests that made progress since the last call.
pub(super) struct Further {
    pub(super) ids: Vec<u64>,
    pub(super) heard: u64,
}

impl Requests {
    /// Records a request; returns whether it is the only one.
    pub(super) fn begin(&self, id: u64, progress: &Progress) -> bool {
        let mut state = self.0.lock();
        state.heard = state.heard.max(id);
        state.open.insert(id, (progress.clone(), None));
        state.open.len() == 1
    }

    /// Removes a request that is answered.
    pub(super) fn end(&self, id: u64) {
        self.0.lock().open.remove(&id);
    }

    /// True if no request is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().open.is_empty()
    }

    /// Returns the requests with progress since the last call; empty if there are none.
    pub(super) fn further(&self) -> Vec<Further> {
        let mut state = self.0.lock();
        let mut ids = Vec::new();
        for (id, (progress, known)) in &mut state.open {
            let last = progress.last();
            if last > *known {
                *known = last;
                ids.push(*id);
            }
        }
        ids.chunks(IDS_MAX).map(|ids| Further { ids: ids.to_vec(), heard: state.heard }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_of_progress_and_of_nothing_else() {
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
