//! Who waited behind somebody else's request.
//!
//! The kernel asks for a name once and for a page once, however many want it, and whoever comes meanwhile waits in
//! the kernel for the answer. If that is an error, the next of them asks, and the others wait for that; and a reader
//! whose read-ahead failed asks once more for the page it wanted. With a server that says nothing, the last of a
//! hundred would wait a hundred times as long as the first. So for a moment after a failure those who ask for the
//! same have begun to wait when the one who failed did.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::nodes::NodeId;
use crate::waiting::{Question, Request};

/// How long after a failure those who waited behind it have asked: each has to be woken and to ask.
const MOMENT: Duration = Duration::from_secs(1);
/// How often a time is handed on. Whoever was waiting asks within a moment of the failure, or of that of its own
/// read-ahead; a program that tries again and again is to have time of its own.
const GENERATIONS: u8 = 2;
/// Most failures that are remembered.
const MOST: usize = 256;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Name(Box<[u8]>),
    Bytes { from: u64, to: u64 },
    LinkTarget,
}

impl What {
    fn of(question: &Question) -> Option<Self> {
        match question {
            Question::Lookup { name } => Some(What::Name(name.clone())),
            Question::Read { offset, len } => {
                Some(What::Bytes { from: *offset, to: offset.saturating_add(*len as u64) })
            }
            Question::LinkTarget => Some(What::LinkTarget),
            // The kernel asks for these for each caller.
            Question::Itself
            | Question::Attributes
            | Question::List { .. }
            | Question::Xattr { .. }
            | Question::XattrNames { .. } => None,
        }
    }

    fn meets(&self, other: &What) -> bool {
        match (self, other) {
            (What::Bytes { from, to }, What::Bytes { from: start, to: end }) => from < end && start < to,
            (one, other) => one == other,
        }
    }
}

/// When somebody began to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) since: Instant,
    /// How many failures it was handed on by.
    pub(crate) generation: u8,
}

#[derive(Debug)]
struct Failure {
    id: NodeId,
    what: What,
    begun: Begun,
    over: Instant,
}

/// What failed a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// Whether there may be any, so that others need no lock.
    any: AtomicBool,
    failures: Mutex<VecDeque<Failure>>,
}

impl Behind {
    /// To be called before the error is told.
    pub(crate) fn failed(&self, request: &Request) {
        let begun = Begun { since: request.quiet_since(), generation: request.generation + 1 };
        if let Some(what) = What::of(&request.question).filter(|_| begun.generation <= GENERATIONS) {
            self.note(request.id, what, begun, Instant::now());
        }
    }

    /// When whoever asks this now began to wait.
    pub(crate) fn begun(&self, id: NodeId, question: &Question) -> Begun {
        let now = Instant::now();
        let found = self.any.load(Ordering::Acquire).then(|| self.find(id, question, now)).flatten();
        found.unwrap_or(Begun { since: now, generation: 0 })
    }

    fn note(&self, id: NodeId, what: What, begun: Begun, now: Instant) {
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.over > now);
        // Those who waited behind the first are answered in turn; each of them would hand on less and less.
        if failures.iter().any(|failure| failure.id == id && failure.what.meets(&what)) {
            return;
        }
        if failures.len() >= MOST {
            failures.pop_front();
        }
        failures.push_back(Failure { id, what, begun, over: now + MOMENT });
        self.any.store(true, Ordering::Release);
    }

    fn find(&self, id: NodeId, question: &Question, now: Instant) -> Option<Begun> {
        let what = What::of(question)?;
        let mut failures = self.failures.lock();
        failures.retain(|failure| failure.over > now);
        self.any.store(!failures.is_empty(), Ordering::Release);
        failures
            .iter()
            .find(|failure| failure.id == id && failure.what.meets(&what))
            .map(|failure| failure.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Question {
        Question::Lookup { name: name.as_bytes().into() }
    }

    fn read(offset: u64, len: usize) -> Question {
        Question::Read { offset, len }
    }

    fn noted(behind: &Behind, question: &Question, generation: u8, since: Instant, now: Instant) {
        behind.note(NodeId(1), What::of(question).expect("shared"), Begun { since, generation }, now);
    }

    #[test]
    fn those_who_ask_for_the_same_began_with_the_first() {
        let (behind, start) = (Behind::default(), Instant::now());
        let failed = start + Duration::from_secs(60);
        assert_eq!(behind.begun(NodeId(1), &lookup("a")).generation, 0);
        noted(&behind, &lookup("a"), 1, start, failed);
        noted(&behind, &read(4096, 8192), 1, start, failed);
        let since = |id: u64, question: &Question, after: Duration| {
            behind.find(NodeId(id), question, failed + after).map(|begun| begun.since)
        };
        let soon = MOMENT / 2;
        assert_eq!(since(1, &lookup("a"), soon), Some(start));
        assert_eq!(since(1, &read(8192, 4096), soon), Some(start));
        for other in
            [lookup("b"), read(0, 4096), read(12_288, 4096), Question::LinkTarget, Question::Attributes]
        {
            assert_eq!(since(1, &other, soon), None, "{other:?}");
        }
        assert_eq!(since(2, &lookup("a"), soon), None, "another directory");
        assert_eq!(since(1, &lookup("a"), MOMENT), None, "a new attempt has its own time");
        assert!(!behind.any.load(Ordering::Acquire), "nothing is kept");
    }

    #[test]
    fn a_moment_is_not_drawn_out_by_those_who_follow() {
        let (behind, start) = (Behind::default(), Instant::now());
        noted(&behind, &lookup("a"), 1, start, start);
        noted(&behind, &lookup("a"), 2, start, start + MOMENT / 2);
        assert!(behind.find(NodeId(1), &lookup("a"), start + MOMENT).is_none());
    }

    #[test]
    fn not_more_than_some_are_remembered() {
        let (behind, start) = (Behind::default(), Instant::now());
        (0..2 * MOST).for_each(|number| noted(&behind, &lookup(&number.to_string()), 1, start, start));
        assert_eq!(behind.failures.lock().len(), MOST);
        assert!(behind.find(NodeId(1), &lookup(&(2 * MOST - 1).to_string()), start).is_some());
    }
}
