//! Queues requests of several users fairly by deficit round robin (Shreedhar and Varghese, 1996).
//!
//! Each user has a queue of its own, and the queues are served in turn. A turn earns a user credit for some bytes,
//! which its requests use up; unused credit is kept for the next turn, but not beyond the end of its queue. So users
//! who always wait get the same number of bytes, however many requests each has and however large they are.

use std::collections::VecDeque;

/// User number; none for requests of the node itself.
pub(super) type User = Option<u32>;

/// Credit in bytes that a user earns in each turn.
const QUANTUM: u64 = 256 << 10;
/// Minimum cost of a request in bytes, since a request takes time beside its bytes.
const COST_MIN: u64 = 16 << 10;
/// Maximum cost of a request in bytes, so that its turn comes after a bounded number of rounds.
const COST_MAX: u64 = 8 << 20;

/// Maximum number of requests of a user examined for one that may start.
const SCANNED_MAX: usize = 64;

/// End of a user's queue to take from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The request that has waited longest.
    Oldest,
    /// The newest request.
    Newest,
}

/// Waiting requests: a queue for each user who has some, in the order of their turns.
pub(super) struct FairQueue<T>(VecDeque<Queue<T>>);

struct Queue<T> {
    user: User,
    waiting: VecDeque<T>,
    credit: u64,
}

/// A request that may start.
struct Ready {
    /// Position in the user's queue.
    at: usize,
    price: u64,
    /// Number of turns needed to earn the request's cost.
    turns: u64,
}

impl<T> Queue<T> {
    /// Returns the first request that may start, seen from one end.
    fn ready(&self, may: impl Fn(User, &T) -> bool, cost: impl Fn(&T) -> u64, end: End) -> Option<Ready> {
        let may = |item: &T| may(self.user, item);
        let at = match end {
            End::Oldest => self.waiting.iter().take(SCANNED_MAX).position(may)?,
            End::Newest => {
                self.waiting.len() - 1 - self.waiting.iter().rev().take(SCANNED_MAX).position(may)?
            }
        };
        let price = cost(self.waiting.get(at)?).clamp(COST_MIN, COST_MAX);
        Some(Ready { at, price, turns: price.saturating_sub(self.credit).div_ceil(QUANTUM) })
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> FairQueue<T> {
    pub(super) fn push(&mut self, user: User, item: T) {
        match self.0.iter_mut().find(|queue| queue.user == user) {
            Some(queue) => queue.waiting.push_back(item),
            None => self.0.push_back(Queue { user, waiting: [item].into(), credit: 0 }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the users with waiting requests.
    pub(super) fn users(&self) -> impl Iterator<Item = User> + '_ {
        self.0.iter().map(|queue| queue.user)
    }

    /// Returns the number of waiting requests of this user.
    pub(super) fn len_of(&self, user: User) -> usize {
        self.0.iter().find(|queue| queue.user == user).map_or(0, |queue| queue.waiting.len())
    }

    /// Takes the next request that may start.
    pub(super) fn next(
        &mut self,
        may: impl Fn(User, &T) -> bool,
        cost: impl Fn(&T) -> u64,
        end: End,
    ) -> Option<T> {
        let ready: Vec<Option<Ready>> = self.0.iter().map(|queue| queue.ready(&may, &cost, end)).collect();
        let in_turn = ready.iter().enumerate().filter_map(|(place, ready)| Some((place, ready.as_ref()?)));
        // Of several the first.
        let (place, Ready { at, price, turns }) = in_turn.min_by_key(|(_, ready)| ready.turns)?;
        // Those before it have had one turn more.
        for (other, (queue, _)) in
            self.0.iter_mut().zip(&ready).enumerate().filter(|(_, (_, ready))| ready.is_some())
        {
            queue.credit += QUANTUM * (turns + u64::from(other < place));
        }
        self.0.rotate_left(place);
        let queue = self.0.front_mut()?;
        queue.credit -= price;
        let item = queue.waiting.remove(*at);
        if queue.waiting.is_empty() {
            self.0.pop_front();
        }
        item
    }

    /// Takes all requests that `picks` selects.
    pub(super) fn take(&mut self, picks: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for queue in &mut self.0 {
            let all = std::mem::take(&mut queue.waiting);
            let (out, stay): (VecDeque<T>, VecDeque<T>) = all.into_iter().partition(&picks);
            taken.extend(out);
            queue.waiting = stay;
        }
        self.0.retain(|queue| !queue.waiting.is_empty());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: User = Some(1);
    const B: User = Some(2);

    /// Takes so many requests of given sizes; returns the bytes that each user got.
    fn served(queue: &mut FairQueue<(User, u64)>, count: usize) -> (u64, u64) {
        let mut bytes = (0, 0);
        for _ in 0..count {
            let Some((user, size)) = queue.next(|_, _| true, |item| item.1, End::Oldest) else { break };
            *(if user == A { &mut bytes.0 } else { &mut bytes.1 }) += size;
        }
        bytes
    }

    #[test]
    fn users_get_equal_bytes_for_requests_of_any_size() {
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
    fn users_without_a_slot_are_skipped_and_order_is_kept() {
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
