//! The relay's thread: reads data from sockets and delivers it at the time of the model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::connection::{Connection, Links};
use super::counts::Counters;
use super::model::{At, Bottleneck};
use super::profile::Profile;

/// Key of the listening socket among the events; all other keys are connections.
const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const STOP: u64 = u64::MAX - 2;

/// Time that an idle processor needs to wake up, by which the thread wakes up earlier. The thread wakes up
/// earlier by this much; if it was awake, it sleeps again.
const WAKING: Duration = Duration::from_micros(50);

/// Events that are due within this time are processed at once.
const NOW: Duration = Duration::from_micros(10);

/// Maximum number of events read at once.
const EVENTS: usize = 256;

/// State of the relay's thread.
pub(super) struct Relay {
    profile: Profile,
    to: SocketAddr,
    listener: TcpListener,
    epoll: OwnedFd,
    timer: OwnedFd,
    stop: Arc<OwnedFd>,
    start: Instant,
    links: Links,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// Times at which connections have something to do; outdated entries stay until they are due.
    alarms: BinaryHeap<Reverse<(At, u64)>>,
    counters: Arc<Counters>,
}

impl Relay {
    pub(super) fn new(
        profile: Profile,
        to: SocketAddr,
        listen: SocketAddr,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC.union(TimerfdFlags::NONBLOCK))?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let key = epoll::EventData::new_u64;
        epoll::add(&epoll, &listener, key(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &timer, key(TIMER), epoll::EventFlags::IN.union(epoll::EventFlags::ET))?;
        epoll::add(&epoll, &*stop, key(STOP), epoll::EventFlags::IN)?;
        Ok(Self {
            profile,
            to,
            listener,
            epoll,
            timer,
            stop,
            start: Instant::now(),
            links: Links { up: Bottleneck::new(&profile), down: Bottleneck::new(&profile) },
            connections: HashMap::new(),
            next: 0,
            alarms: BinaryHeap::new(),
            counters,
        })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Ends [`Self::run`] when written to.
    pub(super) fn stopper(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stop)
    }

    /// Relays until stopped; returns the processor time used.
    pub(super) fn run(mut self) -> io::Result<Duration> {
        // The link's delays must be exact, so the relay runs before the measured programs. That needs a privilege;
        // `--check` shows how exact it is without.
        let _ = rustix::process::setpriority_process(None, -15);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    STOP => {
                        return Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))
                            .map_err(io::Error::other);
                    }
                    LISTENER => self.accept()?,
                    // Alarms are looked at after every round.
                    TIMER => {}
                    key => self.advance(key / 2, Some((key % 2 == 1, event.flags)), At::ZERO),
                }
            }
            self.ring();
            self.set_timer()?;
        }
    }

    fn now(&self) -> At {
        self.start.elapsed()
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // One that was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let id = self.next;
            self.next += 1;
            let connection = Connection::open(client, self.to, &self.profile, self.now(), id)?;
            connection.watch(&self.epoll, id)?;
            self.counters.connection();
            self.connections.insert(id, connection);
        }
    }

    /// Advances a connection now, or at `due` if that is a little later.
    fn advance(&mut self, id: u64, ready: Option<(bool, epoll::EventFlags)>, due: At) {
        let now = self.now().max(due);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some((server, flags)) = ready {
            connection.ready(server, flags);
        }
        match connection.advance(now, &mut self.links, &self.counters) {
            Ok(Some(due)) if connection.alarm.is_none_or(|alarm| due < alarm) => {
                connection.alarm = Some(due);
                self.alarms.push(Reverse((due, id)));
            }
            Ok(_) if !connection.is_over() => {}
            Ok(_) => drop(self.connections.remove(&id)),
            Err(_) => {
                // The remaining side learns that the other one is gone.
                connection.reset();
                self.connections.remove(&id);
            }
        }
    }

    /// Processes all events that are due.
    fn ring(&mut self) {
        while let Some(Reverse((due, id))) = self.alarms.peek().copied() {
            if due > self.now() + NOW {
                return;
            }
            self.alarms.pop();
            if let Some(connection) = self.connections.get_mut(&id) {
                if connection.alarm == Some(due) {
                    connection.alarm = None;
                }
                self.advance(id, None, due);
            }
        }
    }

    fn set_timer(&self) -> io::Result<()> {
        let Some(Reverse((due, _))) = self.alarms.peek() else { return Ok(()) };
        let left = due.saturating_sub(self.now());
        let left = if left > WAKING { left - WAKING } else { left }.max(Duration::from_nanos(1));
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec::try_from(left).map_err(io::Error::other)?;
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: none, it_value: value },
        )?;
        Ok(())
    }
}
