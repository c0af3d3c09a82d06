//! Counters of a session, by opcode.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use esker_threads::waits::WaitTimes;

use crate::abi::opcode;

/// Number of classes of latencies.
pub const LATENCY_CLASSES: usize = 25;

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpcodeCounters {
    /// The protocol's name of the request, for example `LOOKUP`.
    pub name: &'static str,
    /// Requests read from the kernel.
    pub requests: u64,
    /// Number of requests that got an error (a negative entry is none).
    pub errors: u64,
    /// Number of requests that the worker could not reply to because the tree had to wait.
    pub parked: u64,
    /// Time workers spent on them.
    pub busy: Duration,
    /// Time from the arrival of each request to its reply.
    pub latency: Duration,
    /// Of that time, what was spent waiting, by cause.
    pub waits: WaitTimes,
    /// Number of requests by latency: less than 1, 2, 4, … microseconds; the last class is for all longer ones.
    pub latencies: [u64; LATENCY_CLASSES],
}

/// Counters of a session since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Counters of each opcode that occurred, in the order of the protocol.
    pub opcodes: Vec<OpcodeCounters>,
    /// Nodes the kernel may use at present, the root included.
    pub nodes: u64,
    /// Requests that wait for the tree at present.
    pub waiting: u64,
    /// Notifications sent to the kernel.
    pub notifications: u64,
    /// Extra workers spawned because all were blocked.
    pub hired: u64,
}

impl Counters {
    /// Returns the number of requests of one opcode.
    pub fn requests(&self, name: &str) -> u64 {
        self.opcodes.iter().find(|o| o.name == name).map_or(0, |o| o.requests)
    }
}

#[derive(Debug, Default)]
struct Live {
    requests: AtomicU64,
    errors: AtomicU64,
    parked: AtomicU64,
    busy_nanos: AtomicU64,
}

/// Latencies and waits of one kind of request.
#[derive(Debug, Default)]
struct LiveLatency {
    classes: [AtomicU64; LATENCY_CLASSES],
    /// Latencies of parked requests, and what workers spent on them.
    parked_nanos: AtomicU64,
    parked_busy_nanos: AtomicU64,
    /// Waits, in the order of [`WaitTimes::all`].
    waits: [AtomicU64; 4],
}

/// Number of counted opcodes.
const OPCODES: usize = 64;

/// Number of groups of counters: threads of different groups share no cache line.
const GROUPS: usize = 16;

#[derive(Debug)]
#[repr(align(128))]
struct Group {
    live: [Live; OPCODES],
    /// Made by the first request of a kind: few kinds ever come.
    latencies: [OnceLock<Box<LiveLatency>>; OPCODES],
}

static NEXT_GROUP: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static GROUP: usize = NEXT_GROUP.fetch_add(1, Ordering::Relaxed) % GROUPS;
}

/// Counters that many threads write.
#[derive(Debug)]
pub(crate) struct LiveCounters {
    groups: Box<[Group]>,
    pub(crate) notifications: AtomicU64,
}

impl LiveCounters {
    pub(crate) fn new() -> Self {
        let group = || Group {
            live: std::array::from_fn(|_| Live::default()),
            latencies: std::array::from_fn(|_| OnceLock::new()),
        };
        Self { groups: (0..GROUPS).map(|_| group()).collect(), notifications: AtomicU64::new(0) }
    }

    fn of(&self, opcode: u32) -> &Live {
        let (group, at) = self.place(opcode);
        &group.live[at]
    }

    fn latency_of(&self, opcode: u32) -> &LiveLatency {
        let (group, at) = self.place(opcode);
        group.latencies[at].get_or_init(Box::default)
    }

    fn place(&self, opcode: u32) -> (&Group, usize) {
        // Number 0 is no request; it stands for those this crate has never heard of.
        let known = opcode::NAMES.get(opcode as usize).is_some_and(|name| !name.is_empty());
        // A thread whose locals are gone still counts.
        let group = GROUP.try_with(|group| *group).unwrap_or(0);
        (&self.groups[group], if known { opcode as usize } else { 0 })
    }

    pub(crate) fn request(&self, opcode: u32) {
        self.of(opcode).requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn error(&self, opcode: u32) {
        self.of(opcode).errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn parked(&self, opcode: u32) {
        self.of(opcode).parked.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the time that a worker spent on a request. If it sent the reply, too, that is the request's latency.
    pub(crate) fn busy(&self, opcode: u32, time: Duration, is_answered: bool) {
        let nanos = nanos(time);
        self.of(opcode).busy_nanos.fetch_add(nanos, Ordering::Relaxed);
        let latency = self.latency_of(opcode);
        if is_answered {
            latency.classes[class(time)].fetch_add(1, Ordering::Relaxed);
        } else {
            latency.parked_busy_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Counts the latency of a request that was answered after its worker had left it.
    pub(crate) fn late_reply(&self, opcode: u32, latency: Duration) {
        let live = self.latency_of(opcode);
        live.classes[class(latency)].fetch_add(1, Ordering::Relaxed);
        live.parked_nanos.fetch_add(nanos(latency), Ordering::Relaxed);
    }

    /// Counts waits of requests.
    pub(crate) fn waits(&self, opcode: u32, waits: WaitTimes) {
        if waits == WaitTimes::default() {
            return;
        }
        let live = self.latency_of(opcode);
        for (counter, time) in live.waits.iter().zip(waits.all()) {
            if !time.is_zero() {
                counter.fetch_add(nanos(time), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn opcodes(&self) -> Vec<OpcodeCounters> {
        let all = opcode::NAMES.iter().enumerate().map(|(at, name)| self.opcode(at, name));
        all.filter(|counters| counters.requests > 0).collect()
    }

    fn opcode(&self, at: usize, name: &'static str) -> OpcodeCounters {
        let sum = |value: fn(&Live) -> &AtomicU64| {
            let values = self.groups.iter().map(|group| value(&group.live[at]).load(Ordering::Relaxed));
            values.fold(0, u64::wrapping_add)
        };
        let latencies: Vec<&LiveLatency> =
            self.groups.iter().filter_map(|group| Some(&**group.latencies[at].get()?)).collect();
        let of_all = |value: &dyn Fn(&LiveLatency) -> u64| {
            latencies.iter().map(|latency| value(latency)).fold(0, u64::wrapping_add)
        };
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let wait = |cause: usize| Duration::from_nanos(of_all(&|latency| get(&latency.waits[cause])));
        let busy = sum(|live| &live.busy_nanos);
        let parked = of_all(&|latency| get(&latency.parked_nanos));
        // A reply may be counted before its worker's share of it.
        let at_once = busy.saturating_sub(of_all(&|latency| get(&latency.parked_busy_nanos)));
        OpcodeCounters {
            name,
            requests: sum(|live| &live.requests),
            errors: sum(|live| &live.errors),
            parked: sum(|live| &live.parked),
            busy: Duration::from_nanos(busy),
            latency: Duration::from_nanos(at_once.saturating_add(parked)),
            waits: WaitTimes { network: wait(0), disk: wait(1), processing: wait(2), thread: wait(3) },
            latencies: std::array::from_fn(|class| of_all(&|latency| get(&latency.classes[class]))),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the class of a latency.
fn class(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_in_powers_of_two() {
        for (micros, expected) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 23, 24), (u64::MAX, 24)] {
            assert_eq!(class(Duration::from_micros(micros)), expected, "{micros}");
        }
    }

    #[test]
    fn a_latency_is_that_of_the_reply_and_counted_once() {
        let counters = LiveCounters::new();
        let (long, short) = (Duration::from_millis(20), Duration::from_micros(5));
        for _ in 0..2 {
            counters.request(opcode::READ);
        }
        counters.busy(opcode::READ, short, true);
        // The worker left this one to another thread.
        counters.busy(opcode::READ, short, false);
        counters.late_reply(opcode::READ, long);
        let network = WaitTimes { network: long - short, ..WaitTimes::default() };
        counters.waits(opcode::READ, network);
        let all = counters.opcodes();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].latency, all[0].busy), (long + short, short + short));
        assert_eq!(all[0].waits, network);
        assert_eq!((all[0].latencies[3], all[0].latencies[15]), (1, 1));
        assert_eq!(all[0].latencies.iter().sum::<u64>(), all[0].requests);
    }

    #[test]
    fn requests_of_many_threads_add_up() {
        let counters = LiveCounters::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * GROUPS {
                scope.spawn(|| {
                    for _ in 0..100 {
                        counters.request(opcode::LOOKUP);
                        counters.busy(opcode::LOOKUP, Duration::from_micros(1), true);
                    }
                });
            }
        });
        let all = counters.opcodes();
        let expected = 200 * GROUPS as u64;
        assert_eq!((all[0].requests, all[0].latencies[1]), (expected, expected));
        assert_eq!(all[0].latency, Duration::from_micros(expected));
    }
}
