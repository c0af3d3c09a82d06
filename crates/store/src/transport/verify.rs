//! Rejects damaged objects.

use std::sync::Arc;

use esker_threads::waits::WaitCause;

use crate::callback::Callback;
use crate::pool::Pool;
use crate::transport::source::{Expected, Fetch, Source, Stored};
use crate::transport::status::NetworkStatus;

/// Compares the bytes of another source with their expected hash, on the pool, whose thread then completes the
/// request. Damage is an error of that source, so that the source above can retry on another route.
pub(crate) struct Verifying {
    inner: Arc<dyn Source>,
    pool: Arc<Pool>,
}

impl Verifying {
    pub(crate) fn new(inner: Arc<dyn Source>, pool: Arc<Pool>) -> Self {
        Self { inner, pool }
    }
}

impl Source for Verifying {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        if matches!(fetch.expected, Expected::Any) {
            return self.inner.fetch(fetch, done);
        }
        let pool = self.pool.clone();
        let place = self.describe();
        let asked = fetch.clone();
        let arrived = Callback::new(move |outcome: Result<Stored, _>| match outcome {
            Ok(stored) => {
                fetch.progress.enter(Some(WaitCause::Thread));
                pool.run_for(&fetch.priority.clone(), move || {
                    fetch.progress.enter(Some(WaitCause::Network));
                    let verified = match &fetch.expected {
                        Expected::Hash(hash) => stored.verify(hash, &fetch.progress),
                        Expected::Checked(check) => stored.look_at(check),
                        Expected::Any => Ok(stored),
                    };
                    done.give(verified.map_err(|cause| fetch.error(cause).from_place(place)));
                })
            }
            Err(error) => done.err(error),
        });
        self.inner.fetch(asked, arrived);
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn network(&self) -> NetworkStatus {
        self.inner.network()
    }
}
