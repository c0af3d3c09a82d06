//! Thread pool with one queue for demands and one for prefetches.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::spawn;
use crate::waits;

/// Maximum number of queued prefetches; further ones are dropped.
const AHEAD_MAX: usize = 256;
/// Maximum number of queued demands of a pool on demand; further ones are dropped.
const DEMANDED_MAX: usize = 1 << 16;
/// Idle time after which a thread of a pool on demand ends.
const IDLE: Duration = Duration::from_secs(1);

struct Job {
    run: Box<dyn FnOnce() + Send>,
    queued: Instant,
}

impl Job {
    fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self { run: Box::new(run), queued: Instant::now() }
    }
}

/// Small thread pool. Dropping it ends its threads, without waiting for those that run a job, and drops queued jobs.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    /// Maximum number of threads.
    most: usize,
    /// True if threads start with work and end when they are idle.
    is_on_demand: bool,
    queues: Mutex<Queues>,
    wake: Condvar,
}

#[derive(Default)]
struct Queues {
    demanded: VecDeque<Job>,
    ahead: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// Starts `threads` threads, which run until the pool is dropped.
    pub fn start(name: &'static str, threads: usize) -> io::Result<Self> {
        let pool = Self::new(name, threads, false);
        let mut queues = pool.shared.queues.lock();
        while queues.threads < pool.shared.most {
            pool.shared.add_thread(&mut queues)?;
        }
        drop(queues);
        Ok(pool)
    }

    /// Returns a pool that starts up to `most` threads when it has work.
    pub fn on_demand(name: &'static str, most: usize) -> Self {
        Self::new(name, most, true)
    }

    fn new(name: &'static str, most: usize, is_on_demand: bool) -> Self {
        let (queues, wake) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, most: most.max(1), is_on_demand, queues, wake }) }
    }

    /// Runs `job` as soon as a thread is free; returns false if it was dropped, because the queue is full or no thread
    /// can be started.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queues = self.shared.queues.lock();
        if self.shared.is_on_demand {
            if queues.demanded.len() >= DEMANDED_MAX {
                return false;
            }
            if queues.idle <= queues.demanded.len() && queues.threads < self.shared.most {
                // Another thread may be there to do it.
                let _ = self.shared.add_thread(&mut queues);
            }
            if queues.threads == 0 {
                return false;
            }
        }
        queues.demanded.push_back(Job::new(job));
        self.wake_one(queues);
        true
    }

    /// Runs `job` when no demand is queued; returns false if the queue of prefetches is full.
    pub fn run_ahead(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queues = self.shared.queues.lock();
        if queues.ahead.len() >= AHEAD_MAX {
            return false;
        }
        queues.ahead.push_back(Job::new(job));
        self.wake_one(queues);
        true
    }

    /// Wakes an idle thread for a job that was just queued.
    fn wake_one(&self, queues: MutexGuard<'_, Queues>) {
        let is_any_idle = queues.idle > 0;
        drop(queues);
        if is_any_idle {
            self.shared.wake.notify_one();
        }
    }

    /// Runs `job` and waits for it until the timeout; does not wait if all threads are busy.
    pub fn run_and_wait(&self, job: impl FnOnce() + Send + 'static, timeout: Duration) {
        let is_busy = {
            let queues = self.shared.queues.lock();
            queues.threads == self.shared.most && queues.idle <= queues.demanded.len()
        };
        let (done, over) = sync_channel(1);
        let job = move || {
            job();
            // The caller may have timed out.
            let _ = done.try_send(());
        };
        if self.run(job) && !is_busy {
            // On a disk that does not answer, or without a free core, the job continues after the timeout.
            let _ = over.recv_timeout(timeout);
        }
    }
}

impl Shared {
    fn add_thread(self: &Arc<Self>, queues: &mut Queues) -> io::Result<()> {
        let shared = Arc::clone(self);
        let name = format!("{}-{}", self.name, queues.threads);
        spawn(name, move || shared.work())?;
        queues.threads += 1;
        Ok(())
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            waits::begin_job(job.queued.elapsed());
            // A job that panics drops its own replies, which answers them with an error; other jobs are not affected.
            let _ = catch_unwind(AssertUnwindSafe(job.run));
        }
    }

    /// Waits for the next job; `None` if the thread ends.
    fn next(&self) -> Option<Job> {
        let mut queues = self.queues.lock();
        loop {
            if queues.closed {
                return None;
            }
            if let Some(job) = queues.demanded.pop_front().or_else(|| queues.ahead.pop_front()) {
                return Some(job);
            }
            queues.idle += 1;
            let timed_out = if self.is_on_demand {
                self.wake.wait_for(&mut queues, IDLE).timed_out()
            } else {
                self.wake.wait(&mut queues);
                false
            };
            queues.idle -= 1;
            if timed_out && queues.demanded.is_empty() && queues.ahead.is_empty() {
                queues.threads -= 1;
                return None;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queues = self.shared.queues.lock();
        queues.closed = true;
        let left = (std::mem::take(&mut queues.demanded), std::mem::take(&mut queues.ahead));
        drop(queues);
        self.shared.wake.notify_all();
        // Dropping jobs answers mounts, which may call back, so the lock is not held.
        drop(left);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, channel};

    use super::*;

    #[test]
    fn demands_run_first_and_a_panic_ends_no_thread() {
        for pool in [Pool::start("pool", 1).unwrap(), Pool::on_demand("pool", 1)] {
            let (gate, opened) = mpsc::channel::<()>();
            let (say, said) = mpsc::channel();
            pool.run(move || {
                let _ = opened.recv();
            });
            let (first, second) = (say.clone(), say);
            assert!(pool.run_ahead(move || first.send("ahead").unwrap()));
            pool.run(|| panic!("as a test"));
            pool.run(move || second.send("demanded").unwrap());
            gate.send(()).unwrap();
            let order: Vec<&str> = said.iter().collect();
            assert_eq!(order, ["demanded", "ahead"]);
        }
    }

    #[test]
    fn jobs_still_queued_when_the_pool_is_dropped_are_dropped() {
        let pool = Pool::start("pool", 1).unwrap();
        let (gate, opened) = mpsc::channel::<()>();
        let (started, start) = mpsc::channel();
        pool.run(move || {
            started.send(()).unwrap();
            let _ = opened.recv();
        });
        start.recv().unwrap();
        let (say, said) = mpsc::channel::<()>();
        pool.run(move || drop(say));
        drop(pool);
        assert!(said.recv().is_err());
        drop(gate);
    }

    #[test]
    fn hanging_jobs_block_only_a_few_threads() {
        const THREADS: usize = 4;
        let pool = Pool::on_demand("pool", THREADS);
        let (go_on, hanging) = channel::<()>();
        let hanging = Arc::new(Mutex::new(hanging));
        let (told, done) = channel();
        for number in 0..3 * THREADS {
            let (hanging, told) = (Arc::clone(&hanging), told.clone());
            let job = move || {
                let _ = hanging.lock().recv();
                told.send(number).expect("a listener");
            };
            pool.run_and_wait(job, Duration::from_millis(1));
        }
        assert_eq!(pool.shared.queues.lock().threads, THREADS);
        drop(go_on);
        let mut all: Vec<_> = done.iter().take(3 * THREADS).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * THREADS), "each is done once");
    }
}
