//! Threads for file operations that may hang, and a watchdog.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::request::LowerRequest;
use crate::priority::Urgency;

/// Time without progress after which a request is withdrawn: longer than any disk takes for a megabyte, far shorter
/// than the deadline of a read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks of the watchdog.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum number of threads of each kind; up to a maximum there is one for each core. Network file systems make them
/// wait.
const THREADS_MIN: usize = 4;
const THREADS_MAX: usize = 16;
/// Niceness of prefetch threads, as in the pool.
const NICE: i32 = 10;
/// Maximum number of objects queued for a shared folder; further ones are dropped.
const LATER_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// A watched request.
pub(super) struct Task {
    request: Mutex<Option<Box<dyn LowerRequest>>>,
    clock: Arc<Clock>,
    /// Time of the last progress; 0 before a thread started with it.
    moved: AtomicU64,
}

/// Time of the last progress of any request, in milliseconds since the watchdog was made, starting at 1.
struct Clock {
    begun: Instant,
    moved: AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).map_or(u64::MAX, |millis| millis.saturating_add(1))
    }
}

impl Task {
    /// Records that the file system replied.
    pub(super) fn moved(&self) {
        let now = self.clock.now();
        self.moved.store(now, Ordering::Relaxed);
        self.clock.moved.store(now, Ordering::Relaxed);
    }

    /// Takes the request, unless the watchdog withdrew it.
    pub(super) fn take(&self) -> Option<Box<dyn LowerRequest>> {
        self.request.lock().take()
    }

    pub(super) fn is_taken(&self) -> bool {
        self.request.lock().is_none()
    }

    /// Returns whether the request makes no progress; before it started, whether no request does.
    fn hangs(&self) -> bool {
        let moved = match self.moved.load(Ordering::Relaxed) {
            0 => self.clock.moved.load(Ordering::Relaxed),
            moved => moved,
        };
        u128::from(self.clock.now().saturating_sub(moved)) >= TIMEOUT.as_millis()
    }
}

/// Threads that access lower tiers. They are never joined: a thread that hangs would hang its caller.
pub(super) struct HangWatchdog {
    state: Mutex<State>,
    clock: Arc<Clock>,
    wake_demand: Condvar,
    wake_prefetch: Condvar,
    watch: Condvar,
    /// Number of withdrawn requests whose thread has not returned yet.
    stuck: AtomicUsize,
    late: AtomicU64,
}

#[derive(Default)]
struct State {
    demand: Line,
    prefetch: Line,
    later: VecDeque<Job>,
    watched: Vec<Arc<Task>>,
    watcher: bool,
    stopping: bool,
}

/// Queue and threads of one urgency.
#[derive(Default)]
struct Line {
    jobs: VecDeque<(Arc<Task>, Job)>,
    threads: usize,
    idle: usize,
}

impl State {
    fn line(&mut self, urgency: Urgency) -> &mut Line {
        match urgency {
            Urgency::Demand => &mut self.demand,
            Urgency::Prefetch => &mut self.prefetch,
        }
    }

    fn next(&mut self, urgency: Urgency) -> Option<Job> {
        let waiting = self.line(urgency).jobs.pop_front().map(|(_, job)| job);
        waiting.or_else(|| (urgency == Urgency::Prefetch).then(|| self.later.pop_front()).flatten())
    }
}

impl HangWatchdog {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            clock: Arc::new(Clock { begun: Instant::now(), moved: AtomicU64::new(1) }),
            wake_demand: Condvar::new(),
            wake_prefetch: Condvar::new(),
            watch: Condvar::new(),
            stuck: AtomicUsize::new(0),
            late: AtomicU64::new(0),
        })
    }

    pub(super) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    fn wake(&self, urgency: Urgency) -> &Condvar {
        match urgency {
            Urgency::Demand => &self.wake_demand,
            Urgency::Prefetch => &self.wake_prefetch,
        }
    }

    /// Runs `job` for a request on a thread. Returns the request if no thread is available or one hangs: callers
    /// needn't find that out again for each object.
    pub(super) fn run(
        self: &Arc<Self>,
        request: Box<dyn LowerRequest>,
        job: impl FnOnce(&Task) + Send + 'static,
    ) -> Result<(), Box<dyn LowerRequest>> {
        let (urgency, priority) = (request.priority().urgency(), request.priority().clone());
        let mut state = self.state.lock();
        let hangs = self.stuck.load(Ordering::Relaxed) > 0;
        if state.stopping || hangs || !self.staff(&mut state, urgency) {
            return Err(request);
        }
        if state.watched.is_empty() {
            // Without requests nothing was expected to move.
            self.clock.moved.store(self.clock.now(), Ordering::Relaxed);
        }
        let (request, moved) = (Mutex::new(Some(request)), AtomicU64::new(0));
        let task = Arc::new(Task { request, clock: self.clock.clone(), moved });
        let (watchdog, ours) = (self.clone(), task.clone());
        let job = Box::new(move || {
            ours.moved();
            // A cancelled request continues with the network, which completes it.
            let pointless =
                ours.request.lock().as_ref().is_none_or(|request| request.priority().give_up_if_pointless());
            if !pointless {
                // A panic is a bug that the hook reports; the request continues with the network.
                let _ = catch_unwind(AssertUnwindSafe(|| job(&ours)));
            }
            watchdog.came_back(&ours);
        });
        state.line(urgency).jobs.push_back((task.clone(), job));
        state.watched.push(task.clone());
        drop(state);
        self.wake(urgency).notify_one();
        self.watch.notify_one();
        if urgency == Urgency::Prefetch {
            let watchdog = Arc::downgrade(self);
            priority.on_raise(move || {
                watchdog.upgrade().into_iter().for_each(|watchdog| watchdog.move_up(&task))
            });
        }
        Ok(())
    }

    /// Turns a prefetch into a demand, unless it has begun.
    fn move_up(self: &Arc<Self>, task: &Arc<Task>) {
        let mut state = self.state.lock();
        let at = state.prefetch.jobs.iter().position(|(waiting, _)| Arc::ptr_eq(waiting, task));
        let Some(job) = at.and_then(|at| state.prefetch.jobs.remove(at)) else { return };
        let urgency =
            if self.staff(&mut state, Urgency::Demand) { Urgency::Demand } else { Urgency::Prefetch };
        state.line(urgency).jobs.push_back(job);
        drop(state);
        self.wake(urgency).notify_one();
    }

    /// Runs a job when the threads are idle; drops it if too many are queued.
    pub(super) fn later(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        let refused =
            state.stopping || state.later.len() >= LATER_MAX || self.stuck.load(Ordering::Relaxed) > 0;
        if !refused && self.staff(&mut state, Urgency::Prefetch) {
            state.later.push_back(Box::new(job));
            drop(state);
            self.wake_prefetch.notify_one();
        }
    }

    /// Makes sure that a thread of this kind and a watchdog are running.
    fn staff(self: &Arc<Self>, state: &mut State, urgency: Urgency) -> bool {
        if !state.watcher {
            let watchdog = self.clone();
            let started = esker_threads::spawn("esker-below-look", move || watchdog.watch());
            state.watcher = started.is_ok();
        }
        let line = state.line(urgency);
        let most = std::thread::available_parallelism().map_or(THREADS_MIN, usize::from);
        if line.idle == 0 && line.threads < most.clamp(THREADS_MIN, THREADS_MAX) {
            let watchdog = self.clone();
            let started = esker_threads::spawn("esker-below", move || watchdog.work(urgency));
            line.threads += usize::from(started.is_ok());
        }
        let any = line.threads > 0;
        any && state.watcher
    }

    fn work(&self, urgency: Urgency) {
        if urgency == Urgency::Prefetch {
            // On Linux it is the calling thread that becomes nice.
            let _ = rustix::process::setpriority_process(None, NICE);
        }
        let mut state = self.state.lock();
        while !state.stopping {
            let Some(job) = state.next(urgency) else {
                state.line(urgency).idle += 1;
                self.wake(urgency).wait(&mut state);
                state.line(urgency).idle -= 1;
                continue;
            };
            drop(state);
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.state.lock();
        }
    }

    /// Records that a thread finished a task.
    fn came_back(&self, task: &Arc<Task>) {
        task.moved();
        let mut state = self.state.lock();
        match state.watched.iter().position(|watched| Arc::ptr_eq(watched, task)) {
            Some(at) => drop(state.watched.swap_remove(at)),
            // The watcher had given it up.
            None if !state.stopping => drop(self.stuck.fetch_sub(1, Ordering::Relaxed)),
            None => {}
        }
        drop(state);
        // It is still here after a panic, and if it is pointless.
        if let Some(request) = task.take() {
            request.not_found();
        }
    }

    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            if state.watched.is_empty() {
                self.watch.wait(&mut state);
                continue;
            }
            self.watch.wait_for(&mut state, POLL_INTERVAL);
            let (hanging, moving): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.watched).into_iter().partition(|task| task.hangs());
            state.watched = moving;
            self.stuck.fetch_add(hanging.len(), Ordering::Relaxed);
            drop(state);
            for request in hanging.iter().filter_map(|task| task.take()) {
                self.late.fetch_add(1, Ordering::Relaxed);
                request.not_found();
            }
            state = self.state.lock();
        }
    }

    /// Ends the threads that don't hang. Queued and hanging requests continue with the network.
    pub(super) fn stop(&self) {
        let (watched, left) = {
            let mut state = self.state.lock();
            state.stopping = true;
            let waiting = (std::mem::take(&mut state.demand.jobs), std::mem::take(&mut state.prefetch.jobs));
            (std::mem::take(&mut state.watched), (waiting, std::mem::take(&mut state.later)))
        };
        self.wake_demand.notify_all();
        self.wake_prefetch.notify_all();
        self.watch.notify_all();
        drop(left);
        watched.iter().filter_map(|task| task.take()).for_each(|request| request.not_found());
    }
}
