//! Model of a replication.

use super::{Fault, Objects, Protocol, REPLICATOR, State, Tree, needs};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Replicator {
    /// The tree that it copies, while it does.
    copies: Option<Tree>,
    /// The tree of the replica.
    pub(super) head: Tree,
    pub(super) present: Objects,
}

impl Replicator {
    /// Returns a replica of a tree.
    pub(super) fn of(head: Tree) -> Self {
        Self { copies: None, head, present: needs(head) }
    }

    fn stop(&mut self) {
        self.copies = None;
        self.present &= needs(self.head);
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.copies.is_some()
    }
}

pub(super) fn steps(protocol: &Protocol, state: &State, next: &mut Vec<(&'static str, State)>) {
    let mut add = |name, change: &dyn Fn(&mut State, &mut Replicator)| {
        let mut state = *state;
        let mut replicator = state.replicator;
        change(&mut state, &mut replicator);
        state.replicator = replicator;
        if !replicator.is_in_flight() {
            state.ended(REPLICATOR);
        }
        next.push((name, state));
    };
    let me = state.replicator;
    let Some(tree) = me.copies else {
        if state.tree != me.head {
            add("replication reads the head", &|state, me| {
                me.copies = Some(state.tree);
                if protocol.fault == Fault::HeadFirst {
                    me.head = state.tree;
                }
            });
        }
        return;
    };
    let missing = needs(tree) & !me.present;
    let first = missing & missing.wrapping_neg();
    if missing == 0 {
        // A replica may have more than its head needs. The less it has, the more it has to copy.
        add("replication switches its head", &|_, me| *me = Replicator::of(tree));
    } else if state.present & first != 0 {
        add("replication copies an object", &|_, me| me.present |= first);
    } else {
        add("replication finds an object missing", &|state, me| {
            me.stop();
            if protocol.long_grace {
                state.fault = Some("an object that a replication in flight needs is deleted");
            }
        });
    }
    add("replication crashes", &|_, me| me.stop());
}
