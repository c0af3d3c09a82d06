//! Rejects damaged objects.

use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_threads::waits::WaitCause;

use crate::callback::Callback;
use crate::pool::Pool;
use crate::transport::source::{Check, Fetch, Source, Stored};
use crate::transport::status::NetworkStatus;

/// Compares the bytes of another source with their expected hash, on the pool, whose thread then completes the
/// request. Damage is an error of that source, so that the source above can retry on another route.
pub(crate) struct Verifying {
    inner: Arc<dyn Source>,
    pool: Arc<Pool>,
}

/// Requirement on the bytes.
enum Need {
    Hash(ContentHash),
    Check(Check),
}

impl Verifying {
    pub(crate) fn new(inner: Arc<dyn Source>, pool: Arc<Pool>) -> Self {
        Self { inner, pool }
    }
}

impl Source for Verifying {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let check = match (fetch.expect, fetch.check.clone()) {
            (None, None) => return self.inner.fetch(fetch, done),
            (Some(expected), _) => Need::Hash(expected),
            (None, Some(check)) => Need::Check(check),
        };
        let pool = self.pool.clone();
        let place = self.describe();
        let asked = fetch.clone();
        let arrived = Callback::new(move |outcome: Result<Stored, _>| match outcome {
            Ok(stored) => {
                fetch.progress.enter(Some(WaitCause::Thread));
                pool.run_for(&fetch.priority.clone(), move || {
                    fetch.progress.enter(Some(WaitCause::Network));
                    let verified = match check {
                        Need::Hash(expected) => stored.verify(&expected, &fetch.progress),
                        Need::Check(check) => stored.look_at(&check),
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
