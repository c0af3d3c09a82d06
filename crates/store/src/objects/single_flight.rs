//! Merges concurrent requests for one object into one fetch.

use std::sync::Arc;

use esker_threads::single_flight::SingleFlight as Flights;

use crate::cache::Entry;
use crate::callback::Callback;
use crate::cancel_token::CancelToken;
use crate::error::{Cause, StoreError};
use crate::objects::handle::Handle;
use crate::objects::object_store::Warmed;
use crate::objects::request::{CacheKey, ObjectRequest};
use crate::objects::{FetchJob, PrefetchPermit, StoreState};
use crate::priority::{Priority, Urgency};
use crate::progress::{Progress, Requester};

/// Fetches in progress, and the requests that wait for each. One per cache, so that requests of several repositories
/// for the same object meet.
pub(crate) struct SingleFlight(Flights<CacheKey, (Priority, Progress), Waiter>);

/// Number of shards: enough that misses of different objects rarely meet.
const SHARDS: usize = 64;

impl Default for SingleFlight {
    fn default() -> Self {
        Self(Flights::with_shards(SHARDS))
    }
}

/// Request that waits for an object.
pub(crate) struct Waiter {
    pub(crate) store: Arc<StoreState>,
    pub(crate) wanted: ObjectRequest,
    pub(crate) answer: Answer,
}

/// Kind of result that a request waits for.
pub(crate) enum Answer {
    /// The opened object.
    Open(Callback<Handle>),
    /// Nothing: the object is checked ahead of its use.
    Checked { _permit: PrefetchPermit },
    /// Notification that the object is in the cache.
    Warm { token: CancelToken, done: Callback<Warmed>, permit: PrefetchPermit },
}

impl Answer {
    fn priority(&self, requester: &Requester) -> Priority {
        match self {
            Answer::Open(_) => Priority::demand(requester.user),
            Answer::Checked { .. } => Priority::new(Urgency::Prefetch),
            Answer::Warm { token, .. } => Priority::prefetch(token.clone()),
        }
    }

    /// Returns true if the object must be opened, and so checked.
    fn is_open(&self) -> bool {
        !matches!(self, Answer::Warm { .. })
    }
}

impl Waiter {
    fn fail(self, error: StoreError) {
        match self.answer {
            Answer::Open(done) => done.err(error),
            Answer::Checked { .. } => {}
            Answer::Warm { done, permit, .. } => {
                drop(permit);
                done.err(error);
            }
        }
    }

    fn start_over(self) {
        match self.answer {
            Answer::Open(done) => self.store.get(self.wanted, done),
            Answer::Checked { .. } => {}
            Answer::Warm { token, done, permit } => {
                self.store.warm_with_permit(self.wanted, token, done, permit)
            }
        }
    }
}

impl SingleFlight {
    /// Joins the flight for this object. Returns its priority and progress if there was none, so that the caller leads.
    pub(crate) fn join(&self, waiter: Waiter) -> Option<(Priority, Progress)> {
        let requester = waiter.wanted.requester.clone();
        let is_demand = matches!(waiter.answer, Answer::Open(_));
        let mut leading = None;
        let start = |waiter: &Waiter| {
            let (priority, progress) = (waiter.answer.priority(&requester), Progress::default());
            requester.progress.follow(&progress);
            leading.insert((priority, progress)).clone()
        };
        let joined = |(priority, progress): &mut (Priority, Progress), waiter: &Waiter| {
            requester.progress.follow(progress);
            if let Answer::Warm { token, .. } = &waiter.answer {
                priority.also_for(token.clone());
            }
            priority.clone()
        };
        let joined = self.0.join(waiter.wanted.key(), waiter, start, joined);
        if let Some(priority) = joined.filter(|_| is_demand) {
            priority.joined(requester.user);
        }
        leading
    }

    /// Completes all requests that only need the object in the cache; returns the job if other requests remain.
    /// Ends the fetch if none needs more; otherwise returns the job.
    pub(crate) fn complete_warm(&self, mut job: FetchJob, entry: &Entry) -> Option<FetchJob> {
        let key = job.wanted.key();
        let mut warm = Vec::new();
        let ended = self.0.end_if(&key, |flight| {
            warm = flight.waiters.extract_if(.., |waiter| !waiter.answer.is_open()).collect();
            flight.waiters.is_empty()
        });
        if ended.is_some() {
            job.is_completed = true;
            job.progress.enter(None);
        }
        for waiter in warm {
            tell_warm(waiter, &mut job, entry.plain_len);
        }
        ended.is_none().then_some(job)
    }

    /// Ends the fetch and completes all requests.
    pub(crate) fn complete(&self, job: &mut FetchJob, outcome: Result<Handle, StoreError>) {
        // First: from here on others may set out for the same object.
        job.is_completed = true;
        job.progress.enter(None);
        let waiters = self.0.end(&job.wanted.key());
        let handle = match outcome {
            Ok(handle) => handle,
            Err(error) => return fail(job, waiters, &error),
        };
        let (mut open, warm): (Vec<_>, Vec<_>) =
            waiters.into_iter().partition(|waiter| waiter.answer.is_open());
        for waiter in warm {
            tell_warm(waiter, job, handle.len());
        }
        let last = open.pop();
        for waiter in open {
            tell_open(waiter, handle.clone());
        }
        // Not a clone: once the last request is completed, no handle of ours is left.
        if let Some(waiter) = last {
            tell_open(waiter, handle);
        }
    }
}

fn tell_open(waiter: Waiter, handle: Handle) {
    let Answer::Open(done) = waiter.answer else { return };
    done.give(waiter.store.fitting(&waiter.wanted, handle.len()).map(|()| handle));
}

fn tell_warm(waiter: Waiter, job: &mut FetchJob, plain_len: u64) {
    let Answer::Warm { done, permit, .. } = waiter.answer else { return };
    // First, so that the callback may start the next prefetch.
    drop(permit);
    // Requests that joined cost nothing.
    let fetched = if job.is_prefetch { job.fetched.take() } else { None };
    let warmed = fetched.map_or(Warmed::Here, Warmed::Fetched);
    done.give(waiter.store.fitting(&waiter.wanted, plain_len).map(|()| warmed));
}

/// Completes requests with a failure. Requests that joined with other conditions than the leader's (another
/// repository, another size) may succeed, so they start over; so do demands that joined a prefetch after it was given
/// up.
fn fail(job: &FetchJob, waiters: Vec<Waiter>, error: &StoreError) {
    let given_up = job.priority.is_given_up();
    let called_off = matches!(error.cause(), Cause::Cancelled);
    let starts_over = |waiter: &Waiter| {
        !job.stands_for(waiter)
            || match &waiter.answer {
                Answer::Open(_) => given_up,
                Answer::Checked { .. } => false,
                Answer::Warm { token, .. } => called_off && !token.is_cancelled(),
            }
    };
    let (other, same): (Vec<_>, Vec<_>) = waiters.into_iter().partition(starts_over);
    let traffic = &job.store.traffic;
    if same.iter().any(|waiter| matches!(waiter.answer, Answer::Open(_))) {
        traffic.note_failure(error);
    } else if !called_off {
        traffic.note_failed_prefetch();
    }
    for waiter in same {
        let error = error.clone().on(waiter.wanted.label());
        waiter.fail(error);
    }
    for waiter in other {
        waiter.start_over();
    }
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::object::{ObjectKind, ObjectName};
    use parking_lot::Mutex;

    use super::*;
    use crate::cache::{Cache, CacheOptions};
    use crate::engine::{Engine, EngineOptions};
    use crate::objects::Objects;
    use crate::objects::object_store::ObjectStore;
    use crate::priority::Urgency;
    use crate::transport::source::{Fetch, Source, Stored};

    /// Gives up a prefetch, unless a demand has joined it.
    #[derive(Default)]
    struct GivesUp(Mutex<Vec<(Fetch, Callback<Stored>)>>);

    impl Source for GivesUp {
        fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
            if fetch.priority.give_up() {
                self.0.lock().push((fetch, done));
            } else {
                done.ok(Stored::in_memory(b"bytes".to_vec()));
            }
        }

        fn describe(&self) -> String {
            "a test".to_owned()
        }
    }

    #[test]
    fn a_demand_that_joined_too_late_starts_over() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let cache = Cache::open(&engine, folder.path(), CacheOptions::with_quota(1 << 30)).unwrap();
        let source = Arc::<GivesUp>::default();
        let store = Objects::new(&cache, source.clone());
        let hash = ContentHash::of(HashAlgorithm::Sha1, b"bytes");
        let wanted =
            ObjectRequest::new(ObjectName::new(hash, ObjectKind::File), Compression::Stored, "/a/file");
        let (told, outcome) = std::sync::mpsc::channel();
        store.warm(
            wanted.clone(),
            &CancelToken::new(),
            Callback::new(move |warmed| told.send(warmed).unwrap()),
        );
        let (told, demanded) = std::sync::mpsc::channel();
        store.get(wanted, Callback::new(move |got| told.send(got).unwrap()));
        let (fetch, done) = source.0.lock().pop().unwrap();
        assert_eq!(fetch.priority.urgency(), Urgency::Prefetch);
        done.err(StoreError::new("it", Cause::Status(503)));
        assert!(outcome.recv().unwrap().is_err());
        assert_eq!(demanded.recv().unwrap().unwrap().read_all().unwrap(), b"bytes");
    }
}
