//! Which workers listen to the kernel.
//!
//! The kernel wakes a sleeping reader for each request, another one each time, and to wake a thread costs both sides more
//! than most answers do: a quarter of all processor time of a warm start (decision 0056). So as long as one worker keeps
//! up it serves alone, and looks for the next request for a moment instead of falling asleep. The others sleep aside.
//! They are fetched when requests are left over, and when the only one who listened has been asking the tree for longer
//! than [`LONG`]: it may wait for a disk, and what came meanwhile must not wait with it. That is what the guard
//! looks after, who makes a round every [`LONG`] as long as requests come, since to set and clear a timer for each of them costs
//! more than that. If a disk doesn't answer at all, all of them wait for it in the end; so where nobody listens and nobody is
//! left to fetch, further ones are hired, who go again when there are others (decision 0073).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use crate::channel::Channel;

/// Most answers take a hundredth of it. Between one and two of it are waited.
const LONG: Duration = Duration::from_millis(1);
/// How long a worker looks for the next request: as long as it takes to put a processor to sleep and wake it.
const LINGER: Duration = Duration::from_micros(200);
/// A worker lingers only if nobody but one task has asked for so long. Where several ask they find work for the processors
/// themselves, and one that is looked from is kept from them: the kernel moves no waiting task to it, as it isn't idle.
const ALONE_FOR: Duration = Duration::from_millis(50);
/// After so many times in vain it doesn't, until requests come that fast again.
const IN_VAIN_MAX: u32 = 4;
/// So many requests in turn must have left another one over before one that is quick fetches a worker: to wake it takes
/// longer than to answer, and it is of use only to whoever falls behind.
const BEHIND: u32 = 8;
/// When nobody has listened for so long and nobody sleeps aside, somebody is hired: far longer than a disk that answers
/// takes, so short that a stat doesn't seem to wait.
const HIRE_AFTER: Duration = Duration::from_millis(20);
/// Most who are hired. Each waits for one request; what they take is a stack and the bytes they read last.
const HIRED_MAX: usize = 128;

/// The workers of a session.
pub(crate) struct Crew {
    workers: usize,
    /// Workers that wait for a request, or look for one.
    listening: AtomicUsize,
    /// Workers beyond those, now and ever.
    hired: AtomicUsize,
    hired_ever: AtomicU64,
    asker: Asker,
    /// How many requests in turn left another one over.
    left_over: AtomicU32,
    aside: Mutex<Aside>,
    fetched: Condvar,
    /// How often the tree was asked while nobody listened.
    asked_alone: AtomicU64,
    /// Rings when the guard is to make a round.
    alarm: OwnedFd,
    /// Whether it is set.
    is_set: AtomicBool,
}

/// Who asked last.
struct Asker {
    task: AtomicU32,
    /// Since when nobody else has, in nanoseconds after `started`.
    alone_since: AtomicU64,
    started: Instant,
}

/// Workers that sleep.
#[derive(Default)]
struct Aside {
    asleep: usize,
    /// Those of them that are to wake.
    called: usize,
    over: bool,
}

/// What a worker knows of its luck.
#[derive(Default)]
pub(crate) struct Luck {
    in_vain: u32,
    answered: Option<Instant>,
}

impl Crew {
    /// A crew that is listening, all of it.
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self {
            workers,
            listening: AtomicUsize::new(workers),
            hired: AtomicUsize::new(0),
            hired_ever: AtomicU64::new(0),
            asker: Asker { task: AtomicU32::new(0), alone_since: AtomicU64::new(0), started: Instant::now() },
            left_over: AtomicU32::new(0),
            aside: Mutex::default(),
            fetched: Condvar::new(),
            asked_alone: AtomicU64::new(0),
            alarm,
            is_set: AtomicBool::new(false),
        })
    }

    /// How many were hired so far.
    pub(crate) fn hired_ever(&self) -> u64 {
        self.hired_ever.load(Ordering::Relaxed)
    }

    /// A task of this number, or the kernel by itself if it is 0, asks.
    fn asked_by(&self, task: u32, now: Instant) {
        // What is lost in a race is told by the next request.
        if task != 0 && self.asker.task.load(Ordering::Relaxed) != task {
            self.asker.task.store(task, Ordering::Relaxed);
            self.asker.alone_since.store(self.asker.nanos(now), Ordering::Relaxed);
        }
    }

    /// Whether one task alone has been asking, so that lingering for its next question is worth while.
    pub(crate) fn serves_one(&self, now: Instant) -> bool {
        let since = self.asker.alone_since.load(Ordering::Relaxed);
        u128::from(self.asker.nanos(now).saturating_sub(since)) > ALONE_FOR.as_nanos()
    }

    /// Whether a worker that is serving is the last who could: nobody else listens, and nobody more is hired. It must
    /// not wait for anything.
    pub(crate) fn is_last(&self) -> bool {
        self.hired.load(Ordering::Relaxed) >= HIRED_MAX && self.listening.load(Ordering::SeqCst) == 0
    }

    /// Before a worker sleeps for want of a request: sleeps aside until it is fetched if somebody else listens.
    pub(crate) fn rest(&self) {
        // Those who were hired go first.
        if self.workers == 1 || self.hired.load(Ordering::Relaxed) > 0 {
            return;
        }
        let mut aside = self.aside.lock();
        if aside.over || !self.another_listens() {
            return;
        }
        aside.asleep += 1;
        while aside.called == 0 && !aside.over {
            self.fetched.wait(&mut aside);
        }
        aside.called = aside.called.saturating_sub(1);
        aside.asleep -= 1;
        self.listening.fetch_add(1, Ordering::SeqCst);
    }

    /// Stops listening if somebody else goes on.
    fn another_listens(&self) -> bool {
        let another = |listening: usize| (listening > 1).then(|| listening - 1);
        self.listening.fetch_update(Ordering::SeqCst, Ordering::SeqCst, another).is_ok()
    }

    /// Whether a worker that was hired goes, because others listen.
    pub(crate) fn dismisses(&self) -> bool {
        let goes = self.another_listens();
        if goes {
            self.hired.fetch_sub(1, Ordering::SeqCst);
        }
        goes
    }

    /// A worker begins to serve a request of this task. If nobody listens now and there is more to do, somebody is
    /// fetched: at once unless this one is `quick`. One task that asks alone has asked already, so then it isn't looked.
    pub(crate) fn begin(&self, channel: &Channel, task: u32, quick: bool, now: Instant) {
        self.asked_by(task, now);
        let was_last = self.listening.fetch_sub(1, Ordering::SeqCst) == 1;
        if !was_last || self.serves_one(now) {
            return;
        }
        if !channel.has_request() {
            self.left_over.store(0, Ordering::Relaxed);
        } else if !quick || self.left_over.fetch_add(1, Ordering::Relaxed) + 1 >= BEHIND {
            self.left_over.store(0, Ordering::Relaxed);
            self.fetch();
        }
    }

    /// It asks the tree, which may take long: if nobody listens, somebody is fetched then.
    pub(crate) fn asks(&self) {
        if self.listening.load(Ordering::SeqCst) == 0 {
            self.asked_alone.fetch_add(1, Ordering::SeqCst);
            self.set_alarm();
        }
    }

    /// It has served it, and listens again.
    pub(crate) fn done(&self) {
        self.listening.fetch_add(1, Ordering::SeqCst);
    }

    fn set_alarm(&self) {
        if !self.is_set.load(Ordering::SeqCst) && !self.is_set.swap(true, Ordering::SeqCst) {
            self.ring_after(LONG);
        }
    }

    /// Wakes a worker that sleeps aside; whether there was one.
    fn fetch(&self) -> bool {
        let mut aside = self.aside.lock();
        let any = aside.asleep > aside.called;
        if any {
            aside.called += 1;
            self.fetched.notify_one();
        }
        any
    }

    /// Sets the alarm. Should that fail, a long answer keeps others waiting.
    fn ring_after(&self, time: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_nsec: time.subsec_nanos().into(), ..none };
        let _ = timerfd_settime(
            &self.alarm,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: none, it_value },
        );
    }

    /// Makes rounds until the session is over: fetches workers, or has them hired.
    pub(crate) fn guard(&self, hire: impl Fn(u64) -> bool) {
        let mut rings = [0; 8];
        let mut seen = 0;
        let mut alone_since: Option<Instant> = None;
        while !self.aside.lock().over {
            match rustix::io::read(&self.alarm, &mut rings) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            let asked = self.asked_alone.load(Ordering::SeqCst);
            let nobody_listens = self.listening.load(Ordering::SeqCst) == 0;
            if nobody_listens && asked == seen && !self.fetch() {
                let since = *alone_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= HIRE_AFTER {
                    alone_since = None;
                    self.hire(&hire);
                }
                self.ring_after(HIRE_AFTER);
                continue;
            }
            alone_since = None;
            if nobody_listens || asked != seen {
                seen = asked;
                self.ring_after(LONG);
            } else {
                self.is_set.store(false, Ordering::SeqCst);
                // Whoever asks looks at it afterwards.
                if self.asked_alone.load(Ordering::SeqCst) != seen {
                    self.set_alarm();
                }
            }
        }
    }

    fn hire(&self, hire: &impl Fn(u64) -> bool) {
        if self.hired.load(Ordering::SeqCst) >= HIRED_MAX {
            return;
        }
        self.hired.fetch_add(1, Ordering::SeqCst);
        self.listening.fetch_add(1, Ordering::SeqCst);
        let number = self.hired_ever.fetch_add(1, Ordering::SeqCst);
        if !hire(number) {
            // No memory for a thread, most likely, which may pass.
            self.listening.fetch_sub(1, Ordering::SeqCst);
            self.hired.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The mount is gone: everybody wakes, to see that.
    pub(crate) fn end(&self) {
        self.aside.lock().over = true;
        self.fetched.notify_all();
        self.ring_after(Duration::from_nanos(1));
    }
}

impl Asker {
    fn nanos(&self, now: Instant) -> u64 {
        // It lasts for 584 years.
        u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Luck {
    /// Looks for a request for a moment, if that has been of use lately; whether there is one.
    pub(crate) fn linger(&mut self, crew: &Crew, channel: &Channel) -> bool {
        let began = Instant::now();
        self.answered = Some(began);
        if self.in_vain >= IN_VAIN_MAX || !crew.serves_one(began) {
            return false;
        }
        while began.elapsed() < LINGER {
            if channel.has_request() {
                self.in_vain = 0;
                return true;
            }
            // Whoever else wants this processor has it.
            std::thread::yield_now();
        }
        self.in_vain += 1;
        false
    }

    /// A request came that was waited for.
    pub(crate) fn came(&mut self) {
        if self.answered.is_some_and(|last| last.elapsed() < LINGER) {
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

    /// A crew of four, of which three sleep aside; what they tell when they are fetched.
    fn crew() -> (Arc<Crew>, Vec<JoinHandle<()>>, Receiver<()>) {
        let crew = Arc::new(Crew::new(4).expect("a timer"));
        let (woken, wakes) = channel();
        let sleeper = |_| {
            let (crew, woken) = (Arc::clone(&crew), woken.clone());
            std::thread::spawn(move || {
                crew.rest();
                // The test may be over.
                let _ = woken.send(());
            })
        };
        let threads = (0..3).map(sleeper).collect();
        while crew.aside.lock().asleep < 3 {
            std::thread::yield_now();
        }
        (crew, threads, wakes)
    }

    /// A device with or without a request.
    fn device(has_request: bool) -> (Channel, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        if has_request {
            rustix::io::write(&writer, b"x").expect("a byte");
        }
        (Channel::new(reader), writer)
    }

    fn ends(crew: &Crew, threads: Vec<JoinHandle<()>>) {
        crew.end();
        threads.into_iter().for_each(|thread| thread.join().expect("a sleeper"));
        assert_eq!(crew.aside.lock().asleep, 0);
    }

    #[test]
    fn the_last_listener_does_not_rest() {
        let (crew, threads, wakes) = crew();
        crew.rest();
        assert_eq!(crew.listening.load(Ordering::SeqCst), 1);
        assert!(wakes.try_recv().is_err());
        ends(&crew, threads);
    }

    #[test]
    fn what_is_left_over_fetches_another() {
        let (crew, threads, wakes) = crew();
        let (busy, _writer) = device(true);
        let begin = |channel: &Channel, quick: bool| crew.begin(channel, 1, quick, Instant::now());
        begin(&busy, false);
        wakes.recv().expect("a sleeper");
        assert_eq!(crew.aside.lock().asleep, 2);
        crew.done();
        // Two listen now, so one may rest again.
        let again = Arc::clone(&crew);
        let resting = std::thread::spawn(move || again.rest());
        while crew.aside.lock().asleep < 3 {
            std::thread::yield_now();
        }
        let (quiet, _other) = device(false);
        for _ in 0..3 {
            for _ in 1..BEHIND {
                begin(&busy, true);
                crew.done();
            }
            begin(&quiet, true);
            crew.done();
        }
        assert_eq!(crew.aside.lock().called, 0, "a few quick ones fetch nobody");
        for _ in 0..BEHIND {
            begin(&busy, true);
            crew.done();
        }
        while crew.aside.lock().asleep == 3 {
            std::thread::yield_now();
        }
        ends(&crew, threads.into_iter().chain([resting]).collect());
    }

    #[test]
    fn a_long_answer_fetches_another() {
        let (crew, threads, wakes) = crew();
        let guarded = Arc::clone(&crew);
        let guard = std::thread::spawn(move || guarded.guard(|_| panic!("somebody is left to fetch")));
        let (quiet, _writer) = device(false);
        // A guard who still sees the first of them must see the second, and stop when there is nothing to see.
        for _ in 0..2 {
            crew.begin(&quiet, 1, true, Instant::now());
            crew.asks();
            wakes.recv().expect("the guard fetches one");
            while crew.listening.load(Ordering::SeqCst) < 1 {
                std::thread::yield_now();
            }
            crew.done();
            assert!(crew.another_listens());
            crew.begin(&quiet, 1, true, Instant::now());
            crew.done();
        }
        while crew.is_set.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(crew.aside.lock().asleep, 1, "what doesn't ask the tree fetches nobody");
        ends(&crew, threads);
        guard.join().expect("the guard");
    }

    #[test]
    fn where_nobody_is_left_somebody_is_hired_and_dismissed_again() {
        let crew = Arc::new(Crew::new(1).expect("a timer"));
        let (told, hired) = channel();
        let guarded = Arc::clone(&crew);
        let guard = std::thread::spawn(move || guarded.guard(|number| told.send(number).is_ok()));
        let (quiet, _writer) = device(false);
        for number in 0..HIRED_MAX as u64 {
            assert!(!crew.is_last());
            crew.begin(&quiet, 1, true, Instant::now());
            crew.asks();
            assert_eq!(hired.recv(), Ok(number));
            assert_eq!(crew.listening.load(Ordering::SeqCst), 1);
        }
        crew.begin(&quiet, 1, true, Instant::now());
        assert!(crew.is_last());
        // All of them come back, and those who were hired go, but for one: somebody has to listen.
        (0..=HIRED_MAX).for_each(|_| crew.done());
        assert!((0..HIRED_MAX).all(|_| crew.dismisses()) && !crew.is_last());
        assert!(!crew.another_listens());
        assert_eq!((crew.hired.load(Ordering::SeqCst), crew.hired_ever()), (0, HIRED_MAX as u64));
        crew.end();
        guard.join().expect("the guard");
        assert!(hired.try_recv().is_err());
    }

    /// A crew that one task has been asking for long enough.
    fn serving_one() -> Crew {
        let mut crew = Crew::new(1).expect("a timer");
        crew.asker.started -= 2 * ALONE_FOR;
        crew
    }

    #[test]
    fn lingering_in_vain_ends_and_begins_again_with_luck() {
        let ((quiet, _one), (busy, _two)) = (device(false), device(true));
        let (crew, mut luck) = (serving_one(), Luck::default());
        for _ in 0..IN_VAIN_MAX {
            assert!(!luck.linger(&crew, &quiet));
        }
        assert!(!luck.linger(&crew, &busy), "it is not looked any more");
        luck.came();
        assert!(luck.linger(&crew, &busy), "that came soon after the last answer");
    }

    #[test]
    fn nobody_lingers_where_several_ask() {
        let (busy, _writer) = device(true);
        let (crew, mut luck) = (serving_one(), Luck::default());
        let start = crew.asker.started;
        crew.asked_by(7, start);
        assert!(luck.linger(&crew, &busy), "one task asks");
        crew.asked_by(0, Instant::now());
        assert!(luck.linger(&crew, &busy), "the kernel is nobody");
        crew.asked_by(8, Instant::now());
        assert!(!luck.linger(&crew, &busy) && luck.in_vain == 0, "another one asked");
        let later = Instant::now() + ALONE_FOR;
        crew.asked_by(8, later);
        assert!(crew.serves_one(later + Duration::from_micros(1)), "it is alone again");
    }
}
