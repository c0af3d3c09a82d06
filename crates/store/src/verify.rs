//! The source that lets no damaged object through.

use std::sync::Arc;

use esker_format::hash::ContentHash;

use crate::done::Done;
use crate::pool::Pool;
use crate::source::{Check, Fetch, Source, Stored};
use crate::status::NetworkStatus;

/// Compares what comes from another source with the hash it must have, on the pool, whose thread then gives
/// the answer. A damaged answer is an error of that source, so that whoever is stacked above can ask again
/// or elsewhere.
pub(crate) struct Verifying {
    inner: Arc<dyn Source>,
    pool: Arc<Pool>,
}

/// What bytes must have or be.
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
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let check = match (fetch.expect, fetch.check.clone()) {
            (None, None) => return self.inner.fetch(fetch, done),
            (Some(expected), _) => Need::Hash(expected),
            (None, Some(check)) => Need::Check(check),
        };
        let pool = self.pool.clone();
        let place = self.describe();
        let asked = fetch.clone();
        let arrived = Done::new(move |outcome: Result<Stored, _>| match outcome {
            Ok(stored) => pool.run_for(&fetch.priority.clone(), move || {
                let verified = match check {
                    Need::Hash(expected) => stored.verify(&expected, &fetch.progress),
                    Need::Check(check) => stored.look_at(&check),
                };
                done.give(verified.map_err(|cause| fetch.error(cause).from_place(place)));
            }),
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
