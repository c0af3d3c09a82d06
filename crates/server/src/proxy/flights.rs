//! Joins requests for the same thing: one task works, and all get its result.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::failure::Failure;

type Outcome<V> = Result<V, Failure>;
type Receiver<V> = watch::Receiver<Option<Outcome<V>>>;

/// Tasks in progress by what they work on.
#[derive(Debug)]
pub(crate) struct Flights<K, V>(Mutex<HashMap<K, Receiver<V>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Sender of a task's result. The task may go on afterwards, and requests join it until it ends.
#[derive(Debug)]
pub(crate) struct Announcer<V>(watch::Sender<Option<Outcome<V>>>);

impl<V> Announcer<V> {
    /// Gives all requests their result.
    pub(crate) fn give(&self, outcome: Outcome<V>) {
        self.0.send_replace(Some(outcome));
    }
}

/// Entry of a running task, removed on drop, so that a panic leaves none.
struct Entry<K: Hash + Eq, V>(Arc<Flights<K, V>>, K);

impl<K: Hash + Eq, V> Drop for Entry<K, V> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

impl<K, V> Flights<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Joins the task for `key`, or starts one, which goes on even if all requests are gone.
    pub(crate) async fn join<F>(self: &Arc<Self>, key: K, start: impl FnOnce(Announcer<V>) -> F) -> Outcome<V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut receiver = {
            let mut flights = self.0.lock();
            match flights.get(&key) {
                Some(receiver) => receiver.clone(),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    flights.insert(key.clone(), receiver.clone());
                    let (entry, task) = (Entry(self.clone(), key), start(Announcer(sender)));
                    tokio::spawn(async move {
                        task.await;
                        drop(entry);
                    });
                    receiver
                }
            }
        };
        match receiver.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(Failure::Ended)),
            Err(_) => Err(Failure::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn simultaneous_requests_share_one_task() {
        let flights = Arc::<Flights<u8, u8>>::default();
        let started = Arc::new(AtomicUsize::new(0));
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let (flights, started) = (flights.clone(), started.clone());
                tokio::spawn(async move {
                    let start = |announcer: Announcer<u8>| async move {
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
        assert!(flights.0.lock().is_empty());
    }

    #[tokio::test]
    async fn a_task_without_a_result_is_an_error_and_leaves_nothing() {
        let flights = Arc::<Flights<u8, u8>>::default();
        let outcome = flights.join(1, |_| async {}).await;
        assert!(matches!(outcome, Err(Failure::Ended)), "{outcome:?}");
        tokio::task::yield_now().await;
        assert!(flights.0.lock().is_empty());
    }
}
