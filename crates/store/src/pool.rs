//! Threads for hashing, inflating and writing: all cores, demand before prefetch.
//!
//! Each kind of work has as many threads as there are cores, so that either can use all of them. When both want them,
//! the kernel decides: prefetch threads have a high nice value, so a demand gets its core at once, and prefetches
//! hardly slow other programs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::priority::{Priority, Urgency};
use crate::wait_stats::{WaitStats, WaitStatus};

/// Nice value of prefetch threads: about a tenth of a contended core.
const NICE: i32 = 10;

/// Waits of hashing, inflating and writing for a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkStatus {
    /// Waits of demands.
    pub demand: WaitStatus,
    /// Waits of prefetches.
    pub prefetch: WaitStatus,
    /// Waits of jobs of both kinds that were queued while a thread was idle.
    pub idle: WaitStatus,
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    /// Identifies the job in the queue.
    number: u64,
    queued: Instant,
    /// True if a thread was idle when the job was queued.
    was_idle: bool,
    /// True if the job may take long; see [`Pool::spawn_long`].
    is_long: bool,
}

/// A fixed number of threads. Jobs that are left when it is dropped are dropped too.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    demand: Kind,
    prefetch: Kind,
    /// Waits of jobs that were queued while a thread was idle.
    idle_waits: WaitStats,
}

/// Threads and waits of one kind of work.
#[derive(Default)]
struct Kind {
    wake: Condvar,
    waits: WaitStats,
}

#[derive(Default)]
struct State {
    demand: Line,
    prefetch: Line,
    /// Demands that may take long, how many of them run, and how many may.
    long: VecDeque<Job>,
    long_running: usize,
    long_max: usize,
    /// Number of jobs queued so far.
    jobs: u64,
    stopping: bool,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    idle_threads: usize,
}

impl State {
    fn line(&mut self, urgency: Urgency) -> &mut Line {
        match urgency {
            Urgency::Demand => &mut self.demand,
            Urgency::Prefetch => &mut self.prefetch,
        }
    }

    /// Takes the next job for a thread, the oldest that may run.
    fn next(&mut self, urgency: Urgency) -> Option<Job> {
        if urgency == Urgency::Demand && self.long_running < self.long_max {
            let number = |jobs: &VecDeque<Job>| jobs.front().map_or(u64::MAX, |job| job.number);
            if number(&self.long) < number(&self.demand.jobs) {
                self.long_running += 1;
                return self.long.pop_front();
            }
        }
        self.line(urgency).jobs.pop_front()
    }
}

thread_local! {
    /// The queue whose worker this thread is, as an address that is only compared, and its kind of work.
    static WORKS_FOR: Cell<(usize, Urgency)> = const { Cell::new((0, Urgency::Prefetch)) };
}

impl Pool {
    /// Starts one thread of each kind for each core, at least two for demands, because a thread may wait for
    /// the disk.
    pub(crate) fn start() -> std::io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let queue = Arc::<Queue>::default();
        queue.state.lock().long_max = cores.max(2) - 1;
        let mut threads = Vec::new();
        let kinds =
            [(Urgency::Demand, "esker-work", cores.max(2)), (Urgency::Prefetch, "esker-ahead", cores)];
        for (urgency, name, count) in kinds {
            for number in 0..count {
                let queue = queue.clone();
                let name = format!("{name}-{number}");
                threads.push(esker_threads::spawn(name, move || queue.work(urgency))?);
            }
        }
        Ok(Arc::new(Self { queue, threads: Mutex::new(threads) }))
    }

    /// Runs a job on the pool: at once if the caller is one of its threads, and not a nice one for a demand.
    pub(crate) fn run(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        if self.may_run_here(urgency) { job() } else { self.spawn(urgency, job) }
    }

    fn may_run_here(&self, urgency: Urgency) -> bool {
        let (address, kind) = WORKS_FOR.get();
        address == self.queue.address() && kind >= urgency
    }

    /// Runs a job of a request like [`Pool::run`]. While it waits it becomes a demand with its request: the nice
    /// threads get to it late where other programs compute.
    pub(crate) fn run_for(&self, priority: &Priority, job: impl FnOnce() + Send + 'static) {
        let urgency = priority.urgency();
        if self.may_run_here(urgency) {
            return job();
        }
        let Some(number) = self.queue.add(urgency, false, Box::new(job)) else { return };
        if urgency == Urgency::Prefetch {
            let queue = Arc::downgrade(&self.queue);
            priority.on_raise(move || {
                if let Some(queue) = queue.upgrade() {
                    queue.move_up(number);
                }
            });
        }
    }

    /// Queues a job.
    pub(crate) fn spawn(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        self.queue.add(urgency, false, Box::new(job));
    }

    /// Queues a demand that may take long. One thread is always left for other demands.
    pub(crate) fn spawn_long(&self, job: impl FnOnce() + Send + 'static) {
        self.queue.add(Urgency::Demand, true, Box::new(job));
    }

    /// Returns how long jobs waited so far.
    pub(crate) fn status(&self) -> WorkStatus {
        WorkStatus {
            demand: self.queue.demand.waits.status(),
            prefetch: self.queue.prefetch.waits.status(),
            idle: self.queue.idle_waits.status(),
        }
    }

    /// Stops taking jobs, drops those that wait and waits for those that run.
    pub(crate) fn stop(&self) {
        let left = {
            let mut state = self.queue.state.lock();
            state.stopping = true;
            let State { demand, prefetch, long, .. } = &mut *state;
            [&mut demand.jobs, &mut prefetch.jobs, long].map(std::mem::take)
        };
        self.queue.demand.wake.notify_all();
        self.queue.prefetch.wake.notify_all();
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

    fn kind(&self, urgency: Urgency) -> &Kind {
        match urgency {
            Urgency::Demand => &self.demand,
            Urgency::Prefetch => &self.prefetch,
        }
    }

    /// Queues a job; returns its number, unless it was dropped because the pool stops.
    fn add(&self, urgency: Urgency, is_long: bool, run: Box<dyn FnOnce() + Send>) -> Option<u64> {
        let mut state = self.state.lock();
        if state.stopping {
            drop(state);
            return None;
        }
        state.jobs += 1;
        let number = state.jobs;
        let line = state.line(urgency);
        let was_idle = line.idle_threads > line.jobs.len();
        let job = Job { run, number, queued: Instant::now(), was_idle, is_long };
        if is_long { &mut state.long } else { &mut line.jobs }.push_back(job);
        drop(state);
        self.kind(urgency).wake.notify_one();
        Some(number)
    }

    /// Turns a prefetch into a demand, unless it has begun.
    fn move_up(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(at) = state.prefetch.jobs.iter().position(|job| job.number == number) else { return };
        let job = state.prefetch.jobs.remove(at);
        state.demand.jobs.extend(job);
        drop(state);
        self.demand.wake.notify_one();
    }

    fn work(&self, urgency: Urgency) {
        WORKS_FOR.set((self.address(), urgency));
        if urgency == Urgency::Prefetch {
            // On Linux it is the calling thread that becomes nice. Where that is refused, both kinds are equal.
            let _ = rustix::process::setpriority_process(None, NICE);
        }
        let kind = self.kind(urgency);
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return;
            }
            let Some(job) = state.next(urgency) else {
                state.line(urgency).idle_threads += 1;
                kind.wake.wait(&mut state);
                state.line(urgency).idle_threads -= 1;
                continue;
            };
            drop(state);
            let waited = job.queued.elapsed();
            kind.waits.note(waited);
            if job.was_idle {
                self.idle_waits.note(waited);
            }
            // A panic is a bug that the hook reports; the request it served is answered by its drop, and
            // the others still need this thread.
            let _ = catch_unwind(AssertUnwindSafe(job.run));
            state = self.state.lock();
            state.long_running -= usize::from(job.is_long);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_demand_waits_for_no_prefetch() {
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
        let status = pool.status();
        assert_eq!((status.demand.jobs, status.prefetch.jobs), (1, threads as u64 * 2));
    }

    #[test]
    fn long_jobs_leave_a_thread_for_others() {
        let pool = Pool::start().unwrap();
        let count = pool.threads.lock().len() * 2;
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (done, finished) = mpsc::channel();
        for _ in 0..count {
            let (wait, done) = (wait.clone(), done.clone());
            pool.spawn_long(move || {
                let _ = wait.lock().recv();
                done.send("long").unwrap();
            });
        }
        for _ in 0..3 {
            let done = done.clone();
            pool.spawn(Urgency::Demand, move || done.send("short").unwrap());
        }
        assert_eq!([(); 3].map(|()| finished.recv().unwrap()), ["short"; 3]);
        drop((go, done));
        assert_eq!(finished.iter().filter(|what| *what == "long").count(), count);
        assert_eq!(pool.queue.state.lock().long_running, 0);
    }

    /// A job that becomes a demand while it runs continues on a thread of normal priority.
    #[test]
    fn a_prefetch_that_becomes_a_demand_moves_to_a_demand_thread() {
        let pool = Pool::start().unwrap();
        let (told, names) = mpsc::channel();
        let name = || std::thread::current().name().unwrap_or_default().to_owned();
        let again = pool.clone();
        pool.spawn(Urgency::Prefetch, move || {
            told.send(name()).unwrap();
            let same = told.clone();
            again.run(Urgency::Prefetch, move || same.send(name()).unwrap());
            again.run(Urgency::Demand, move || told.send(name()).unwrap());
        });
        let names: Vec<_> = names.iter().collect();
        assert_eq!(names[0], names[1]);
        assert!(names[0].starts_with("esker-ahead") && names[2].starts_with("esker-work"), "{names:?}");
    }

    /// The prefetch threads may be starved for long.
    #[test]
    fn a_waiting_prefetch_moves_ahead_on_demand() {
        let pool = Pool::start().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..pool.threads.lock().len() {
            let wait = wait.clone();
            pool.spawn(Urgency::Prefetch, move || {
                let _ = wait.lock().recv();
            });
        }
        let (told, names) = mpsc::channel();
        let name = move || told.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
        let priority = Priority::new(Urgency::Prefetch);
        pool.run_for(&priority, name);
        priority.raise();
        let ran_on = names.recv().unwrap();
        assert!(ran_on.starts_with("esker-work"), "{ran_on}");
        drop(go);
    }

    #[test]
    fn a_panicking_job_does_not_end_its_thread() {
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
