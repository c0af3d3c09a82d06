//! Schedules checks for a new revision after a hint that one exists.
//!
//! Every peer may send hints. A hint only decides the time of the next check, and a check costs the servers one request;
//! after a false hint all hints are ignored for a while.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Maximum random delay of the first check, so that the nodes of a site don't check at the same moment.
const SPREAD: Duration = Duration::from_millis(400);
/// Delay of the second check. Each further delay is twice as long; a replica or a proxy may be behind for a minute.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of checks for a hint, which take two minutes.
const CHECKS_MAX: u32 = 7;
/// Time for which hints are ignored after a false one.
const DEAF: Duration = Duration::from_secs(600);

/// A hint until it is confirmed or abandoned.
#[derive(Debug, Default)]
pub(crate) struct RevisionHint {
    waiting: Option<Waiting>,
    deaf_until: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    /// Revision of the hint, if it has one.
    revision: Option<u64>,
    looks: u32,
    due: Instant,
}

impl RevisionHint {
    /// Accepts a hint while the revision `shown` is shown.
    pub(crate) fn heard(&mut self, revision: Option<u64>, shown: u64, now: Instant) {
        let old = revision.is_some_and(|revision| revision <= shown);
        if old || self.deaf_until.is_some_and(|until| now < until) {
            return;
        }
        match &mut self.waiting {
            // The scheduled checks count for this hint too: repeated hints cause no more of them.
            Some(waiting) => waiting.revision = waiting.revision.max(revision),
            None => {
                let random = RandomState::new().hash_one(shown) % 1024;
                let due = now + SPREAD.mul_f64(random as f64 / 1024.0);
                self.waiting = Some(Waiting { revision, looks: 0, due });
            }
        }
    }

    /// Returns the time of the next check.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.due)
    }

    /// Records the result of a check.
    pub(crate) fn looked(&mut self, shown: u64, changed: bool, now: Instant) {
        let Some(waiting) = &mut self.waiting else { return };
        if waiting.revision.map_or(changed, |revision| revision <= shown) {
            self.waiting = None;
            return;
        }
        waiting.looks += 1;
        if waiting.looks == CHECKS_MAX {
            self.waiting = None;
            self.deaf_until = Some(now + DEAF);
            return;
        }
        waiting.due = now + FIRST_DELAY.saturating_mul(1 << (waiting.looks - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks as the follower does, until nothing is due before `end`; returns the number of checks.
    fn looks(hint: &mut RevisionHint, shown: impl Fn(Instant) -> u64, end: Instant) -> u32 {
        let mut looks = 0;
        let mut before = None;
        while let Some(due) = hint.due().filter(|due| *due < end) {
            looks += 1;
            let now = shown(due);
            hint.looked(now, before.is_some_and(|before| before != now), due);
            before = Some(now);
        }
        looks
    }

    #[test]
    fn a_true_hint_causes_one_check() {
        let (mut hint, start) = (RevisionHint::default(), Instant::now());
        hint.heard(Some(7), 7, start);
        assert_eq!(hint.due(), None, "nothing new");
        hint.heard(Some(8), 7, start);
        assert!(hint.due().is_some_and(|due| due <= start + SPREAD));
        assert_eq!(looks(&mut hint, |_| 8, start + DEAF), 1);
        hint.heard(Some(9), 8, start);
        assert!(hint.due().is_some(), "whoever told the truth is listened to");
    }

    #[test]
    fn a_late_revision_is_checked_for_again() {
        let (mut hint, start) = (RevisionHint::default(), Instant::now());
        hint.heard(Some(8), 7, start);
        let late = |now| if now > start + Duration::from_secs(6) { 8 } else { 7 };
        // At once, and one, three and seven seconds later.
        assert_eq!(looks(&mut hint, late, start + DEAF), 4);
        assert_eq!(hint.due(), None);
    }

    #[test]
    fn repeated_false_hints_cause_few_checks() {
        let (mut hint, start) = (RevisionHint::default(), Instant::now());
        let mut all = 0;
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            hint.heard(Some(1000 + second), 7, now);
            hint.heard(None, 7, now);
            all += looks(&mut hint, |_| 7, now + Duration::from_secs(1));
        }
        assert_eq!(all, CHECKS_MAX);
        hint.heard(Some(2000), 7, start + DEAF + DEAF);
        assert!(hint.due().is_some(), "it gets another chance");
    }
}
