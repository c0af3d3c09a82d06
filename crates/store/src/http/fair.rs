//! A queue that users share fairly: deficit round robin (Shreedhar and Varghese, 1996).
//!
//! Each user has a queue of its own, and the queues are served in turn. A turn earns a user credit for so many bytes, which
//! its requests use up; what it doesn't use is kept for the next turn, but not beyond the end of its queue. So users who
//! always wait get the same number of bytes, however many requests each has and however large they are.

use std::collections::{HashMap, VecDeque};

/// The number of a user; none for what the node needs for itself.
pub(super) type User = Option<u32>;

/// Bytes that a user is given credit for in each turn.
const QUANTUM: u64 = 256 << 10;
/// What a request costs at least: asking takes time, too.
const COST_MIN: u64 = 16 << 10;
/// What a request costs at most. A larger object costs as much, so that its turn comes after a bounded number of rounds.
const COST_MAX: u64 = 8 << 20;

/// Requests of a user that are looked through for one that may start.
const LOOKED_AT: usize = 64;

/// Which end of a user's queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The request that has waited longest.
    Oldest,
    /// The request that came last.
    Newest,
}

/// Requests that wait, by user.
pub(super) struct FairQueue<T> {
    queues: HashMap<User, Queue<T>>,
    /// The users who have requests here, in the order of their turns.
    turns: VecDeque<User>,
}

struct Queue<T> {
    waiting: VecDeque<T>,
    credit: u64,
}

impl<T> Queue<T> {
    /// Where the first request is that may start, seen from one end.
    fn first(&self, may: impl Fn(&T) -> bool, end: End) -> Option<usize> {
        match end {
            End::Oldest => self.waiting.iter().take(LOOKED_AT).position(may),
            End::Newest => {
                let back = self.waiting.iter().rev().take(LOOKED_AT).position(may)?;
                Some(self.waiting.len() - 1 - back)
            }
        }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn push(&mut self, user: User, item: T) {
        let turns = &mut self.turns;
        let queue = self.queues.entry(user).or_insert_with(|| {
            turns.push_back(user);
            Queue { waiting: VecDeque::new(), credit: 0 }
        });
        queue.waiting.push_back(item);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The users who have requests here.
    pub(super) fn users(&self) -> impl Iterator<Item = User> + '_ {
        self.turns.iter().copied()
    }

    /// How many requests of this user wait.
    pub(super) fn len_of(&self, user: User) -> usize {
        self.queues.get(&user).map_or(0, |queue| queue.waiting.len())
    }

    /// Takes the next of the requests that may start.
    pub(super) fn next(
        &mut self,
        may: impl Fn(User, &T) -> bool,
        cost: impl Fn(&T) -> u64,
        end: End,
    ) -> Option<T> {
        let first = |user: &User| Some((*user, self.queues.get(user)?.first(|item| may(*user, item), end)?));
        let may_start: HashMap<User, usize> = self.turns.iter().filter_map(first).collect();
        if may_start.is_empty() {
            return None;
        }
        loop {
            let user = *self.turns.front()?;
            if let Some(at) = may_start.get(&user) {
                let queue = self.queues.get_mut(&user)?;
                let price = cost(queue.waiting.get(*at)?).clamp(COST_MIN, COST_MAX);
                if queue.credit >= price {
                    queue.credit -= price;
                    let item = queue.waiting.remove(*at);
                    if queue.waiting.is_empty() {
                        self.forget(user);
                    }
                    return item;
                }
                queue.credit += QUANTUM;
            }
            self.turns.rotate_left(1);
        }
    }

    /// Takes all that `picks` picks.
    pub(super) fn take(&mut self, picks: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for queue in self.queues.values_mut() {
            let (out, stay): (Vec<T>, Vec<T>) =
                std::mem::take(&mut queue.waiting).into_iter().partition(&picks);
            taken.extend(out);
            queue.waiting = stay.into();
        }
        let empty: Vec<User> = self.users().filter(|user| self.len_of(*user) == 0).collect();
        empty.into_iter().for_each(|user| self.forget(user));
        taken
    }

    fn forget(&mut self, user: User) {
        self.queues.remove(&user);
        self.turns.retain(|other| *other != user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: User = Some(1);
    const B: User = Some(2);

    /// Takes so many requests of stated sizes; returns how many bytes each user got.
    fn served(queue: &mut FairQueue<(User, u64)>, count: usize) -> (u64, u64) {
        let mut bytes = (0, 0);
        for _ in 0..count {
            let Some((user, size)) = queue.next(|_, _| true, |item| item.1, End::Oldest) else { break };
            *(if user == A { &mut bytes.0 } else { &mut bytes.1 }) += size;
        }
        bytes
    }

    #[test]
    fn users_get_the_same_number_of_bytes_whatever_they_ask_for() {
        let mut queue = FairQueue::default();
        for _ in 0..1000 {
            queue.push(A, (A, 3 << 20));
        }
        for _ in 0..1000 {
            queue.push(B, (B, 100 << 10));
        }
        let (a, b) = served(&mut queue, 400);
        let ratio = a as f64 / b as f64;
        assert!((0.8..1.25).contains(&ratio), "{a} and {b} bytes");
    }

    #[test]
    fn a_first_request_waits_for_one_object_of_a_flood() {
        let mut queue = FairQueue::default();
        for _ in 0..420 {
            queue.push(A, (A, 3 << 20));
        }
        served(&mut queue, 7);
        queue.push(B, (B, 4096));
        let before = std::iter::from_fn(|| queue.next(|_, _| true, |item| item.1, End::Oldest))
            .take_while(|(user, _)| *user == A)
            .count();
        assert!(before <= 1, "{before} objects came first");
    }

    #[test]
    fn users_who_may_not_are_passed_over_and_the_order_of_each_is_kept() {
        let mut queue = FairQueue::default();
        for number in 0..4 {
            queue.push(A, number);
            queue.push(B, 10 + number);
        }
        assert_eq!(queue.next(|_, _| false, |_| 1, End::Oldest), None);
        assert_eq!(queue.next(|user, _| user == B, |_| 1, End::Oldest), Some(10));
        assert_eq!(queue.next(|user, _| user == B, |_| 1, End::Newest), Some(13));
        assert_eq!(queue.next(|_, number| *number == 12, |_| 1, End::Oldest), Some(12), "passing one over");
        queue.push(B, 12);
        assert_eq!(queue.take(|number| *number == 11), [11]);
        assert_eq!(queue.take(|number| *number == 12), [12]);
        assert_eq!((queue.len_of(A), queue.len_of(B)), (4, 0));
        let rest: Vec<i32> = std::iter::from_fn(|| queue.next(|_, _| true, |_| 1, End::Oldest)).collect();
        assert_eq!(rest, [0, 1, 2, 3]);
        assert!(queue.is_empty() && queue.users().next().is_none());
    }
}
