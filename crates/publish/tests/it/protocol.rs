//! The protocol of publishers, collect and replication, as a small model of which every state is visited.
//!
//! Three publishers change one path each; a transaction reads its base for as long as it is open. The first two use object X, which at first only a revision that a collect
//! sweeps names; the third one uses Z, which the published revision names until the second publisher takes it out. Every
//! actor may end at every step. See docs/decisions/0117-one-commit.md.

mod collector;
mod publisher;
mod replicator;
mod transaction;

use esker_testkit::state_space::{Explored, Model, explore};

use collector::Collector;
use publisher::Publisher;
use replicator::Replicator;
use transaction::Transaction;

/// A set of objects: X, Z, and the catalogs of the eight trees.
type Objects = u16;

const X: Objects = 1;
const Z: Objects = 2;

/// A tree: the set of publishers whose change is in it.
type Tree = u8;

/// Returns the catalog of a tree.
fn catalog(tree: Tree) -> Objects {
    4 << tree
}

/// Returns the objects that a tree needs.
fn needs(tree: Tree) -> Objects {
    let x = if tree & 0b011 != 0 { X } else { 0 };
    let z = if tree & 0b010 == 0 || tree & 0b100 != 0 { Z } else { 0 };
    x | z | catalog(tree)
}

/// Returns the objects that any tree of a set needs.
fn needs_all(trees: u8) -> Objects {
    (0..8).filter(|tree| trees & 1 << tree != 0).fold(0, |objects, tree| objects | needs(tree))
}

/// Part of the protocol that is left out, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A commit leaves its objects on the list.
    NoRevive,
    /// A commit replaces any head.
    NoCompare,
    /// Objects are deleted at once.
    NoGrace,
    /// A commit does not look whether its objects are there.
    NoCheck,
    /// A commit does not notice that a list came and went.
    NoNumber,
    /// The end of a list is not counted.
    NoEndNumber,
    /// The catalogs that were stored before the lock are not looked after.
    NoRewrite,
    /// A collect decides by the head that it read before it took the lock.
    NoSecondMark,
    /// A collect decides what to delete before it takes the lock.
    EarlyBatch,
    /// A replica gets its head before its objects.
    HeadFirst,
    /// A collect does not read the records of transactions.
    NoRecords,
    /// A collect does not read them again when it deletes.
    NoSecondRead,
    /// A transaction does not look at the list once it is recorded.
    NoLook,
}

/// Actors that are in flight, as bits; the replicator is the one after the publishers.
const PUBLISHERS: usize = 3;
const REPLICATOR: u8 = 1 << PUBLISHERS;

/// The condemned objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct List {
    objects: Objects,
    /// Actors that were in flight when the list was written; the grace time lasts longer than they.
    waits_for: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// The published tree.
    tree: Tree,
    /// Whether the reflog has the root of a revision that names X.
    old_root: bool,
    /// Trees that have a tag, and those in the reflog.
    tags: u8,
    reflog: u8,
    present: Objects,
    list: Option<List>,
    /// Number of lists that were begun.
    lists: u8,
    locked: bool,
    /// Publishers whose commit was accepted.
    accepted: u8,
    publishers: [Publisher; PUBLISHERS],
    collector: Collector,
    replicator: Replicator,
    transaction: Transaction,
    fault: Option<&'static str>,
}

/// The model, and how much of it there is.
struct Protocol {
    publishers: usize,
    /// Most lists of condemned objects.
    collections: u8,
    /// Whether the grace time is longer than any actor takes.
    long_grace: bool,
    /// Whether a collect also takes objects that no revision ever named.
    orphans: bool,
    replicates: bool,
    transaction: bool,
    fault: Fault,
}

impl State {
    /// Records that an actor no longer depends on the objects it saw.
    fn ended(&mut self, actor: u8) {
        if let Some(list) = &mut self.list {
            list.waits_for &= !actor;
        }
    }

    /// Counts the begin or the end of a list.
    fn count(&mut self) {
        self.publishers.iter_mut().for_each(|publisher| publisher.knows_lists = false);
        self.transaction.knows_lists = false;
    }

    /// Notes that the head is another one than before.
    fn replaced_head(&mut self, protocol: &Protocol) {
        self.publishers.iter_mut().for_each(|publisher| publisher.grow_stale(protocol));
    }

    fn is_listed(&self, object: Objects) -> bool {
        self.list.is_some_and(|list| list.objects & object != 0)
    }

    fn in_flight(&self) -> u8 {
        let flying = |number: &usize| self.publishers[*number].is_in_flight();
        let publishers = (0..PUBLISHERS).filter(flying).fold(0, |actors, number| actors | 1 << number);
        publishers | if self.replicator.is_in_flight() { REPLICATOR } else { 0 }
    }
}

impl Model for Protocol {
    type State = State;

    fn initial(&self) -> State {
        State {
            tree: 0,
            old_root: true,
            tags: 0,
            reflog: 1,
            present: needs(0) | X,
            list: None,
            lists: 0,
            locked: false,
            accepted: 0,
            publishers: [Publisher::default(); PUBLISHERS],
            collector: Collector::default(),
            replicator: Replicator::of(0),
            transaction: Transaction::default(),
            fault: None,
        }
    }

    fn steps(&self, state: &State, next: &mut Vec<(&'static str, State)>) {
        for number in 0..self.publishers {
            publisher::steps(self, state, number, next);
        }
        collector::steps(self, state, next);
        if self.transaction {
            transaction::steps(self, state, next);
        }
        if self.replicates {
            replicator::steps(self, state, next);
        }
    }

    fn fault(&self, state: &State) -> Option<&'static str> {
        let needed = needs(state.tree) | needs_all(state.tags);
        let replica = state.replicator;
        if state.accepted & !state.tree != 0 {
            Some("an accepted commit is lost")
        } else if needed & !state.present != 0 {
            Some("an object of the head or of a tag is missing")
        } else if needs(replica.head) & !replica.present != 0 {
            Some("an object of the head of the replica is missing")
        } else if state.transaction.needs() & !state.present != 0 {
            Some("an object of the base of a transaction is missing")
        } else if self.long_grace && (0..self.publishers).any(|number| publisher::is_deceived(state, number))
        {
            Some("an object that a publisher counts on is deleted")
        } else {
            state.fault
        }
    }
}

#[allow(clippy::print_stdout, reason = "the report of a test")]
fn explored(name: &str, protocol: &Protocol) -> Explored {
    let begun = std::time::Instant::now();
    let explored = explore(protocol);
    let (states, steps, ends) = (explored.states, explored.steps, explored.ends);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{name}: {states} states, {steps} steps, {ends} ends, {seconds:.1} s");
    explored
}

const WHOLE: Protocol = Protocol {
    publishers: PUBLISHERS,
    collections: 1,
    long_grace: false,
    orphans: true,
    replicates: true,
    transaction: false,
    fault: Fault::None,
};

/// With a transaction in place of the replication and of a publisher.
const TRANSACTION: Protocol = Protocol { publishers: 2, replicates: false, transaction: true, ..WHOLE };

#[test]
fn three_publishers_a_collect_and_a_replication_lose_nothing() {
    for long_grace in [true, false] {
        let explored =
            explored(&format!("whole, long grace {long_grace}"), &Protocol { long_grace, ..WHOLE });
        assert_eq!(explored.fault, None);
        assert!(explored.states > 10_000);
    }
}

#[test]
fn three_publishers_and_two_collects_lose_nothing() {
    for (long_grace, orphans) in [(true, true), (false, true), (false, false)] {
        let two = Protocol { collections: 2, long_grace, orphans, ..WHOLE };
        let explored = explored(&format!("two collects, long grace {long_grace}, orphans {orphans}"), &two);
        assert_eq!(explored.fault, None);
    }
}

#[test]
fn a_transaction_keeps_its_base_beside_publishers_and_collects() {
    for (collections, orphans) in [(1, true), (2, true), (2, false)] {
        let protocol = Protocol { collections, orphans, ..TRANSACTION };
        let explored =
            explored(&format!("a transaction, {collections} collects, orphans {orphans}"), &protocol);
        assert_eq!(explored.fault, None);
        assert!(explored.states > 10_000);
    }
}

#[test]
fn every_part_of_the_protocol_that_is_left_out_is_noticed() {
    let lost = "an accepted commit is lost";
    let missing = "an object of the head or of a tag is missing";
    let cases = [
        (Fault::NoRevive, true, missing),
        (Fault::NoRevive, false, missing),
        (Fault::NoCompare, true, lost),
        (Fault::NoGrace, true, "an object that a publisher counts on is deleted"),
        (Fault::NoCheck, false, missing),
        (Fault::NoNumber, false, missing),
        (Fault::NoEndNumber, false, missing),
        (Fault::NoRewrite, false, missing),
        (Fault::NoSecondMark, false, missing),
        (Fault::EarlyBatch, false, missing),
        (Fault::HeadFirst, true, "an object of the head of the replica is missing"),
    ];
    for (fault, long_grace, expected) in cases {
        let explored = explored(&format!("{fault:?}"), &Protocol { fault, long_grace, ..WHOLE });
        let (found, steps) = explored.fault.unwrap_or_else(|| panic!("{fault:?} is not noticed"));
        println!("  {}", steps.join(", "));
        assert_eq!(found, expected, "{fault:?}");
    }
    for fault in [Fault::NoRecords, Fault::NoSecondRead, Fault::NoLook, Fault::NoNumber] {
        let explored = explored(&format!("{fault:?}"), &Protocol { fault, ..TRANSACTION });
        let (found, steps) = explored.fault.unwrap_or_else(|| panic!("{fault:?} is not noticed"));
        println!("  {}", steps.join(", "));
        let base = "an object of the base of a transaction is missing";
        assert!(found == base || fault == Fault::NoNumber && found == missing, "{fault:?}: {found}");
    }
}
