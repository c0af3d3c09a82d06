//! The pool of workers that read requests from the kernel.
//!
//! The kernel wakes a sleeping reader for each request, another one each time, and waking a thread costs both sides
//! more than most replies do: a quarter of all processor time of a warm start (decision 0056). So as long as one
//! worker keeps up it serves alone, and spins for a moment for the next request instead of sleeping. The others are
//! parked. They are unparked when requests are left over, and when the only listening worker has been in the tree for
//! longer than [`LONG`]: it may wait for a disk, and later requests must not wait with it. The watchdog checks that
//! every [`LONG`] as long as requests come, since setting and clearing a timer for each of them costs more. If a disk
//! doesn't answer at all, all workers wait for it in the end; so when no worker listens and none is parked, extra
//! workers are spawned, which retire when others listen (decision 0073).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use crate::channel::Channel;

/// Time in the tree after which another worker is unparked. Most replies take a hundredth of it. The wait is between
/// one and two of it.
const LONG: Duration = Duration::from_millis(1);
/// Duration of a spin: as long as it takes to put a processor to sleep and wake it.
const SPIN: Duration = Duration::from_micros(200);
/// Time for which a single task must have sent all requests before workers spin. Several tasks find work for
/// the processors themselves, and a spinning worker keeps its processor from them: the kernel moves no waiting
/// task to it, as it isn't idle.
const ALONE_FOR: Duration = Duration::from_millis(50);
/// Number of failed spins after which a worker stops spinning, until requests arrive fast again.
const IN_VAIN_MAX: u32 = 4;
/// Number of consecutive requests with another one pending after which a quick request unparks a worker: waking
/// a worker takes longer than a reply.
const LEFT_OVER_MAX: u32 = 8;
/// Time without a listening or parked worker after which an extra one is spawned: longer than a disk access,
/// and too short to be noticed in a stat(2).
const SPAWN_AFTER: Duration = Duration::from_millis(20);
/// Maximum number of extra workers. Each blocks on one request; it takes a stack and the bytes it read last.
const EXTRA_MAX: usize = 128;

/// The workers of a session.
pub(crate) struct WorkerPool {
    workers: usize,
    /// Number of workers that wait or spin for a request.
    listening: AtomicUsize,
    /// Number of extra workers at present; the next field counts all that were ever started.
    extra: AtomicUsize,
    spawned_extra: AtomicU64,
    last_caller: LastCaller,
    /// Number of consecutive requests during which another one was pending.
    left_over: AtomicU32,
    parked: Mutex<Parked>,
    unparked: Condvar,
    /// Calls of the tree while no worker listened.
    asked_alone: AtomicU64,
    /// Timer of the watchdog.
    alarm: OwnedFd,
    /// True if the timer is set.
    is_set: AtomicBool,
}

/// Task that sent the last request.
struct LastCaller {
    task: AtomicU32,
    /// Start of the time in which only that task sent requests, in nanoseconds after `started`.
    alone_since: AtomicU64,
    started: Instant,
}

/// Workers that sleep.
#[derive(Default)]
struct Parked {
    count: usize,
    /// Number of parked workers that are to wake.
    unparking: usize,
    over: bool,
}

/// Spin state of a worker.
#[derive(Default)]
pub(crate) struct Spinner {
    in_vain: u32,
    answered: Option<Instant>,
}

impl WorkerPool {
    /// Makes a pool whose workers all listen.
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self {
            workers,
            listening: AtomicUsize::new(workers),
            extra: AtomicUsize::new(0),
            spawned_extra: AtomicU64::new(0),
            last_caller: LastCaller {
                task: AtomicU32::new(0),
                alone_since: AtomicU64::new(0),
                started: Instant::now(),
            },
            left_over: AtomicU32::new(0),
            parked: Mutex::default(),
            unparked: Condvar::new(),
            asked_alone: AtomicU64::new(0),
            alarm,
            is_set: AtomicBool::new(false),
        })
    }

    /// Returns how many extra workers were spawned so far.
    pub(crate) fn spawned_extra(&self) -> u64 {
        self.spawned_extra.load(Ordering::Relaxed)
    }

    /// Notes the calling task; 0 is the kernel itself.
    fn asked_by(&self, task: u32, now: Instant) {
        // An update lost in a race is repeated by the next request.
        if task != 0 && self.last_caller.task.load(Ordering::Relaxed) != task {
            self.last_caller.task.store(task, Ordering::Relaxed);
            self.last_caller.alone_since.store(self.last_caller.nanos(now), Ordering::Relaxed);
        }
    }

    /// Returns true if only one task has sent requests for long enough that spinning is worthwhile.
    pub(crate) fn serves_one(&self, now: Instant) -> bool {
        let since = self.last_caller.alone_since.load(Ordering::Relaxed);
        u128::from(self.last_caller.nanos(now).saturating_sub(since)) > ALONE_FOR.as_nanos()
    }

    /// Returns whether a serving worker is the last: no other listens, and no more can be spawned. It must not block.
    pub(crate) fn is_last(&self) -> bool {
        self.extra.load(Ordering::Relaxed) >= EXTRA_MAX && self.listening.load(Ordering::SeqCst) == 0
    }

    /// Parks a worker without a request until it is unparked, if another worker listens.
    pub(crate) fn park(&self) {
        // Extra workers retire first.
        if self.workers == 1 || self.extra.load(Ordering::Relaxed) > 0 {
            return;
        }
        let mut parked = self.parked.lock();
        if parked.over || !self.another_listens() {
            return;
        }
        parked.count += 1;
        while parked.unparking == 0 && !parked.over {
            self.unparked.wait(&mut parked);
        }
        parked.unparking = parked.unparking.saturating_sub(1);
        parked.count -= 1;
        self.listening.fetch_add(1, Ordering::SeqCst);
    }

    /// Stops listening if another worker listens.
    fn another_listens(&self) -> bool {
        let another = |listening: usize| (listening > 1).then(|| listening - 1);
        self.listening.fetch_update(Ordering::SeqCst, Ordering::SeqCst, another).is_ok()
    }

    /// Retires an extra worker if others listen; returns whether it did.
    pub(crate) fn retire_extra(&self) -> bool {
        let goes = self.another_listens();
        if goes {
            self.extra.fetch_sub(1, Ordering::SeqCst);
        }
        goes
    }

    /// Records that a worker serves a request of this task, and unparks another worker if needed. If no worker
    /// listens now and more requests are ready, unparks one: at once unless this request is `quick`. Not
    /// checked while one task calls alone, since its only request is this one.
    pub(crate) fn begin(&self, channel: &Channel, task: u32, quick: bool, now: Instant) {
        self.asked_by(task, now);
        let was_last = self.listening.fetch_sub(1, Ordering::SeqCst) == 1;
        if !was_last || self.serves_one(now) {
            return;
        }
        if !channel.has_request() {
            self.left_over.store(0, Ordering::Relaxed);
        } else if !quick || self.left_over.fetch_add(1, Ordering::Relaxed) + 1 >= LEFT_OVER_MAX {
            self.left_over.store(0, Ordering::Relaxed);
            self.unpark_one();
        }
    }

    /// Records a call of the tree, which may take long: the watchdog replaces a blocked worker.
    pub(crate) fn asks(&self) {
        if self.listening.load(Ordering::SeqCst) == 0 {
            self.asked_alone.fetch_add(1, Ordering::SeqCst);
            self.set_alarm();
        }
    }

    /// Records that a worker listens again.
    pub(crate) fn done(&self) {
        self.listening.fetch_add(1, Ordering::SeqCst);
    }

    fn set_alarm(&self) {
        if !self.is_set.load(Ordering::SeqCst) && !self.is_set.swap(true, Ordering::SeqCst) {
            self.ring_after(LONG);
        }
    }

    /// Wakes a parked worker; returns whether there was one.
    fn unpark_one(&self) -> bool {
        let mut parked = self.parked.lock();
        let any = parked.count > parked.unparking;
        if any {
            parked.unparking += 1;
            self.unparked.notify_one();
        }
        any
    }

    /// Sets the timer. If that fails, a long call may delay other requests.
    fn ring_after(&self, time: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_nsec: time.subsec_nanos().into(), ..none };
        let _ = timerfd_settime(
            &self.alarm,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: none, it_value },
        );
    }

    /// Runs the watchdog until the session ends: unparks workers, or spawns extra ones.
    pub(crate) fn watchdog(&self, spawn: impl Fn(u64) -> bool) {
        let mut rings = [0; 8];
        let mut seen = 0;
        let mut alone_since: Option<Instant> = None;
        while !self.parked.lock().over {
            match rustix::io::read(&self.alarm, &mut rings) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            let asked = self.asked_alone.load(Ordering::SeqCst);
            let none_listening = self.listening.load(Ordering::SeqCst) == 0;
            if none_listening && asked == seen && !self.unpark_one() {
                let since = *alone_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SPAWN_AFTER {
                    alone_since = None;
                    self.spawn_extra(&spawn);
                }
                self.ring_after(SPAWN_AFTER);
                continue;
            }
            alone_since = None;
            if none_listening || asked != seen {
                seen = asked;
                self.ring_after(LONG);
            } else {
                self.is_set.store(false, Ordering::SeqCst);
                // A worker that calls the tree looks at it afterwards.
                if self.asked_alone.load(Ordering::SeqCst) != seen {
                    self.set_alarm();
                }
            }
        }
    }

    fn spawn_extra(&self, spawn: &impl Fn(u64) -> bool) {
        if self.extra.load(Ordering::SeqCst) >= EXTRA_MAX {
            return;
        }
        self.extra.fetch_add(1, Ordering::SeqCst);
        self.listening.fetch_add(1, Ordering::SeqCst);
        let number = self.spawned_extra.fetch_add(1, Ordering::SeqCst);
        if !spawn(number) {
            // No memory for a thread, most likely, which may pass.
            self.listening.fetch_sub(1, Ordering::SeqCst);
            self.extra.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Wakes all workers, because the mount is gone.
    pub(crate) fn end(&self) {
        self.parked.lock().over = true;
        self.unparked.notify_all();
        self.ring_after(Duration::from_nanos(1));
    }
}

impl LastCaller {
    fn nanos(&self, now: Instant) -> u64 {
        // It lasts for 584 years.
        u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Spinner {
    /// Spins for a request if that was useful lately; returns true if one arrived.
    pub(crate) fn spin(&mut self, workers: &WorkerPool, channel: &Channel) -> bool {
        let began = Instant::now();
        self.answered = Some(began);
        if self.in_vain >= IN_VAIN_MAX || !workers.serves_one(began) {
            return false;
        }
        while began.elapsed() < SPIN {
            if channel.has_request() {
                self.in_vain = 0;
                return true;
            }
            // Other threads may use this processor.
            std::thread::yield_now();
        }
        self.in_vain += 1;
        false
    }

    /// Records a request that arrived during a wait.
    pub(crate) fn came(&mut self) {
        if self.answered.is_some_and(|last| last.elapsed() < SPIN) {
            self.in_vain = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;

    use super::*;

    /// Makes a pool of four workers, of which three are parked, and a channel of unparked workers.
    fn workers() -> (Arc<WorkerPool>, Vec<JoinHandle<()>>, Receiver<()>) {
        let workers = Arc::new(WorkerPool::new(4).expect("a timer"));
        let (woken, wakes) = channel();
        let sleeper = |_| {
            let (workers, woken) = (Arc::clone(&workers), woken.clone());
            std::thread::spawn(move || {
                workers.park();
                // The test may be over.
                let _ = woken.send(());
            })
        };
        let threads = (0..3).map(sleeper).collect();
        while workers.parked.lock().count < 3 {
            std::thread::yield_now();
        }
        (workers, threads, wakes)
    }

    /// Makes a device with or without a request.
    fn device(has_request: bool) -> (Channel, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        if has_request {
            rustix::io::write(&writer, b"x").expect("a byte");
        }
        (Channel::new(0, reader), writer)
    }

    fn ends(workers: &WorkerPool, threads: Vec<JoinHandle<()>>) {
        workers.end();
        threads.into_iter().for_each(|thread| thread.join().expect("a sleeper"));
        assert_eq!(workers.parked.lock().count, 0);
    }

    #[test]
    fn the_last_reader_does_not_park() {
        let (workers, threads, wakes) = workers();
        workers.park();
        assert_eq!(workers.listening.load(Ordering::SeqCst), 1);
        assert!(wakes.try_recv().is_err());
        ends(&workers, threads);
    }

    #[test]
    fn pending_requests_wake_another_worker() {
        let (workers, threads, wakes) = workers();
        let (busy, _writer) = device(true);
        let begin = |channel: &Channel, quick: bool| workers.begin(channel, 1, quick, Instant::now());
        begin(&busy, false);
        wakes.recv().expect("a sleeper");
        assert_eq!(workers.parked.lock().count, 2);
        workers.done();
        // Two listen now, so one may rest again.
        let again = Arc::clone(&workers);
        let resting = std::thread::spawn(move || again.park());
        while workers.parked.lock().count < 3 {
            std::thread::yield_now();
        }
        let (quiet, _other) = device(false);
        for _ in 0..3 {
            for _ in 1..LEFT_OVER_MAX {
                begin(&busy, true);
                workers.done();
            }
            begin(&quiet, true);
            workers.done();
        }
        assert_eq!(workers.parked.lock().unparking, 0, "a few quick requests unpark no worker");
        for _ in 0..LEFT_OVER_MAX {
            begin(&busy, true);
            workers.done();
        }
        while workers.parked.lock().count == 3 {
            std::thread::yield_now();
        }
        ends(&workers, threads.into_iter().chain([resting]).collect());
    }

    #[test]
    fn a_long_call_unparks_another_worker() {
        let (workers, threads, wakes) = workers();
        let guarded = Arc::clone(&workers);
        let guard = std::thread::spawn(move || guarded.watchdog(|_| panic!("the watchdog started a worker")));
        let (quiet, _writer) = device(false);
        // A watchdog that still sees the first of them must see the second, and stop when there is nothing to see.
        for _ in 0..2 {
            workers.begin(&quiet, 1, true, Instant::now());
            workers.asks();
            wakes.recv().expect("the guard fetches one");
            while workers.listening.load(Ordering::SeqCst) < 1 {
                std::thread::yield_now();
            }
            workers.done();
            assert!(workers.another_listens());
            workers.begin(&quiet, 1, true, Instant::now());
            workers.done();
        }
        while workers.is_set.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(workers.parked.lock().count, 1, "a request that doesn't ask the tree unparks no worker");
        ends(&workers, threads);
        guard.join().expect("the guard");
    }

    #[test]
    fn a_worker_is_added_when_none_is_free_and_removed_later() {
        let workers = Arc::new(WorkerPool::new(1).expect("a timer"));
        let (told, hired) = channel();
        let guarded = Arc::clone(&workers);
        let guard = std::thread::spawn(move || guarded.watchdog(|number| told.send(number).is_ok()));
        let (quiet, _writer) = device(false);
        for number in 0..EXTRA_MAX as u64 {
            assert!(!workers.is_last());
            workers.begin(&quiet, 1, true, Instant::now());
            workers.asks();
            assert_eq!(hired.recv(), Ok(number));
            assert_eq!(workers.listening.load(Ordering::SeqCst), 1);
        }
        workers.begin(&quiet, 1, true, Instant::now());
        assert!(workers.is_last());
        // All of them return, and the extra ones retire but for one: one has to listen.
        (0..=EXTRA_MAX).for_each(|_| workers.done());
        assert!((0..EXTRA_MAX).all(|_| workers.retire_extra()) && !workers.is_last());
        assert!(!workers.another_listens());
        assert_eq!((workers.extra.load(Ordering::SeqCst), workers.spawned_extra()), (0, EXTRA_MAX as u64));
        workers.end();
        guard.join().expect("the guard");
        assert!(hired.try_recv().is_err());
    }

    /// Returns a pool that one task has called for long enough.
    fn serving_one() -> WorkerPool {
        let mut workers = WorkerPool::new(1).expect("a timer");
        workers.last_caller.started -= 2 * ALONE_FOR;
        workers
    }

    #[test]
    fn spinning_stops_when_useless_and_resumes() {
        let ((quiet, _one), (busy, _two)) = (device(false), device(true));
        let (workers, mut spinner) = (serving_one(), Spinner::default());
        for _ in 0..IN_VAIN_MAX {
            assert!(!spinner.spin(&workers, &quiet));
        }
        assert!(!spinner.spin(&workers, &busy), "it is not looked any more");
        spinner.came();
        assert!(spinner.spin(&workers, &busy), "that came soon after the last answer");
    }

    #[test]
    fn no_worker_spins_while_several_clients_ask() {
        let (busy, _writer) = device(true);
        let (workers, mut spinner) = (serving_one(), Spinner::default());
        let start = workers.last_caller.started;
        workers.asked_by(7, start);
        assert!(spinner.spin(&workers, &busy), "one task asks");
        workers.asked_by(0, Instant::now());
        assert!(spinner.spin(&workers, &busy), "the kernel counts as no caller");
        workers.asked_by(8, Instant::now());
        assert!(!spinner.spin(&workers, &busy) && spinner.in_vain == 0, "another one asked");
        let later = Instant::now() + ALONE_FOR;
        workers.asked_by(8, later);
        assert!(workers.serves_one(later + Duration::from_micros(1)), "it is alone again");
    }
}
