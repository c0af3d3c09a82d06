//! Repeats failed requests for objects, so that a passing fault of one of them doesn't end a run.
//!
//! A run of hours meets faults that a mount does not: a load balancer whose servers restart in turn, answers that ask for a
//! pause, transfers that break off. Each request is repeated by itself, with growing pauses, a bounded number of times; the
//! others go on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_repository::random;
use esker_store::{Callback, Cause, Fetch, Priority, Source, StoreError, Stored, Urgency};
use parking_lot::{Condvar, Mutex};

use super::fetcher::STOP_EVERY;
use super::options::Retries;

/// A source that repeats failed requests.
pub(super) struct Retrying(Arc<Shared>);

struct Shared {
    inner: Arc<dyn Source>,
    retries: Retries,
    /// Set to stop early: what waits then fails.
    stop: Arc<AtomicBool>,
    waiting: Mutex<Vec<Waiting>>,
    added: Condvar,
}

/// A failed request that is sent again later.
struct Waiting {
    at: Instant,
    request: Request,
    error: StoreError,
}

struct Request {
    fetch: Fetch,
    /// Failed attempts.
    failed: u32,
    done: Callback<Stored>,
}

impl Retrying {
    /// Starts the thread that sends requests again; it ends with the last of them.
    pub(super) fn start(inner: Arc<dyn Source>, retries: Retries, stop: Arc<AtomicBool>) -> Self {
        let (waiting, added) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { inner, retries, stop, waiting, added });
        let repeating = shared.clone();
        std::thread::spawn(move || repeating.repeat());
        Self(shared)
    }
}

impl Source for Retrying {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        self.0.send(Request { fetch, failed: 0, done });
    }

    fn describe(&self) -> String {
        self.0.inner.describe()
    }
}

impl Shared {
    /// Sends a request; if it fails and may be repeated, it goes to those that wait.
    fn send(self: &Arc<Self>, request: Request) {
        let Request { fetch, failed, done } = request;
        let (again, shared) = (fetch.clone(), self.clone());
        let received = Callback::new(move |outcome: Result<Stored, StoreError>| {
            let error = match outcome {
                Err(error) if failed < shared.retries.number => error,
                outcome => return done.give(outcome),
            };
            let Some(pause) = shared.retries.pause(failed, &error) else { return done.err(error) };
            tracing::debug!(%error, "a request is repeated in {:.1} s", pause.as_secs_f64());
            // Past caches, which may have kept the damaged bytes; and a prefetch is given up too easily.
            let mut fetch = Fetch { priority: Priority::new(Urgency::Demand), ..again };
            fetch.http.fresh = true;
            let request = Request { fetch, failed: failed + 1, done };
            shared.waiting.lock().push(Waiting { at: Instant::now() + pause, request, error });
            shared.added.notify_one();
        });
        self.inner.fetch(fetch, received);
    }

    /// Sends requests again when their time has come, until nothing else has this any more.
    fn repeat(self: Arc<Self>) {
        loop {
            let mut waiting = self.waiting.lock();
            if waiting.is_empty() && Arc::strong_count(&self) == 1 {
                return;
            }
            let (now, is_stopped) = (Instant::now(), self.stop.load(Ordering::Relaxed));
            let due: Vec<Waiting> = waiting.extract_if(.., |one| is_stopped || one.at <= now).collect();
            if due.is_empty() {
                let next = waiting.iter().map(|one| one.at.saturating_duration_since(now)).min();
                self.added.wait_for(&mut waiting, next.unwrap_or(STOP_EVERY).min(STOP_EVERY));
                continue;
            }
            drop(waiting);
            for Waiting { request, error, .. } in due {
                if is_stopped { request.done.err(error) } else { self.send(request) }
            }
        }
    }
}

impl Retries {
    /// Returns the pause before the next attempt; none if another one is useless.
    fn pause(&self, failed: u32, error: &StoreError) -> Option<Duration> {
        let limit = self.first_pause.saturating_mul(1 << failed.min(16)).min(self.longest_pause);
        // Half of it is random, so that requests that failed together are not repeated together.
        let own = limit.mul_f64(0.5 + random::number() as f64 / u64::MAX as f64 / 2.0);
        match error.cause() {
            Cause::Overloaded { after, .. } => (*after <= self.longest_asked).then(|| *after + own),
            Cause::Disk { .. } | Cause::Bucket { .. } => None,
            // Prefetches are, while their server fails.
            Cause::Cancelled => Some(own),
            // Another server behind the same name, or another attempt, may send the right bytes.
            Cause::Corrupt { .. }
            | Cause::Undecodable(_)
            | Cause::WrongSize { .. }
            | Cause::TooLarge { .. } => Some(own),
            _ => error.may_pass().then_some(own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(cause: Cause) -> StoreError {
        StoreError::new("an object", cause)
    }

    #[test]
    fn pauses_grow_to_a_limit_and_follow_what_the_server_asks_for() {
        let retries = Retries::default();
        let of = |failed, cause| retries.pause(failed, &error(cause));
        let mut limit = retries.first_pause;
        for failed in 0..retries.number {
            let pause = of(failed, Cause::Status(500)).unwrap();
            assert!(pause <= limit && pause >= limit / 2, "{failed}: {pause:?}");
            limit = (limit * 2).min(retries.longest_pause);
        }
        let asked = |seconds| Cause::Overloaded { status: 429, after: Duration::from_secs(seconds) };
        assert!(of(0, asked(30)).unwrap() >= Duration::from_secs(30));
        assert_eq!(of(0, asked(3600)), None);
        assert_eq!(of(0, Cause::Status(403)), None);
        assert_eq!(of(0, Cause::Missing { status: "404".to_owned() }), None);
    }
}
