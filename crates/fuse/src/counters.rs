//! Counters of a session, by opcode.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::abi::opcode;

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

/// Number of groups of counters: threads of different groups share no cache line.
const GROUPS: usize = 16;

#[derive(Debug)]
#[repr(align(128))]
struct Group([Live; 64]);

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
        let group = || Group(std::array::from_fn(|_| Live::default()));
        Self { groups: (0..GROUPS).map(|_| group()).collect(), notifications: AtomicU64::new(0) }
    }

    fn of(&self, opcode: u32) -> &Live {
        // Number 0 is no request; it stands for those this crate has never heard of.
        let known = opcode::NAMES.get(opcode as usize).is_some_and(|name| !name.is_empty());
        // A thread whose locals are gone still counts.
        let group = GROUP.try_with(|group| *group).unwrap_or(0);
        &self.groups[group].0[if known { opcode as usize } else { 0 }]
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

    pub(crate) fn busy(&self, opcode: u32, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.of(opcode).busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn opcodes(&self) -> Vec<OpcodeCounters> {
        let sum = |at: usize, value: fn(&Live) -> &AtomicU64| {
            self.groups
                .iter()
                .map(|group| value(&group.0[at]).load(Ordering::Relaxed))
                .fold(0, u64::wrapping_add)
        };
        let all = opcode::NAMES.iter().enumerate().map(|(at, name)| OpcodeCounters {
            name,
            requests: sum(at, |live| &live.requests),
            errors: sum(at, |live| &live.errors),
            parked: sum(at, |live| &live.parked),
            busy: Duration::from_nanos(sum(at, |live| &live.busy_nanos)),
        });
        all.filter(|o| o.requests > 0).collect()
    }
}
