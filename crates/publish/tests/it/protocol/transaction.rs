//! Model of a transaction, which reads its base for as long as it is open.

use super::{Fault, Objects, Protocol, State, Tree, catalog, needs};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Transaction {
    step: Step,
    /// The tree that it is based on.
    base: Tree,
    is_recorded: bool,
    /// Whether no list began or ended since it read the head.
    pub(super) knows_lists: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Step {
    #[default]
    Idle,
    /// It has read the head.
    Begun,
    /// It is recorded in the repository.
    Recorded,
    /// It has found its base intact; it may end at any time, or never.
    Open,
    Done,
}

impl Transaction {
    /// Returns the objects that have to stay.
    pub(super) fn needs(&self) -> Objects {
        if self.step == Step::Open { needs(self.base) } else { 0 }
    }

    /// Returns the tree that a record keeps.
    pub(super) fn recorded(&self) -> Option<Tree> {
        self.is_recorded.then_some(self.base)
    }

    /// Returns the objects that a record keeps.
    pub(super) fn keeps(&self) -> Objects {
        self.recorded().map_or(0, needs)
    }
}

pub(super) fn steps(protocol: &Protocol, state: &State, next: &mut Vec<(&'static str, State)>) {
    let mut add = |name, change: &dyn Fn(&State, &mut Transaction)| {
        let mut state = *state;
        let mut transaction = state.transaction;
        change(&state, &mut transaction);
        state.transaction = transaction;
        next.push((name, state));
    };
    match state.transaction.step {
        Step::Idle => add("transaction reads the head", &|state, me| {
            (me.step, me.base, me.knows_lists) = (Step::Begun, state.tree, true);
        }),
        Step::Begun => add("transaction is recorded", &|_, me| {
            (me.step, me.is_recorded) = (Step::Recorded, true);
        }),
        Step::Recorded => {
            add("transaction looks for its base", &|state, me| {
                let root = catalog(me.base);
                let is_known = me.knows_lists || protocol.fault == Fault::NoNumber;
                let is_kept = is_known && state.present & root != 0 && !state.is_listed(root);
                *me = match is_kept || protocol.fault == Fault::NoLook {
                    true => Transaction { step: Step::Open, knows_lists: false, ..*me },
                    false => Transaction { step: Step::Done, ..Transaction::default() },
                };
            });
            // The record is left; its folder is there.
            add("transaction crashes before its command", &|_, me| {
                (me.step, me.knows_lists) = (Step::Done, false);
            });
        }
        Step::Open => add("transaction ends", &|_, me| {
            *me = Transaction { step: Step::Done, ..Transaction::default() };
        }),
        Step::Done => {}
    }
}
