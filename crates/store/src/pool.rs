//! Threads for hashing, inflating and writing: all cores, demand before prefetch.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::urgency::Urgency;

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads. Jobs that are left when it is dropped are dropped too.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// One thread less than there are, so that a demand never waits for a long prefetch job.
    prefetch_max: usize,
}

#[derive(Default)]
struct State {
    demand: VecDeque<Job>,
    prefetch: VecDeque<Job>,
    prefetch_running: usize,
    stopping: bool,
}

thread_local! {
    /// The queue whose worker this thread is, as an address that is only compared.
    static WORKS_FOR: Cell<usize> = const { Cell::new(0) };
}

impl Pool {
    /// Starts one thread a core, at least two: a thread may wait for the disk.
    pub(crate) fn start() -> std::io::Result<Arc<Self>> {
        let count = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let queue =
            Arc::new(Queue { state: Mutex::default(), wake: Condvar::new(), prefetch_max: count - 1 });
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let queue = queue.clone();
            let name = format!("esker-work-{number}");
            threads.push(std::thread::Builder::new().name(name).spawn(move || queue.work())?);
        }
        Ok(Arc::new(Self { queue, threads: Mutex::new(threads) }))
    }

    /// Runs a job on the pool: at once if the caller is one of its threads.
    pub(crate) fn run(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        if WORKS_FOR.get() == self.queue.address() { job() } else { self.spawn(urgency, job) }
    }

    /// Queues a job.
    pub(crate) fn spawn(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        let mut state = self.queue.state.lock();
        if state.stopping {
            drop(state);
            return;
        }
        match urgency {
            Urgency::Demand => state.demand.push_back(Box::new(job)),
            Urgency::Prefetch => state.prefetch.push_back(Box::new(job)),
        }
        drop(state);
        self.queue.wake.notify_one();
    }

    /// Stops taking jobs, drops those that wait and waits for those that run.
    pub(crate) fn stop(&self) {
        let left = {
            let mut state = self.queue.state.lock();
            state.stopping = true;
            (std::mem::take(&mut state.demand), std::mem::take(&mut state.prefetch))
        };
        self.queue.wake.notify_all();
        drop(left);
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // The last owner may let go on a worker; a thread can't wait for itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Queue {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn work(&self) {
        WORKS_FOR.set(self.address());
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return;
            }
            let (job, prefetch) = if let Some(job) = state.demand.pop_front() {
                (job, false)
            } else if state.prefetch_running < self.prefetch_max
                && let Some(job) = state.prefetch.pop_front()
            {
                (job, true)
            } else {
                self.wake.wait(&mut state);
                continue;
            };
            state.prefetch_running += usize::from(prefetch);
            drop(state);
            // A panic is a bug that the hook reports; the request it served is answered by its drop, and
            // the others still need this thread.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.state.lock();
            state.prefetch_running -= usize::from(prefetch);
            if prefetch && !state.prefetch.is_empty() {
                self.wake.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn demand_overtakes_prefetch_and_one_thread_is_kept_for_it() {
        let pool = Pool::start().unwrap();
        let threads = pool.threads.lock().len();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (done, finished) = mpsc::channel();
        for _ in 0..threads * 2 {
            let (wait, done) = (wait.clone(), done.clone());
            pool.spawn(Urgency::Prefetch, move || {
                let _ = wait.lock().recv();
                done.send("prefetch").unwrap();
            });
        }
        let demand = done.clone();
        pool.spawn(Urgency::Demand, move || demand.send("demand").unwrap());
        assert_eq!(finished.recv().unwrap(), "demand");
        drop(go);
        assert_eq!(finished.iter().take(threads * 2).filter(|what| *what == "prefetch").count(), threads * 2);
    }

    #[test]
    fn a_panicking_job_costs_no_thread() {
        let pool = Pool::start().unwrap();
        let (done, finished) = mpsc::channel();
        for _ in 0..8 {
            pool.spawn(Urgency::Demand, || panic!("on purpose"));
            let done = done.clone();
            pool.spawn(Urgency::Demand, move || done.send(()).unwrap());
        }
        drop(done);
        assert_eq!(finished.iter().count(), 8);
    }
}
