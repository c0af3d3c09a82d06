//! Thread pool that reads and decompresses, so that threads that serve a mount never block.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of queued prefetches; further ones are dropped.
const AHEAD_MAX: usize = 256;

#[derive(Default)]
struct Queues {
    demanded: VecDeque<Job>,
    ahead: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct PoolState {
    queues: Mutex<Queues>,
    wake: Condvar,
}

/// Small thread pool with one queue for demands and one for prefetches. Dropping it ends the threads and
/// drops queued jobs.
pub(crate) struct Pool {
    shared: Arc<PoolState>,
}

impl Pool {
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let pool = Self { shared: Arc::default() };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            thread::Builder::new().name(format!("image-{number}")).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Runs `job` as soon as a thread is free.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut queues = self.shared.queues.lock();
        queues.demanded.push_back(Box::new(job));
        if queues.idle > 0 {
            drop(queues);
            self.shared.wake.notify_one();
        }
    }

    /// Runs `job` when no demand is queued; returns false if the prefetch queue is full.
    pub(crate) fn run_ahead(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queues = self.shared.queues.lock();
        if queues.ahead.len() >= AHEAD_MAX {
            return false;
        }
        queues.ahead.push_back(Box::new(job));
        if queues.idle > 0 {
            drop(queues);
            self.shared.wake.notify_one();
        }
        true
    }
}

impl PoolState {
    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics drops its own replies, which answers them with an error; other jobs are not
            // affected.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

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
            self.wake.wait(&mut queues);
            queues.idle -= 1;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn demands_run_first_and_a_panic_ends_no_thread() {
        let pool = Pool::new(1).unwrap();
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

    #[test]
    fn jobs_still_queued_when_the_pool_is_dropped_are_dropped() {
        let pool = Pool::new(1).unwrap();
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
}
