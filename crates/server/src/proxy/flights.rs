//! Joins requests for the same thing: one task works, and all get its result.

use std::hash::Hash;
use std::sync::Arc;

use esker_threads::single_flight::{Leader, SingleFlight};
use tokio::sync::oneshot::{self, Sender};

use super::failure::Failure;

type Outcome<V> = Result<V, Failure>;
/// The state is the result, once there is one.
type Tasks<K, V> = SingleFlight<K, Option<Outcome<V>>, Sender<Outcome<V>>>;

/// Tasks in progress by what they work on.
#[derive(Debug)]
pub(crate) struct SharedTasks<K, V>(Arc<Tasks<K, V>>);

impl<K, V> Default for SharedTasks<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Sender of a task's result. Dropped without one, as by a panic, it leaves no task.
pub(crate) struct Announcer<K: Hash + Eq, V>(TaskLeader<K, V>);

type TaskLeader<K, V> = Leader<Arc<Tasks<K, V>>, K, Option<Outcome<V>>, Sender<Outcome<V>>>;

impl<K: Hash + Eq, V: Clone> Announcer<K, V> {
    /// Gives all requests their result, and those that come before this is dropped.
    pub(crate) fn give(&self, outcome: Outcome<V>) {
        let waiters = self.0.change(|task| {
            task.state = Some(outcome.clone());
            std::mem::take(&mut task.waiters)
        });
        send(waiters.unwrap_or_default(), &outcome);
    }

    /// Gives the requests so far their result. A request that comes later starts a new task.
    pub(crate) fn finish(self, outcome: Outcome<V>) {
        send(self.0.end(), &outcome);
    }
}

/// Sends the result to the requests that still wait for it.
fn send<V: Clone>(waiters: Vec<Sender<Outcome<V>>>, outcome: &Outcome<V>) {
    for waiter in waiters {
        let _ = waiter.send(outcome.clone());
    }
}

impl<K, V> SharedTasks<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Joins the task for `key`, or starts one, which goes on even if all requests are gone.
    pub(crate) async fn join<F>(&self, key: K, start: impl FnOnce(Announcer<K, V>) -> F) -> Outcome<V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        match self.0.join(key.clone(), sender, |_| None, |outcome, _| outcome.clone()) {
            Some(Some(outcome)) => return outcome,
            Some(None) => {}
            None => drop(tokio::spawn(start(Announcer(Leader::new(self.0.clone(), key))))),
        }
        receiver.await.unwrap_or(Err(Failure::Ended))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn simultaneous_requests_share_one_task() {
        let flights = Arc::<SharedTasks<u8, u8>>::default();
        let started = Arc::new(AtomicUsize::new(0));
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let (flights, started) = (flights.clone(), started.clone());
                tokio::spawn(async move {
                    let start = |announcer: Announcer<u8, u8>| async move {
                        started.fetch_add(1, Ordering::Relaxed);
                        // All requests are there by then, because there is one thread.
                        tokio::task::yield_now().await;
                        announcer.give(Ok(7));
                    };
                    flights.join(1, start).await
                })
            })
            .collect();
        for request in requests {
            assert_eq!(request.await.expect("no panic").ok(), Some(7));
        }
        assert_eq!(started.load(Ordering::Relaxed), 1);
        assert!(flights.0.is_empty());
    }

    #[tokio::test]
    async fn a_task_without_a_result_is_an_error_and_leaves_nothing() {
        let flights = Arc::<SharedTasks<u8, u8>>::default();
        let outcome = flights.join(1, |announcer| async move { drop(announcer) }).await;
        assert!(matches!(outcome, Err(Failure::Ended)), "{outcome:?}");
        tokio::task::yield_now().await;
        assert!(flights.0.is_empty());
    }

    #[tokio::test]
    async fn a_request_after_the_end_of_a_task_starts_another() {
        let flights = Arc::<SharedTasks<u8, u8>>::default();
        for number in 0..3 {
            let start = |announcer: Announcer<u8, u8>| async move {
                announcer.finish(Ok(number));
                // The task goes on, and nothing joins it.
                std::future::pending().await
            };
            assert_eq!(flights.join(1, start).await.ok(), Some(number));
        }
    }
}
