//! Leases: which publisher may change which directory, and until when.
//!
//! ```text
//!   acquire ─► open ──── renew ───► open ──── begin commit ───► committing ──── end ───► ended, with its result
//!               │                    ▲                              │
//!               │ expired, dropped   └────── the commit failed ─────┘
//!               ▼
//!              gone
//! ```
//!
//! A lease that has expired publishes nothing, even if its commit began before: the gateway asks once more at the moment at
//! which the head is replaced, and notes the root catalog of the new head first ([`Candidate`]). So a gateway that was killed
//! knows after its restart whether the head was replaced. The result of a commit is kept: a publisher that lost the answer
//! gets the same one again.
//!
//! Nothing here reads a clock, a disk or random numbers. Each operation returns the changes that have to be durable before they
//! are applied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lease_path::LeasePath;
use crate::token::Token;

/// Time in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub i64);

impl Millis {
    /// Returns the time after some milliseconds.
    #[must_use]
    pub fn after(self, milliseconds: i64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

/// Right of one publisher to change one directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Name of the key that acquired it; no other key may use it.
    pub key: String,
    /// The directory.
    pub path: LeasePath,
    /// Host of the publisher, as it says.
    pub hostname: String,
    /// Version of the protocol that both sides speak.
    pub protocol: u32,
    /// End of the lease, unless it is renewed.
    pub expires: Millis,
    /// Use of the lease.
    pub state: State,
}

/// Use of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// The publisher sends objects.
    Open,
    /// The changes of a root catalog are being published.
    Committing {
        /// The request that is carried out.
        request: Request,
        /// The revision that the head was about to name.
        candidate: Option<Candidate>,
    },
    /// The changes were published; the directory is free.
    Ended {
        /// The request that was carried out.
        request: Request,
        /// Number of the revision that has the changes.
        revision: u64,
        /// End of the commit.
        at: Millis,
    },
}

/// A revision that the head is about to name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// Hash of its root catalog.
    pub root: String,
    /// Number of the revision.
    pub revision: u64,
}

/// Request to publish what a publisher has built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Root catalog that the publisher says to have begun with.
    pub old_root: String,
    /// Root catalog that the publisher has built.
    pub new_root: String,
    /// Name of the tag for the revision; empty for an automatic one.
    pub tag: String,
    /// Description of the tag.
    pub description: String,
    /// Age limit of automatic tags, in seconds since the epoch.
    pub tags_before: Option<i64>,
    /// Tags to remove.
    pub removed_tags: Vec<String>,
}

impl Request {
    /// Beginning of the names of automatic tags, which the publisher of the reference makes itself.
    const AUTOMATIC: &str = "generic";

    /// Returns the name of the tag, unless it is automatic.
    pub fn named_tag(&self) -> Option<&str> {
        Some(&*self.tag).filter(|name| !name.is_empty() && !name.starts_with(Self::AUTOMATIC))
    }

    /// Returns true if the revision may have the changes of other requests, too: it has no tag or description of this one.
    pub fn may_be_joined(&self) -> bool {
        self.named_tag().is_none() && self.description.is_empty() && self.removed_tags.is_empty()
    }
}

/// A change of the leases, which is made durable before it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The lease is new, or has other fields.
    Put(Token, Box<Lease>),
    /// The lease is gone.
    Remove(Token),
}

impl Change {
    fn put(token: Token, lease: Lease) -> Self {
        Self::Put(token, Box::new(lease))
    }
}

/// An operation on a lease is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another lease has the directory, one above or one below.
    #[error("{path} is leased for another {} s", remaining.0.div_euclid(1000))]
    Busy {
        /// Directory of the other lease.
        path: LeasePath,
        /// Time until it ends unless it is renewed, in milliseconds.
        remaining: Millis,
    },
    /// The key has leases in the directory that the publisher did not name.
    #[error("the same key has leases of the directory: {}", .0.join(", "))]
    Own(Vec<String>),
    /// No lease has this token, or it has expired.
    #[error("there is no such lease: it has expired, or was ended")]
    Unknown,
    /// The lease belongs to another key.
    #[error("the lease was acquired with another key")]
    OtherKey,
    /// The lease is in use by a commit.
    #[error("a commit of this lease is under way")]
    Committing,
    /// Another request of this lease was carried out.
    #[error("the lease has ended with another commit")]
    Ended,
}

/// A commit may begin, or was carried out before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The commit may begin once this change is durable.
    Begin(Change),
    /// The request was carried out before: number of its revision.
    Done(u64),
}

/// All leases of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leases {
    all: BTreeMap<Token, Lease>,
}

impl Lease {
    /// Returns true if no other publisher may have the directory. One whose head is being replaced keeps it until that is over.
    pub fn is_held(&self, now: Millis) -> bool {
        match self.state {
            State::Open | State::Committing { candidate: None, .. } => self.expires > now,
            State::Committing { candidate: Some(_), .. } => true,
            State::Ended { .. } => false,
        }
    }

    /// Returns true if the lease needs no record any more. That of a commit is needed until its end is known.
    fn is_over(&self, now: Millis, kept: i64) -> bool {
        match self.state {
            State::Open => self.expires <= now,
            State::Committing { .. } => false,
            State::Ended { at, .. } => at.after(kept) <= now,
        }
    }
}

impl Leases {
    /// Creates the leases that were stored.
    pub fn of(stored: impl IntoIterator<Item = (Token, Lease)>) -> Self {
        Self { all: stored.into_iter().collect() }
    }

    /// Applies a change that is durable.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Put(token, lease) => self.all.insert(token, *lease),
            Change::Remove(token) => self.all.remove(&token),
        };
    }

    /// Returns the leases that are held.
    pub fn held(&self, now: Millis) -> impl Iterator<Item = (&Token, &Lease)> {
        self.all.iter().filter(move |(_, lease)| lease.is_held(now))
    }

    /// Returns the leases whose commit has begun and not ended, with the revision that the head may name by now: after a restart,
    /// those whose end is to be found out.
    pub fn committing(&self) -> impl Iterator<Item = (&Token, &Lease, Option<&Candidate>)> {
        self.all.iter().filter_map(|(token, lease)| match &lease.state {
            State::Committing { candidate, .. } => Some((token, lease, candidate.as_ref())),
            _ => None,
        })
    }

    /// Returns the lease of a token, which belongs to a key and is held.
    pub fn find(&self, token: &Token, key: &str, now: Millis) -> Result<&Lease, Refused> {
        let lease = self.of_key(token, key)?;
        if lease.is_held(now) { Ok(lease) } else { Err(Refused::Unknown) }
    }

    /// Returns the lease of a token, whether it is held or not.
    pub fn get(&self, token: &Token) -> Option<&Lease> {
        self.all.get(token)
    }

    fn of_key(&self, token: &Token, key: &str) -> Result<&Lease, Refused> {
        let lease = self.all.get(token).ok_or(Refused::Unknown)?;
        if lease.key == key { Ok(lease) } else { Err(Refused::OtherKey) }
    }

    /// Plans a new lease under a token that is not used yet. Expired leases that overlap it end for good: whatever the clock of
    /// the machine says later, no two leases of a directory are held.
    pub fn acquire(&self, token: Token, lease: Lease, now: Millis) -> Result<Vec<Change>, Refused> {
        match self.held(now).find(|(_, other)| other.path.overlaps(&lease.path)) {
            Some((_, other)) => {
                let remaining = Millis(other.expires.0.saturating_sub(now.0).max(0));
                Err(Refused::Busy { path: other.path.clone(), remaining })
            }
            None => {
                let over = self.all.iter().filter(|(_, other)| {
                    other.path.overlaps(&lease.path) && !matches!(other.state, State::Ended { .. })
                });
                let over = over.map(|(token, other)| match other.state {
                    State::Committing { .. } => {
                        Change::put(token.clone(), Lease { expires: Millis(0), ..other.clone() })
                    }
                    _ => Change::Remove(token.clone()),
                });
                Ok(over.chain([Change::put(token.clone(), lease.clone())]).collect())
            }
        }
    }

    /// Plans a new lease in place of those that the same key has in the directory, if all of them are named by the beginnings of
    /// their tokens. One whose commit is under way stays.
    pub fn take_over(
        &self,
        token: Token,
        lease: Lease,
        named: &[String],
        now: Millis,
    ) -> Result<Vec<Change>, Refused> {
        let is_own = |other: &Lease| {
            matches!(other.state, State::Open) && other.key == lease.key && lease.path.covers(&other.path)
        };
        let own: Vec<&Token> =
            self.held(now).filter(|(_, other)| is_own(other)).map(|(token, _)| token).collect();
        if !own.iter().all(|token| named.iter().any(|name| name == token.short())) {
            return Err(Refused::Own(own.into_iter().map(|token| token.short().to_owned()).collect()));
        }
        let mut changes: Vec<Change> = own.into_iter().cloned().map(Change::Remove).collect();
        let mut left = self.clone();
        changes.iter().for_each(|change| left.apply(change.clone()));
        changes.extend(left.acquire(token, lease, now)?);
        Ok(changes)
    }

    /// Plans another end of a lease; an earlier one stays.
    pub fn renew(&self, token: &Token, key: &str, expires: Millis, now: Millis) -> Result<Change, Refused> {
        let lease = self.find(token, key, now)?;
        if lease.expires <= now {
            return Err(Refused::Unknown);
        }
        Ok(Change::put(token.clone(), Lease { expires: lease.expires.max(expires), ..lease.clone() }))
    }

    /// Plans the end of a lease that its publisher gives up; an expired one is given up as well.
    pub fn drop(&self, token: &Token, key: &str) -> Result<Change, Refused> {
        match self.of_key(token, key)?.state {
            State::Open => Ok(Change::Remove(token.clone())),
            State::Committing { .. } => Err(Refused::Committing),
            State::Ended { .. } => Err(Refused::Unknown),
        }
    }

    /// Plans the end of a lease by an operator.
    pub fn end(&self, token: &Token) -> Result<Change, Refused> {
        let lease = self.all.get(token).ok_or(Refused::Unknown)?;
        self.drop(token, &lease.key)
    }

    /// Plans the begin of a commit.
    pub fn begin_commit(
        &self,
        token: &Token,
        key: &str,
        request: Request,
        now: Millis,
    ) -> Result<Commit, Refused> {
        let lease = self.of_key(token, key)?;
        match &lease.state {
            State::Ended { request: done, revision, .. } if *done == request => Ok(Commit::Done(*revision)),
            State::Ended { .. } => Err(Refused::Ended),
            State::Committing { .. } => Err(Refused::Committing),
            State::Open if !lease.is_held(now) => Err(Refused::Unknown),
            State::Open => {
                let state = State::Committing { request, candidate: None };
                Ok(Commit::Begin(Change::put(token.clone(), Lease { state, ..lease.clone() })))
            }
        }
    }

    /// Plans the note of the revision that the head is about to name; none if only tags change. Refused if the lease has expired.
    pub fn replace_head(
        &self,
        token: &Token,
        candidate: Option<Candidate>,
        now: Millis,
    ) -> Result<Change, Refused> {
        let lease = self.all.get(token).filter(|lease| lease.expires > now).ok_or(Refused::Unknown)?;
        let State::Committing { request, .. } = &lease.state else { return Err(Refused::Unknown) };
        let state = State::Committing { request: request.clone(), candidate };
        Ok(Change::put(token.clone(), Lease { state, ..lease.clone() }))
    }

    /// Plans the end of a commit that published a revision, or failed. After a failure the lease is open again, so that the
    /// publisher may mend what was wrong.
    pub fn end_commit(&self, token: &Token, revision: Option<u64>, now: Millis) -> Option<Change> {
        let lease = self.all.get(token)?;
        let State::Committing { request, .. } = &lease.state else { return None };
        let state = match revision {
            Some(revision) => State::Ended { request: request.clone(), revision, at: now },
            None => State::Open,
        };
        Some(Change::put(token.clone(), Lease { state, ..lease.clone() }))
    }

    /// Plans the removal of what expired, and of results older than `kept` milliseconds.
    pub fn expire(&self, now: Millis, kept: i64) -> Vec<Change> {
        let over = self.all.iter().filter(|(_, lease)| lease.is_over(now, kept));
        over.map(|(token, _)| Change::Remove(token.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: i64 = 1000;

    fn lease(key: &str, path: &str, now: i64) -> Lease {
        Lease {
            key: key.into(),
            path: LeasePath::parse(path).unwrap(),
            hostname: "h".into(),
            protocol: 2,
            expires: Millis(now + LIFE),
            state: State::Open,
        }
    }

    fn token(name: &str) -> Token {
        Token::named(name)
    }

    fn with(leases: &[(&str, Lease)]) -> Leases {
        Leases::of(leases.iter().map(|(name, lease)| (token(name), lease.clone())))
    }

    fn request(root: &str) -> Request {
        Request { new_root: root.into(), ..Request::default() }
    }

    #[test]
    fn a_directory_has_one_publisher_until_its_lease_expires() {
        let leases = with(&[("one", lease("k1", "r.test/a", 0))]);
        for path in ["r.test/", "r.test/a", "r.test/a/b"] {
            let refused = leases.acquire(token("two"), lease("k2", path, 400), Millis(400)).unwrap_err();
            assert!(matches!(refused, Refused::Busy { remaining: Millis(600), .. }), "{refused:?}");
            assert!(leases.acquire(token("two"), lease("k2", path, LIFE), Millis(LIFE)).is_ok());
        }
        for path in ["r.test/b", "r.test/ab", "s.test/a"] {
            assert!(leases.acquire(token("two"), lease("k2", path, 400), Millis(400)).is_ok());
        }
    }

    #[test]
    fn a_lease_belongs_to_its_key() {
        let leases = with(&[("one", lease("k1", "r.test/a", 0))]);
        assert_eq!(leases.find(&token("one"), "k2", Millis(1)), Err(Refused::OtherKey));
        assert_eq!(leases.renew(&token("one"), "k2", Millis(9000), Millis(1)), Err(Refused::OtherKey));
        assert_eq!(leases.drop(&token("one"), "k2"), Err(Refused::OtherKey));
        assert_eq!(leases.begin_commit(&token("one"), "k2", request("b"), Millis(1)), Err(Refused::OtherKey));
        assert_eq!(leases.find(&token("two"), "k1", Millis(1)), Err(Refused::Unknown));
        assert!(leases.find(&token("one"), "k1", Millis(1)).is_ok());
    }

    #[test]
    fn a_renewal_never_shortens_and_an_expired_lease_is_not_renewed() {
        let mut leases = with(&[("one", lease("k1", "r.test/a", 0))]);
        let change = leases.renew(&token("one"), "k1", Millis(500), Millis(1)).unwrap();
        leases.apply(change);
        assert_eq!(leases.find(&token("one"), "k1", Millis(1)).unwrap().expires, Millis(LIFE));
        let change = leases.renew(&token("one"), "k1", Millis(2000), Millis(1)).unwrap();
        leases.apply(change);
        assert!(leases.find(&token("one"), "k1", Millis(1999)).is_ok());
        assert_eq!(leases.renew(&token("one"), "k1", Millis(9000), Millis(2000)), Err(Refused::Unknown));
    }

    #[test]
    fn a_commit_is_carried_out_once_and_answered_again() {
        let mut leases = with(&[("one", lease("k1", "r.test/a", 0))]);
        let begin =
            |leases: &Leases, root: &str| leases.begin_commit(&token("one"), "k1", request(root), Millis(10));
        let Ok(Commit::Begin(change)) = begin(&leases, "b") else { panic!("it begins") };
        leases.apply(change);
        assert_eq!(begin(&leases, "b"), Err(Refused::Committing));
        assert_eq!(leases.drop(&token("one"), "k1"), Err(Refused::Committing));
        // A failure leaves the lease to its publisher.
        let change = leases.end_commit(&token("one"), None, Millis(20)).unwrap();
        leases.apply(change);
        let Ok(Commit::Begin(change)) = begin(&leases, "c") else { panic!("it begins again") };
        leases.apply(change);
        let candidate = Candidate { root: "d".into(), revision: 7 };
        let change = leases.replace_head(&token("one"), Some(candidate.clone()), Millis(30)).unwrap();
        leases.apply(change);
        assert_eq!(leases.committing().next().unwrap().2, Some(&candidate));
        let change = leases.end_commit(&token("one"), Some(7), Millis(40)).unwrap();
        leases.apply(change);
        assert_eq!(begin(&leases, "c"), Ok(Commit::Done(7)));
        assert_eq!(begin(&leases, "e"), Err(Refused::Ended));
        assert!(leases.acquire(token("two"), lease("k2", "r.test/", 40), Millis(40)).is_ok());
        assert_eq!(leases.expire(Millis(40 + 99), 100), []);
        assert_eq!(leases.expire(Millis(40 + 100), 100), [Change::Remove(token("one"))]);
    }

    #[test]
    fn an_expired_lease_replaces_no_head() {
        let mut leases = with(&[("one", lease("k1", "r.test/a", 0))]);
        let begun = leases.begin_commit(&token("one"), "k1", request("b"), Millis(LIFE - 1)).unwrap();
        let Commit::Begin(change) = begun else { panic!("{begun:?}") };
        leases.apply(change);
        for candidate in [None, Some(Candidate { root: "d".into(), revision: 7 })] {
            assert!(leases.replace_head(&token("one"), candidate.clone(), Millis(LIFE - 1)).is_ok());
            assert_eq!(leases.replace_head(&token("one"), candidate, Millis(LIFE)), Err(Refused::Unknown));
        }
        assert_eq!(leases.expire(Millis(LIFE), 0), [], "its end is not known");
        assert!(leases.acquire(token("two"), lease("k2", "r.test/a", LIFE), Millis(LIFE)).is_ok());
    }
}
