//! Divides the requests in flight among users.
//!
//! A server gets a bounded number of requests, started in the order of the
//! [`FairQueue`](super::fair_queue::FairQueue). Requests take long over a slow link, so a user who comes later would wait
//! for their end. So some places beyond that number are reserved for users below their share, and the last of them for
//! users without a request in flight.
//!
//! Transfers share a path, not users: a user with sixteen transfers gets sixteen times as much as a user with one. On a
//! narrow path, which is near and slow and so is full with one request, each of several users therefore gets no more places
//! than the others use; but always one, and more as long as all of them have more requests.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::fair_queue::User;

/// Time for which a user counts as present after a demand, since the next one may follow at once.
const PRESENT: Duration = Duration::from_millis(100);
/// Rate in bytes a second below which a path is slow.
const SLOW: f64 = (16 << 20) as f64;
/// Time over which the rate is measured.
const COUNTED: Duration = Duration::from_millis(100);

/// Demands of each user.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<User, UnderWay>);

#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    count: usize,
    /// End of the last demand.
    ended: Option<Instant>,
}

impl UnderWay {
    fn is_present(&self, now: Instant) -> bool {
        self.count > 0 || self.ended.is_some_and(|ended| now.saturating_duration_since(ended) < PRESENT)
    }
}

/// Delivery rate of a server while responses are in flight.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    since: Option<Instant>,
    bytes: u64,
    /// Rate in bytes a second.
    rate: Option<f64>,
}

impl Throughput {
    pub(super) fn came(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let took = now.saturating_duration_since(*self.since.get_or_insert(now));
        if took >= COUNTED {
            self.rate = Some(self.bytes as f64 / took.as_secs_f64());
            (self.since, self.bytes) = (Some(now), 0);
        }
    }

    /// Records that no request is in flight.
    pub(super) fn idle(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }

    /// Returns whether delivery is slow; false while unknown.
    pub(super) fn is_slow(&self) -> bool {
        self.rate.is_some_and(|rate| rate < SLOW)
    }
}

/// Input for the decision about the next place.
pub(super) struct Places<'a> {
    users: &'a Users,
    /// Places in use by the user, and by all.
    busy: usize,
    most: usize,
    is_narrow: bool,
    /// Users with current or recent demands, with the number in flight, plus one if more are queued.
    present: HashMap<User, usize>,
}

impl Users {
    pub(super) fn begin(&mut self, user: User) {
        self.0.entry(user).or_default().count += 1;
    }

    pub(super) fn end(&mut self, user: User) {
        let now = Instant::now();
        if let Some(under_way) = self.0.get_mut(&user) {
            under_way.count -= 1;
            under_way.ended = Some(now);
        }
        self.0.retain(|_, under_way| under_way.is_present(now));
    }

    /// Returns the number of demands in flight of this user.
    pub(super) fn of(&self, user: User) -> usize {
        self.0.get(&user).map_or(0, |under_way| under_way.count)
    }

    /// Returns the places of a user at a server with at most `most` requests, `busy` of them in flight.
    pub(super) fn places(
        &self,
        (busy, most, is_narrow): (usize, usize, bool),
        queued: impl Iterator<Item = User>,
    ) -> Places<'_> {
        let now = Instant::now();
        let here = self.0.iter().filter(|(_, under_way)| under_way.is_present(now));
        let mut present: HashMap<User, usize> =
            here.map(|(user, under_way)| (*user, under_way.count)).collect();
        queued.for_each(|user| *present.entry(user).or_default() += 1);
        Places { users: self, busy, most, is_narrow, present }
    }
}

impl Places<'_> {
    /// Returns whether another demand of this user may start.
    pub(super) fn may_start(&self, user: User) -> bool {
        let mine = self.users.of(user);
        self.is_free(mine) && (!self.is_narrow || self.is_due(user, mine))
    }

    fn is_free(&self, mine: usize) -> bool {
        if self.busy < self.most {
            return true;
        }
        // A user alone has no others to be fair to.
        let (further, kept) = (self.busy - self.most, (self.most / 8).max(1));
        self.present.len() > 1
            && if mine == 0 {
                further < self.most / 2 + kept
            } else {
                mine < self.most / self.present.len() && further < self.most / 2
            }
    }

    /// Returns true if it is this user's turn on a narrow path.
    fn is_due(&self, user: User, mine: usize) -> bool {
        let least = self.present.iter().filter(|(other, _)| **other != user).map(|(_, count)| *count).min();
        least.is_none_or(|least| mine < least.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: User = Some(1);
    const NARROW: bool = true;
    const WIDE: bool = false;

    /// Creates users with so many demands in flight.
    fn users(counts: &[(User, usize)]) -> Users {
        let mut users = Users::default();
        for (user, count) in counts {
            (0..*count).for_each(|_| users.begin(*user));
        }
        users
    }

    /// Returns true if a user may start another request beside waiting users.
    fn may(busy: usize, others: u32, mine: usize) -> bool {
        let users = users(&[(ME, mine)]);
        let queued = (0..others).map(|other| Some(100 + other)).chain([ME]);
        users.places((busy, 16, WIDE), queued).may_start(ME)
    }

    #[tokio::test(start_paused = true)]
    async fn places_beyond_the_bound_are_for_those_with_less_than_their_share() {
        assert!(may(15, 0, 15) && !may(16, 0, 0), "a user alone has all places, and no others");
        assert!(
            may(16, 1, 0) && may(16, 1, 7) && !may(16, 1, 8),
            "half of the places are the share of each of two"
        );
        assert!(
            !may(24, 1, 1) && may(24, 1, 0) && may(25, 1, 0),
            "the last are for those who have nothing under way"
        );
        assert!(!may(26, 2, 0), "there is an end");
        assert!(may(16, 39, 0) && !may(16, 39, 1), "among many users each has one");
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_narrow_path_users_get_equal_numbers_of_slots() {
        let other = Some(2);
        let mut both = users(&[(ME, 1), (other, 1)]);
        let may = |users: &Users, user, queued: &[User]| {
            users.places((2, 16, NARROW), queued.iter().copied()).may_start(user)
        };
        assert!(may(&both, ME, &[ME, other]) && may(&both, other, &[ME, other]), "both have more to ask for");
        assert!(!may(&both, ME, &[ME]), "the other asks for one thing after the other");
        both.begin(ME);
        assert!(!may(&both, ME, &[ME, other]) && may(&both, other, &[ME, other]));
        both.end(ME);
        both.end(ME);
        assert!(may(&both, ME, &[ME]), "one is always allowed");
        both.begin(ME);
        both.end(other);
        assert!(!may(&both, ME, &[ME]), "the other's next demand may follow at once");
        tokio::time::advance(PRESENT).await;
        assert!(may(&both, ME, &[ME]));
    }

    #[tokio::test(start_paused = true)]
    async fn throughput_is_judged_after_some_transfers() {
        let mut throughput = Throughput::default();
        assert!(!throughput.is_slow(), "unknown");
        for _ in 0..20 {
            throughput.came(20_000, Instant::now());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!(throughput.is_slow(), "2 MB a second");
        throughput.idle();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..20 {
            throughput.came(1_000_000, Instant::now());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!(!throughput.is_slow(), "100 MB a second");
    }
}
