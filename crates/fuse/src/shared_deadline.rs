//! Deadlines shared with the request that a caller waited behind.
//!
//! The kernel requests a name or a page once, however many callers want it, and later callers wait in the kernel for
//! the reply. If that is an error, the next of them sends a request, and the others wait for it; and a reader whose
//! read-ahead failed requests its page once more. With a silent server, the last of a hundred callers would wait a
//! hundred times as long as the first. So for a moment after a failure, requests for the same inherit the start of the
//! failed one's wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::inflight::{Request, TreeOp};
use crate::nodes::NodeId;

/// Time after a failure within which waiting callers send their own request: each has to be woken first.
const MOMENT: Duration = Duration::from_secs(1);
/// Maximum number of times that a start is inherited. A waiting caller asks within a moment of the failure, or
/// of that of its own read-ahead; a program that retries gets a deadline of its own.
const GENERATIONS: u8 = 2;
/// Maximum number of recorded failures.
const DEADLINES_MAX: usize = 256;

/// Key of the requests that share a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Name(Box<[u8]>),
    Bytes { from: u64, to: u64 },
    LinkTarget,
}

impl What {
    fn of(op: &TreeOp) -> Option<Self> {
        match op {
            TreeOp::Lookup { name } => Some(What::Name(name.clone())),
            TreeOp::Read { offset, len } => {
                Some(What::Bytes { from: *offset, to: offset.saturating_add(*len as u64) })
            }
            TreeOp::LinkTarget => Some(What::LinkTarget),
            // The kernel asks for these for each caller.
            TreeOp::Itself
            | TreeOp::Attributes
            | TreeOp::List { .. }
            | TreeOp::Xattr { .. }
            | TreeOp::XattrNames { .. } => None,
        }
    }

    fn meets(&self, other: &What) -> bool {
        match (self, other) {
            (What::Bytes { from, to }, What::Bytes { from: start, to: end }) => from < end && start < to,
            (one, other) => one == other,
        }
    }
}

/// Start of a wait, perhaps inherited from a failed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InheritedDeadline {
    pub(crate) since: Instant,
    /// Number of times that the start was inherited.
    pub(crate) generation: u8,
}

#[derive(Debug)]
struct Failure {
    id: NodeId,
    what: What,
    deadline: InheritedDeadline,
    over: Instant,
}

/// Deadlines of recent failures.
#[derive(Debug, Default)]
pub(crate) struct SharedDeadlines {
    /// True if there may be failures; otherwise requests need no lock.
    any: AtomicBool,
    failures: Mutex<VecDeque<Failure>>,
}

impl SharedDeadlines {
    /// Records a failure. Must be called before the error is sent.
    pub(crate) fn failed(&self, request: &Request) {
        let deadline = InheritedDeadline { since: request.quiet_since(), generation: request.generation + 1 };
        if let Some(what) = What::of(&request.op).filter(|_| deadline.generation <= GENERATIONS) {
            self.note(request.id, what, deadline, Instant::now());
        }
    }

    /// Returns the start of the wait for a new request.
    pub(crate) fn inherited(&self, id: NodeId, op: &TreeOp) -> InheritedDeadline {
        let now = Instant::now();
        let found = self.any.load(Ordering::Acquire).then(|| self.find(id, op, now)).flatten();
        found.unwrap_or(InheritedDeadline { since: now, generation: 0 })
    }

    fn note(&self, id: NodeId, what: What, deadline: InheritedDeadline, now: Instant) {
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.over > now);
        // Callers that waited behind the first fail in turn; each would pass on a later start.
        if failures.iter().any(|failure| failure.id == id && failure.what.meets(&what)) {
            return;
        }
        if failures.len() >= DEADLINES_MAX {
            failures.pop_front();
        }
        failures.push_back(Failure { id, what, deadline, over: now + MOMENT });
        self.any.store(true, Ordering::Release);
    }

    fn find(&self, id: NodeId, op: &TreeOp, now: Instant) -> Option<InheritedDeadline> {
        let what = What::of(op)?;
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.over > now);
        self.any.store(!failures.is_empty(), Ordering::Release);
        failures
            .iter()
            .find(|failure| failure.id == id && failure.what.meets(&what))
            .map(|failure| failure.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> TreeOp {
        TreeOp::Lookup { name: name.as_bytes().into() }
    }

    fn read(offset: u64, len: usize) -> TreeOp {
        TreeOp::Read { offset, len }
    }

    fn noted(deadlines: &SharedDeadlines, op: &TreeOp, generation: u8, since: Instant, now: Instant) {
        deadlines.note(
            NodeId(1),
            What::of(op).expect("shared"),
            InheritedDeadline { since, generation },
            now,
        );
    }

    #[test]
    fn repeated_operations_count_from_the_first_failure() {
        let (deadlines, start) = (SharedDeadlines::default(), Instant::now());
        let failed = start + Duration::from_secs(60);
        assert_eq!(deadlines.inherited(NodeId(1), &lookup("a")).generation, 0);
        noted(&deadlines, &lookup("a"), 1, start, failed);
        noted(&deadlines, &read(4096, 8192), 1, start, failed);
        let since = |id: u64, op: &TreeOp, after: Duration| {
            deadlines.find(NodeId(id), op, failed + after).map(|deadline| deadline.since)
        };
        let soon = MOMENT / 2;
        assert_eq!(since(1, &lookup("a"), soon), Some(start));
        assert_eq!(since(1, &read(8192, 4096), soon), Some(start));
        for other in [lookup("b"), read(0, 4096), read(12_288, 4096), TreeOp::LinkTarget, TreeOp::Attributes]
        {
            assert_eq!(since(1, &other, soon), None, "{other:?}");
        }
        assert_eq!(since(2, &lookup("a"), soon), None, "another directory");
        assert_eq!(since(1, &lookup("a"), MOMENT), None, "a new attempt has its own time");
        assert!(!deadlines.any.load(Ordering::Acquire), "nothing is kept");
    }

    #[test]
    fn later_failures_do_not_extend_the_inheritance() {
        let (deadlines, start) = (SharedDeadlines::default(), Instant::now());
        noted(&deadlines, &lookup("a"), 1, start, start);
        noted(&deadlines, &lookup("a"), 2, start, start + MOMENT / 2);
        assert!(deadlines.find(NodeId(1), &lookup("a"), start + MOMENT).is_none());
    }

    #[test]
    fn the_number_of_recorded_failures_is_bounded() {
        let (deadlines, start) = (SharedDeadlines::default(), Instant::now());
        (0..2 * DEADLINES_MAX)
            .for_each(|number| noted(&deadlines, &lookup(&number.to_string()), 1, start, start));
        assert_eq!(deadlines.failures.lock().len(), DEADLINES_MAX);
        assert!(deadlines.find(NodeId(1), &lookup(&(2 * DEADLINES_MAX - 1).to_string()), start).is_some());
    }
}
