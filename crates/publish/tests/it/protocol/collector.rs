//! Model of a collect.

use super::{Fault, List, Objects, Protocol, State, Tree, X, needs, needs_all};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Collector {
    step: Step,
    /// The head and the tags that it read without the lock.
    marked: (Tree, u8),
    /// Objects that it will condemn, or the object that it deletes.
    objects: Objects,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Step {
    /// It has ended, or not begun; a list that is there is taken up.
    #[default]
    Idle,
    Marked,
    /// It has the lock, and knows what to condemn.
    Decided,
    Counted,
    Listed,
    /// It chose an object without the lock, by mistake.
    ChoseEarly,
    /// It has the lock, and chose an object to delete; none at the end.
    Chose,
    Deleted,
    /// It has counted the end of its list.
    Ending,
}

pub(super) fn steps(protocol: &Protocol, state: &State, next: &mut Vec<(&'static str, State)>) {
    let mut add = |name, change: &dyn Fn(&mut State, &mut Collector)| {
        let mut state = *state;
        let mut collector = state.collector;
        change(&mut state, &mut collector);
        state.collector = collector;
        next.push((name, state));
    };
    let me = state.collector;
    match me.step {
        Step::Idle => match state.list {
            None if state.lists < protocol.collections => add("collect marks", &|state, me| {
                me.step = Step::Marked;
                if protocol.fault == Fault::NoSecondMark {
                    me.marked = (state.tree, state.tags);
                }
            }),
            Some(list) if may_delete(protocol, &list) => {
                let ignores = matches!(protocol.fault, Fault::NoRecords | Fault::NoSecondRead);
                let open = if ignores { 0 } else { state.transaction.keeps() };
                let left = list.objects & !open;
                let first = left & left.wrapping_neg();
                if protocol.fault == Fault::EarlyBatch && first != 0 {
                    add("collect chooses an object too early", &|_, me| {
                        (me.step, me.objects) = (Step::ChoseEarly, first);
                    });
                } else if !state.locked {
                    add("collect locks and chooses an object", &|state, me| {
                        (me.step, me.objects, state.locked) = (Step::Chose, first, true);
                    });
                }
            }
            _ => {}
        },
        Step::Marked if !state.locked => add("collect locks and decides", &|state, me| {
            state.locked = true;
            state.lists += 1;
            let current = (state.tree, state.tags);
            let (tree, tags) = if protocol.fault == Fault::NoSecondMark { me.marked } else { current };
            let open = if protocol.fault == Fault::NoRecords { 0 } else { state.transaction.keeps() };
            let kept = needs(tree) | needs_all(tags) | open;
            let swept = if state.old_root { X } else { 0 };
            let known = if protocol.orphans { state.present } else { needs_all(state.reflog) | swept };
            *me = Collector { step: Step::Decided, objects: known & state.present & !kept, marked: (0, 0) };
        }),
        Step::Decided => add("collect counts its list", &|state, me| {
            me.step = Step::Counted;
            state.count();
        }),
        Step::Counted => add("collect writes its list", &|state, me| {
            let waits_for = if protocol.long_grace { state.in_flight() } else { 0 };
            state.list = Some(List { objects: me.objects, waits_for });
            (me.step, me.objects) = (Step::Listed, 0);
        }),
        Step::Listed => add("collect forgets swept roots", &|state, me| {
            if !protocol.orphans {
                let open = state.transaction.recorded().map_or(0, |tree| 1 << tree);
                (state.reflog, state.old_root) = (state.tags | 1 << state.tree | open, false);
            }
            (me.step, state.locked) = (Step::Idle, false);
            state.replaced_head(protocol);
        }),
        Step::ChoseEarly if !state.locked => add("collect locks", &|state, me| {
            (me.step, state.locked) = (Step::Chose, true);
        }),
        Step::Chose if me.objects == 0 => add("collect counts the end of its list", &|state, me| {
            me.step = Step::Ending;
            if protocol.fault != Fault::NoEndNumber {
                state.count();
            }
        }),
        Step::Ending => add("collect removes its list", &|state, me| {
            (state.list, state.locked, *me) = (None, false, Collector::default());
        }),
        Step::Chose => add("collect deletes", &|state, me| {
            state.present &= !me.objects;
            me.step = Step::Deleted;
        }),
        Step::Deleted => add("collect notes what is deleted", &|state, me| {
            if let Some(list) = &mut state.list {
                list.objects &= !me.objects;
            }
            (state.locked, *me) = (false, Collector::default());
        }),
        Step::Marked | Step::ChoseEarly => {}
    }
    if me.step != Step::Idle {
        let holds_lock = !matches!(me.step, Step::Marked | Step::ChoseEarly);
        add("collect crashes", &|state, me| {
            state.locked &= !holds_lock;
            *me = Collector::default();
        });
    }
}

fn may_delete(protocol: &Protocol, list: &List) -> bool {
    !protocol.long_grace || list.waits_for == 0 || protocol.fault == Fault::NoGrace
}
