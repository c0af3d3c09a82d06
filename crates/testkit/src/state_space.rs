//! Explores all states of a small model of a protocol, and finds the shortest way to one that must not be.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A model of a protocol: actors that make one step at a time, in any order.
pub trait Model {
    /// State of all actors, and of what they share.
    type State: Clone + Eq + Hash;

    /// Returns the state in which everything begins.
    fn initial(&self) -> Self::State;

    /// Adds every state that one step of one actor leads to, with the name of the step.
    fn steps(&self, state: &Self::State, next: &mut Vec<(&'static str, Self::State)>);

    /// Returns the fault of a state, if it has one.
    fn fault(&self, state: &Self::State) -> Option<&'static str>;
}

/// Result of exploring a model.
#[derive(Debug)]
pub struct Explored {
    /// Number of different states.
    pub states: usize,
    /// Number of steps between them.
    pub steps: usize,
    /// Number of states without a next step.
    pub ends: usize,
    /// Fault of the first bad state, and the steps that lead to it.
    pub fault: Option<(&'static str, Vec<&'static str>)>,
}

/// Explores every state that can be reached, nearest first; ends at the first bad one.
pub fn explore<M: Model>(model: &M) -> Explored {
    let mut known: HashMap<M::State, u32, BuildHasherDefault<Mixer>> = HashMap::default();
    // The state that each was reached from, and by which step.
    let mut origins: Vec<(u32, &'static str)> = vec![(0, "")];
    let mut waiting = VecDeque::from([(model.initial(), 0)]);
    known.insert(model.initial(), 0);
    let (mut steps, mut ends) = (0, 0);
    let mut next = Vec::new();
    let mut fault = None;
    while let Some((state, number)) = waiting.pop_front() {
        if let Some(what) = model.fault(&state) {
            fault = Some((what, trace(&origins, number)));
            break;
        }
        next.clear();
        model.steps(&state, &mut next);
        steps += next.len();
        ends += usize::from(next.is_empty());
        for (name, state) in next.drain(..) {
            let fresh = u32::try_from(origins.len()).expect("fewer than four billion states");
            if let std::collections::hash_map::Entry::Vacant(place) = known.entry(state) {
                waiting.push_back((place.key().clone(), fresh));
                place.insert(fresh);
                origins.push((number, name));
            }
        }
    }
    Explored { states: origins.len(), steps, ends, fault }
}

fn trace(origins: &[(u32, &'static str)], mut number: u32) -> Vec<&'static str> {
    let mut names = Vec::new();
    while number != 0 {
        let (before, name) = origins[number as usize];
        names.push(name);
        number = before;
    }
    names.reverse();
    names
}

/// Hash for small states: fast, and good enough for a table that compares whole states.
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters that never pass their bound; with a fault they may both be at it.
    struct Counters {
        faulty: bool,
    }

    impl Model for Counters {
        type State = (u8, u8);

        fn initial(&self) -> (u8, u8) {
            (0, 0)
        }

        fn steps(&self, &(a, b): &(u8, u8), next: &mut Vec<(&'static str, (u8, u8))>) {
            if a < 3 && (self.faulty || b < 3) {
                next.push(("a", (a + 1, b)));
            }
            if b < 3 && (self.faulty || a < 3) {
                next.push(("b", (a, b + 1)));
            }
        }

        fn fault(&self, state: &(u8, u8)) -> Option<&'static str> {
            (*state == (3, 3)).then_some("both are at the end")
        }
    }

    #[test]
    fn all_states_are_visited_and_the_shortest_way_to_a_fault_is_found() {
        let right = explore(&Counters { faulty: false });
        assert_eq!((right.states, right.steps, right.ends), (15, 18, 6));
        assert!(right.fault.is_none());
        let (what, steps) = explore(&Counters { faulty: true }).fault.expect("a fault");
        assert_eq!((what, steps.len()), ("both are at the end", 6));
    }
}
