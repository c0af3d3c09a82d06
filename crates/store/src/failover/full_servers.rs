//! A partial replica, and servers with the whole repository for what it leaves out.
//!
//! Source: `CVMFS_PARTIAL_REPLICA_MODE=failover` of CernVM-FS 2.14.

use std::sync::Arc;

use crate::callback::Callback;
use crate::error::Cause;
use crate::transport::source::{Fetch, Source, Stored};
use crate::transport::status::NetworkStatus;

/// A partial replica whose missing objects are requested from servers with the whole repository.
pub(crate) struct Partial {
    pub(crate) replica: Arc<dyn Source>,
    pub(crate) full: Arc<dyn Source>,
}

impl Source for Partial {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        // The head is that of the replica, which may be behind.
        if !fetch.path.starts_with("data/") {
            return self.replica.fetch(fetch, done);
        }
        let (full, again) = (self.full.clone(), fetch.clone());
        let answered = Callback::new(move |outcome| match outcome {
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => full.fetch(again, done),
            outcome => done.give(outcome),
        });
        self.replica.fetch(fetch, answered);
    }

    fn describe(&self) -> String {
        self.replica.describe()
    }

    fn routes(&self) -> usize {
        self.replica.routes()
    }

    fn network(&self) -> NetworkStatus {
        self.replica.network()
    }
}
