//! How many requests of each user a server is sent at once.
//!
//! A server is sent a number of requests at most, and they are started in the order of the [`FairQueue`]. What is under way
//! takes long over a slow link, so a user who comes later would wait for its end. That is why some places beyond that
//! number are there for users who have less than their share under way, and the last of them only for those who have
//! nothing under way.

use std::collections::{HashMap, HashSet};

use super::fair::{FairQueue, User};

/// Demands under way, by user.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<User, usize>);

/// What decides about the next place.
pub(super) struct Places {
    /// Places in use.
    pub(super) busy: usize,
    /// Places for all.
    pub(super) most: usize,
    /// Users who have demands under way or in the queue.
    pub(super) present: usize,
}

impl Users {
    pub(super) fn begin(&mut self, user: User) {
        *self.0.entry(user).or_default() += 1;
    }

    pub(super) fn end(&mut self, user: User) {
        if let Some(count) = self.0.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&user);
            }
        }
    }

    /// How many demands of this user are under way.
    pub(super) fn of(&self, user: User) -> usize {
        self.0.get(&user).copied().unwrap_or(0)
    }

    /// How many users have demands under way or in the queue.
    pub(super) fn present<T>(&self, queue: &FairQueue<T>) -> usize {
        queue.users().chain(self.0.keys().copied()).collect::<HashSet<User>>().len()
    }
}

impl Places {
    /// Whether a user who has so many demands under way may have one more.
    pub(super) fn may_start(&self, under_way: usize) -> bool {
        if self.busy < self.most {
            return true;
        }
        // A user alone has no others to be fair to.
        let further = self.busy - self.most;
        let kept = (self.most / 8).max(1);
        self.present > 1
            && if under_way == 0 {
                further < self.most / 2 + kept
            } else {
                under_way < self.most / self.present && further < self.most / 2
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_the_bound_are_for_those_with_less_than_their_share() {
        let may = |busy, present, under_way| Places { busy, most: 16, present }.may_start(under_way);
        assert!(may(15, 1, 15) && !may(16, 1, 0), "a user alone has all places, and no others");
        assert!(
            may(16, 2, 0) && may(16, 2, 7) && !may(16, 2, 8),
            "half of the places are the share of each of two"
        );
        assert!(
            !may(24, 2, 1) && may(24, 2, 0) && may(25, 2, 0),
            "the last are for those who have nothing under way"
        );
        assert!(!may(26, 3, 0), "there is an end");
        assert!(may(16, 40, 0) && !may(16, 40, 1), "among many users each has one");
    }

    #[test]
    fn users_are_present_with_demands_under_way_or_queued() {
        let (mut users, mut queue) = (Users::default(), FairQueue::default());
        users.begin(Some(1));
        users.begin(Some(1));
        queue.push(Some(1), ());
        queue.push(None, ());
        assert_eq!((users.of(Some(1)), users.of(None), users.present(&queue)), (2, 0, 2));
        users.end(Some(1));
        users.end(Some(1));
        assert_eq!((users.of(Some(1)), users.present(&queue)), (0, 2));
    }
}
