//! Which workers listen to the kernel.
//!
//! The kernel wakes a sleeping reader for each request, another one each time, and to wake a thread costs both sides more
//! than most answers do: a quarter of all processor time of a warm start (decision 0056). So as long as one worker keeps
//! up it serves alone, and looks for the next request for a moment instead of falling asleep. The others sleep aside.
//! They are fetched when a request is left over, and when the only one who listened has been serving for longer than
//! [`LONG`]: it may wait for a disk, and what came meanwhile must not wait with it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use crate::channel::Channel;

/// Most answers take a hundredth of it.
const LONG: Duration = Duration::from_millis(1);
/// How long a worker looks for the next request: as long as it takes to put a processor to sleep and wake it.
const LINGER: Duration = Duration::from_micros(200);
/// After so many times in vain it doesn't, until requests come that fast again.
const IN_VAIN_MAX: u32 = 4;

/// The workers of a session.
pub(crate) struct Crew {
    workers: usize,
    /// Workers that wait for a request, or look for one.
    listening: AtomicUsize,
    aside: Mutex<Aside>,
    fetched: Condvar,
    /// Rings when the last listener has been serving for too long.
    alarm: OwnedFd,
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
        let (listening, aside) = (AtomicUsize::new(workers), Mutex::default());
        Ok(Self { workers, listening, aside, fetched: Condvar::new(), alarm })
    }

    /// Before a worker sleeps for want of a request: sleeps aside until it is fetched if somebody else listens.
    pub(crate) fn rest(&self) {
        if self.workers == 1 {
            return;
        }
        let mut aside = self.aside.lock();
        let another = |listening: usize| (listening > 1).then(|| listening - 1);
        if aside.over || self.listening.fetch_update(Ordering::SeqCst, Ordering::SeqCst, another).is_err() {
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

    /// A worker begins to serve a request. If nobody listens now, somebody is fetched: at once if there is more to do,
    /// or else if it takes long.
    pub(crate) fn begin(&self, channel: &Channel) {
        if self.listening.fetch_sub(1, Ordering::SeqCst) == 1 && self.workers > 1 {
            if channel.has_request() {
                self.fetch();
            } else {
                self.ring_after(LONG);
            }
        }
    }

    /// It has served it, and listens again.
    pub(crate) fn done(&self) {
        if self.listening.fetch_add(1, Ordering::SeqCst) == 0 && self.workers > 1 {
            self.ring_after(Duration::ZERO);
        }
    }

    fn fetch(&self) {
        let mut aside = self.aside.lock();
        if aside.asleep > aside.called {
            aside.called += 1;
            self.fetched.notify_one();
        }
    }

    /// Sets the alarm; zero turns it off. Should that fail, a long answer keeps others waiting.
    fn ring_after(&self, time: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_nsec: time.subsec_nanos().into(), ..none };
        let _ = timerfd_settime(
            &self.alarm,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: none, it_value },
        );
    }

    /// Waits for the alarm and fetches workers, until the session is over.
    pub(crate) fn guard(&self) {
        let mut rings = [0; 8];
        while !self.aside.lock().over {
            match rustix::io::read(&self.alarm, &mut rings) {
                Ok(_) if self.listening.load(Ordering::SeqCst) == 0 => self.fetch(),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// The mount is gone: everybody wakes, to see that.
    pub(crate) fn end(&self) {
        self.aside.lock().over = true;
        self.fetched.notify_all();
        self.ring_after(Duration::from_nanos(1));
    }
}

impl Luck {
    /// Looks for a request for a moment, if that has been of use lately; whether there is one.
    pub(crate) fn linger(&mut self, channel: &Channel) -> bool {
        let began = Instant::now();
        self.answered = Some(began);
        if self.in_vain >= IN_VAIN_MAX {
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
        crew.begin(&busy);
        wakes.recv().expect("a sleeper");
        assert_eq!(crew.aside.lock().asleep, 2);
        crew.done();
        // Two listen now, so one may rest again.
        let again = Arc::clone(&crew);
        let resting = std::thread::spawn(move || again.rest());
        while crew.aside.lock().asleep < 3 {
            std::thread::yield_now();
        }
        ends(&crew, threads.into_iter().chain([resting]).collect());
    }

    #[test]
    fn a_long_answer_fetches_another() {
        let (crew, threads, wakes) = crew();
        let guarded = Arc::clone(&crew);
        let guard = std::thread::spawn(move || guarded.guard());
        let (quiet, _writer) = device(false);
        crew.begin(&quiet);
        wakes.recv().expect("the alarm rings");
        assert_eq!(crew.listening.load(Ordering::SeqCst), 1);
        crew.done();
        ends(&crew, threads);
        guard.join().expect("the guard");
    }

    #[test]
    fn lingering_in_vain_ends_and_begins_again_with_luck() {
        let ((quiet, _one), (busy, _two)) = (device(false), device(true));
        let mut luck = Luck::default();
        for _ in 0..IN_VAIN_MAX {
            assert!(!luck.linger(&quiet));
        }
        assert!(!luck.linger(&busy), "it is not looked any more");
        luck.came();
        assert!(luck.linger(&busy), "that came soon after the last answer");
    }
}
