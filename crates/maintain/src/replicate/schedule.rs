//! Replicates many repositories: a bounded number at once, and again when a server announces a revision or time has passed.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use esker_store::{Authorities, SseListener, SseOptions};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use serde::Deserialize;

/// Longest silence of a stream of revisions: three heartbeats of an Esker server.
const SILENCE: Duration = Duration::from_secs(45);
/// First pause after a failed run; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(5);

/// A repository to replicate once or again and again.
pub trait Replicable: Sync {
    /// Result of a run.
    type Outcome: Send;

    /// Returns the name of the repository.
    fn name(&self) -> &str;

    /// Returns the URL of the server that announces revisions, if there is one.
    fn announcer(&self) -> Option<&str>;

    /// Replicates the repository once; blocks.
    fn replicate(&self) -> Self::Outcome;

    /// Returns the revision that is here after a run; `None` after a failure.
    fn revision(outcome: &Self::Outcome) -> Option<u64>;
}

/// Concurrency and interval of the replication of several repositories.
pub struct ReplicationSchedule<'s> {
    /// Maximum number of repositories that are replicated at once.
    pub parallel: usize,
    /// Time between two runs of a repository without announcements; each runs once if `None`.
    pub every: Option<Duration>,
    /// Function that waits until the descriptor is readable or the time has passed; false if all runs are to end.
    pub wait: &'s (dyn Fn(Option<BorrowedFd<'_>>, Duration) -> bool + Sync),
}

impl ReplicationSchedule<'_> {
    /// Replicates repositories, each on a thread of its own, and calls `ended` on this thread after each run. Of those that
    /// run again, `added` returns further ones at the same interval.
    pub fn run<R: Replicable + Send>(
        &self,
        repositories: Vec<R>,
        added: impl Fn() -> Vec<R> + Sync,
        mut ended: impl FnMut(&R, R::Outcome),
    ) {
        let turns = &Turns::new(self.parallel);
        let (sender, results) = channel();
        std::thread::scope(|scope| {
            let start = move |repositories: Vec<R>, sender: &Sender<(Arc<R>, R::Outcome)>| {
                for repository in repositories {
                    let (repository, sender) = (Arc::new(repository), sender.clone());
                    scope.spawn(move || self.follow(&repository, turns, &sender));
                }
            };
            start(repositories, &sender);
            if let Some(every) = self.every {
                let added = &added;
                scope.spawn(move || {
                    while (self.wait)(None, every) {
                        start(added(), &sender);
                    }
                });
            } else {
                drop(sender);
            }
            results.into_iter().for_each(|(repository, outcome)| ended(&repository, outcome));
        });
    }

    /// Replicates a repository once, or until all runs are to end.
    fn follow<R: Replicable>(
        &self,
        repository: &Arc<R>,
        turns: &Turns,
        results: &Sender<(Arc<R>, R::Outcome)>,
    ) {
        let mut follower = self.every.map(|every| Follower::new(&**repository, every));
        loop {
            let outcome = turns.with(|| repository.replicate());
            let revision = R::revision(&outcome);
            // The receiver lives until all senders are gone.
            let _ = results.send((repository.clone(), outcome));
            if !follower.as_mut().is_some_and(|it| it.wait(revision, self.wait)) {
                return;
            }
        }
    }
}

/// A number of places that threads take in turn.
struct Turns {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Turns {
    fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), freed: Condvar::new() }
    }

    /// Does `work` as soon as a place is free.
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        drop(free);
        let done = work();
        *self.free.lock() += 1;
        self.freed.notify_one();
        done
    }
}

/// Waits for new revisions of one repository.
struct Follower {
    every: Duration,
    failures: u32,
    /// Newest revision that is here.
    known: Arc<AtomicU64>,
    /// Readable once a newer revision was announced; none without a stream.
    event: Option<Arc<OwnedFd>>,
    _listener: Option<SseListener>,
}

/// Event of an Esker server.
#[derive(Deserialize)]
struct Announced {
    repository: String,
    revision: u64,
}

impl Follower {
    /// Starts to listen to the server of a repository.
    fn new(repository: &impl Replicable, every: Duration) -> Self {
        let known = Arc::new(AtomicU64::new(0));
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
        let listener = event.as_ref().zip(repository.announcer()).and_then(|(event, url)| {
            let listen = SseOptions {
                url: format!("{url}/.esker/revisions"),
                body: String::new(),
                silence: SILENCE,
                authorities: Authorities::default(),
            };
            let (name, known, event) = (repository.name().to_owned(), known.clone(), event.clone());
            #[expect(clippy::host_endian_bytes, reason = "the kernel adds a number of the host's byte order")]
            let heard = move |data: &[u8]| {
                if is_news(data, &name, known.load(Ordering::Relaxed)) {
                    // A counter that is full is readable as well.
                    let _ = rustix::io::write(&*event, &1_u64.to_ne_bytes());
                }
            };
            // Without a stream, the time decides.
            SseListener::start(listen, Arc::new(heard)).ok()
        });
        Self { every, failures: 0, known, event, _listener: listener }
    }

    /// Notes the revision of a run, none after a failure, and returns the longest wait until the next one.
    fn after(&mut self, revision: Option<u64>) -> Duration {
        let Some(revision) = revision else {
            self.failures = self.failures.saturating_add(1);
            let doubled = PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
            return doubled.min(self.every);
        };
        self.known.store(revision, Ordering::Relaxed);
        self.failures = 0;
        self.every
    }

    /// Waits for the next run; false if there is to be none.
    fn wait(
        &mut self,
        revision: Option<u64>,
        wait: impl Fn(Option<BorrowedFd<'_>>, Duration) -> bool,
    ) -> bool {
        let time = self.after(revision);
        // After a failure, an announcement is no reason to hurry.
        let event = self.event.as_ref().filter(|_| self.failures == 0).map(|event| event.as_fd());
        let goes_on = wait(event, time);
        if let Some(event) = &self.event {
            let _ = rustix::io::read(&**event, &mut [0_u8; 8]);
        }
        goes_on
    }
}

/// Returns true if an event announces a newer revision of a repository.
fn is_news(data: &[u8], name: &str, known: u64) -> bool {
    serde_json::from_slice::<Announced>(data)
        .is_ok_and(|announced| announced.repository == name && announced.revision > known)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn only_a_newer_revision_of_the_repository_is_news() {
        let event = br#"{"repository":"a.test","revision":13,"root_hash":"x"}"#;
        assert!(is_news(event, "a.test", 12));
        assert!(!is_news(event, "a.test", 13) && !is_news(event, "b.test", 1));
        assert!(!is_news(b"nonsense", "a.test", 1));
    }

    /// Fails in every run, and notes how many run at once.
    struct Counted<'c> {
        running: &'c AtomicUsize,
        most: &'c AtomicUsize,
    }

    impl Replicable for Counted<'_> {
        type Outcome = ();

        fn name(&self) -> &str {
            "a.test"
        }

        fn announcer(&self) -> Option<&str> {
            None
        }

        fn replicate(&self) {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            std::thread::yield_now();
            self.running.fetch_sub(1, Ordering::SeqCst);
        }

        fn revision((): &()) -> Option<u64> {
            None
        }
    }

    #[test]
    fn failed_runs_are_repeated_after_doubled_pauses_and_never_beyond_the_bound() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let repositories =
            |count| (0..count).map(|_| Counted { running: &running, most: &most }).collect::<Vec<_>>();
        let waited = Mutex::new(Vec::new());
        let wait = |_: Option<BorrowedFd<'_>>, time: Duration| {
            let mut waited = waited.lock();
            waited.push(time.as_secs());
            waited.len() < 20
        };
        let schedule = ReplicationSchedule { parallel: 2, every: Some(Duration::from_secs(15)), wait: &wait };
        let mut runs = 0;
        schedule.run(repositories(5), Vec::new, |_, ()| runs += 1);
        assert!(most.load(Ordering::SeqCst) <= 2);
        let waited = waited.lock().clone();
        // One more thread waits for repositories that are added.
        assert!(runs < waited.len(), "{runs} runs, {waited:?}");
        assert!(waited.iter().all(|time| [5, 10, 15].contains(time)), "{waited:?}");
        assert!(waited.contains(&15));
        let once = ReplicationSchedule { every: None, ..schedule };
        let mut runs = 0;
        once.run(repositories(5), || panic!("nothing is added to a single run"), |_, ()| runs += 1);
        assert_eq!(runs, 5);
    }

    #[test]
    fn repositories_that_are_added_later_are_followed_too() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = || Counted { running: &running, most: &most };
        let (waits, additions) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wait = |_: Option<BorrowedFd<'_>>, _| waits.fetch_add(1, Ordering::SeqCst) < 40;
        let added = || match additions.fetch_add(1, Ordering::SeqCst) {
            0 => vec![one(), one()],
            _ => Vec::new(),
        };
        let schedule = ReplicationSchedule { parallel: 2, every: Some(Duration::ZERO), wait: &wait };
        let mut seen = std::collections::BTreeSet::new();
        schedule.run(Vec::new(), added, |one, ()| {
            seen.insert(std::ptr::from_ref(one).addr());
        });
        assert_eq!(seen.len(), 2);
        assert!(additions.load(Ordering::SeqCst) > 1);
    }
}
