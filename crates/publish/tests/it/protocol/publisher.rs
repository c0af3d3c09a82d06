//! Model of a publisher.

use super::{Fault, Objects, Protocol, State, Tree, X, Z, catalog};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Publisher {
    step: Step,
    /// Whether no list began or ended since it did.
    pub(super) knows_lists: bool,
    /// Whether it uses an object that was there.
    reuses: bool,
    /// Whether its catalogs are made for the present head, and their tree.
    pub(super) is_fresh: bool,
    tree: Tree,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Step {
    #[default]
    Idle,
    /// It has read the number of lists and the head.
    Begun,
    /// It found that its object is missing, or condemned.
    Storing,
    /// Its object is there.
    Stored,
    /// Its catalogs are stored.
    Prepared,
    /// It has the lock, and catalogs for the head under the lock.
    Locked,
    /// Its objects are off the list, and there.
    Kept,
    /// Its commit is accepted, or it has ended in a crash.
    Done,
}

impl Publisher {
    /// Notes that the head is another one.
    pub(super) fn grow_stale(&mut self, protocol: &Protocol) {
        self.is_fresh = false;
        // The catalogs are made again, whatever they are.
        if protocol.fault != Fault::NoCompare && !matches!(self.step, Step::Locked | Step::Kept) {
            self.tree = 0;
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        !matches!(self.step, Step::Idle | Step::Done)
    }
}

/// The object that a publisher puts into its path.
fn object(number: usize) -> Objects {
    if number < 2 { X } else { Z }
}

/// Returns whether an object was deleted that a publisher took for stored.
pub(super) fn is_deceived(state: &State, number: usize) -> bool {
    let publisher = &state.publishers[number];
    publisher.is_in_flight() && publisher.reuses && state.present & object(number) == 0
}

pub(super) fn steps(
    protocol: &Protocol,
    state: &State,
    number: usize,
    next: &mut Vec<(&'static str, State)>,
) {
    let mut add = |name, change: &dyn Fn(&mut State, &mut Publisher)| {
        let mut state = *state;
        let mut publisher = state.publishers[number];
        change(&mut state, &mut publisher);
        state.publishers[number] = publisher;
        if !publisher.is_in_flight() {
            state.ended(1 << number);
        }
        next.push((name, state));
    };
    let me = state.publishers[number];
    let (own, bit) = (object(number), 1 << number);
    match me.step {
        Step::Idle => add("publisher begins", &|_, me| {
            (me.step, me.knows_lists) = (Step::Begun, true);
        }),
        Step::Begun => add("publisher looks for its object", &|state, me| {
            let is_there = state.present & own != 0 && !state.is_listed(own);
            me.step = if is_there { Step::Stored } else { Step::Storing };
            me.reuses = is_there && protocol.long_grace;
        }),
        Step::Storing => add("publisher stores its object", &|state, me| {
            state.present |= own;
            me.step = Step::Stored;
        }),
        Step::Stored => add("publisher stores catalogs", &|state, me| {
            (me.step, me.is_fresh, me.tree) = (Step::Prepared, true, state.tree | bit);
            state.present |= catalog(me.tree);
        }),
        Step::Prepared if !state.locked => add("publisher locks", &|state, me| {
            (me.step, state.locked) = (Step::Locked, true);
            let stale = !me.is_fresh && protocol.fault != Fault::NoCompare;
            let rewrites = may_miss(protocol, state, me) && protocol.fault != Fault::NoRewrite;
            if stale || rewrites {
                (me.is_fresh, me.tree) = (true, state.tree | bit);
                state.present |= catalog(me.tree);
            }
        }),
        Step::Locked => add("publisher keeps its objects", &|state, me| {
            me.step = Step::Kept;
            if !may_miss(protocol, state, me) {
                return;
            }
            let named = own | if protocol.fault == Fault::NoRewrite { 0 } else { catalog(me.tree) };
            if let Some(list) = &mut state.list
                && protocol.fault != Fault::NoRevive
            {
                list.objects &= !named;
            }
            if state.present & named != named && protocol.fault != Fault::NoCheck {
                // An object was collected: it begins anew.
                (state.locked, *me) = (false, Publisher::default());
            }
        }),
        Step::Kept => add("publisher replaces the head", &|state, me| {
            (state.tree, state.locked) = (me.tree, false);
            state.accepted |= bit;
            if !protocol.orphans {
                state.reflog |= 1 << me.tree;
            }
            state.replaced_head(protocol);
            if number == 0 {
                state.tags |= 1 << me.tree;
            }
            *me = Publisher { step: Step::Done, ..Publisher::default() };
        }),
        Step::Prepared | Step::Done => {}
    }
    if me.is_in_flight() {
        let holds_lock = matches!(me.step, Step::Locked | Step::Kept);
        add("publisher crashes", &|state, me| {
            state.locked &= !holds_lock;
            *me = Publisher { step: Step::Done, ..Publisher::default() };
        });
    }
}

fn may_miss(protocol: &Protocol, state: &State, me: &Publisher) -> bool {
    state.list.is_some() || !me.knows_lists && protocol.fault != Fault::NoNumber
}
