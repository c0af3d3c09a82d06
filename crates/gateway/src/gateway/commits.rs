//! Commits: what a publisher has built becomes a revision, once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};

use super::joint_commits::Waiting;
use super::{Gateway, Signer};
use crate::error::GatewayError;
use crate::lease::{Candidate, Commit, Lease, Refused, Request};
use crate::target::{PublishFailure, Published, Submission, Submissions, Target};
use crate::token::Token;

/// Function that finds out whether a revision was published.
type HasPublished<'f> = &'f mut dyn FnMut(&RepositoryName, &Candidate) -> Result<bool, GatewayError>;

/// Claim on a lease, until it is dropped.
struct Claim<'g>(&'g Gateway, Token);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.working.lock().remove(&self.1);
        self.0.changes.send_modify(|changes| *changes += 1);
    }
}

impl Gateway {
    /// Publishes what a publisher has built. A request that was carried out is answered again.
    pub fn commit(
        &self,
        signer: &Signer,
        token: &Token,
        request: &Request,
    ) -> Result<Published, GatewayError> {
        let root = ObjectName::parse(&request.new_root)
            .filter(|name| matches!(name.kind, ObjectKind::Catalog | ObjectKind::File))
            .ok_or(GatewayError::Root)?
            .hash;
        self.settle(token)?;
        let Some(claim) = self.claim(token) else { return Err(GatewayError::UnderWay) };
        let mut done = None;
        self.change("commit began", |leases, now| {
            match leases.begin_commit(token, &signer.name, request.clone(), now)? {
                Commit::Done(revision) => {
                    done = Some(revision);
                    Ok(Vec::new())
                }
                Commit::Begin(change) => Ok(vec![change]),
            }
        })?;
        if let Some(revision) = done {
            return Ok(Published { revision, dropped: Vec::new() });
        }
        let lease = self.leases.read().get(token).cloned().ok_or(Refused::Unknown)?;
        let published =
            self.keys().check(&signer.key, &lease.path).map_err(GatewayError::from).and_then(|()| {
                let served = self.served(&lease.path.repository)?;
                let waiting = Waiting::new(token.clone(), lease, request.clone(), root);
                let publish = |joined: &[Arc<Waiting>]| self.publish(&*served.target, joined);
                Ok(served.commits.run(waiting, publish)?)
            });
        match published {
            Ok(published) => Ok(published),
            Err(error) => match self.settle_claimed(&claim, &mut |at, next| self.has_published(at, next)) {
                // The head was replaced, although its storage said otherwise.
                Ok(Some(revision)) => Ok(Published { revision, dropped: Vec::new() }),
                Ok(None) => Err(error),
                Err(unknown) => {
                    tracing::warn!(
                        "can't find out how the commit of lease {} ended: {unknown}",
                        token.short()
                    );
                    Err(error)
                }
            },
        }
    }

    /// Carries out requests that wait for a commit of one repository.
    fn publish(
        &self,
        target: &dyn Target,
        joined: &[Arc<Waiting>],
    ) -> Vec<Result<Published, PublishFailure>> {
        let before_head = |places: &[usize], candidate: Option<Candidate>| {
            let noted = self.change_each("head to be replaced", |leases, now| {
                let tokens = places.iter().filter_map(|place| joined.get(*place));
                let changes = tokens.map(|one| leases.replace_head(&one.token, candidate.clone(), now));
                Ok(changes.collect::<Result<_, _>>()?)
            });
            match noted {
                Ok(_) => Ok(()),
                Err(GatewayError::Lease(_)) => Err(PublishFailure::LeaseEnded),
                Err(error) => Err(PublishFailure::Failed(Box::new(error))),
            }
        };
        let all = joined.iter().map(|one| Submission {
            root: one.root,
            path: &one.lease.path,
            request: &one.request,
            // An unreadable database leaves out bases that are no revisions.
            has_uploaded: Box::new(|hash| self.database.has_catalog(&one.token, hash).unwrap_or(false)),
        });
        let all = all.collect();
        let results = target.publish(&Submissions { all, before_head: &before_head });
        let published =
            || joined.iter().zip(&results).filter_map(|(one, result)| Some((one, result.as_ref().ok()?)));
        let ended = self.change_each("published", |leases, now| {
            let revision = |(one, published): (&Arc<Waiting>, &Published)| {
                leases.end_commit(&one.token, Some(published.revision), now)
            };
            Ok(published().filter_map(revision).collect())
        });
        self.counters.published.fetch_add(published().count() as u64, Ordering::Relaxed);
        if let Err(error) = ended {
            // The changes are public; the candidates tell it after a restart.
            let leases: Vec<_> = published().map(|(one, _)| one.token.short()).collect();
            tracing::warn!("can't note the end of the commit of leases {}: {error}", leases.join(", "));
        }
        results
    }

    /// Finds out how an interrupted commit ended, which no thread carries out any more.
    pub(super) fn settle(&self, token: &Token) -> Result<(), GatewayError> {
        self.settle_by(token, &mut |repository, candidate| self.has_published(repository, candidate))
    }

    fn settle_by(&self, token: &Token, has_published: HasPublished<'_>) -> Result<(), GatewayError> {
        if self.stale.load(Ordering::Relaxed) {
            self.refresh(&self.changing.lock())?;
        }
        if !self.leases.read().committing().any(|(other, ..)| other == token) {
            return Ok(());
        }
        match self.claim(token) {
            Some(claim) => self.settle_claimed(&claim, has_published).map(drop),
            None => Err(GatewayError::UnderWay),
        }
    }

    /// Finds out how the interrupted commits of some leases ended. A storage that doesn't answer now is asked again later.
    pub(super) fn settle_all(&self, is_asked: impl Fn(&Lease) -> bool) {
        let committing: Vec<Token> = self
            .leases
            .read()
            .committing()
            .filter(|(_, lease, _)| is_asked(lease))
            .map(|(token, ..)| token.clone())
            .collect();
        // Leases whose commit was joint have one candidate, which is looked for once.
        let mut known = HashMap::new();
        let mut has_published = |repository: &RepositoryName, candidate: &Candidate| {
            let asked = (repository.clone(), candidate.clone());
            if let Some(known) = known.get(&asked) {
                return Ok(*known);
            }
            let found = self.has_published(repository, candidate)?;
            known.insert(asked, found);
            Ok(found)
        };
        for token in committing {
            match self.settle_by(&token, &mut has_published) {
                Ok(()) | Err(GatewayError::UnderWay) => {}
                Err(error) => {
                    let lease = token.short();
                    tracing::warn!("can't find out yet how the commit of lease {lease} ended: {error}");
                }
            }
        }
    }

    /// Returns the revision that has the changes of a lease, if they were published.
    fn settle_claimed(
        &self,
        claim: &Claim<'_>,
        has_published: HasPublished<'_>,
    ) -> Result<Option<u64>, GatewayError> {
        let Claim(_, token) = claim;
        let found = self
            .leases
            .read()
            .committing()
            .find(|(other, ..)| *other == token)
            .map(|(_, lease, candidate)| (lease.path.repository.clone(), candidate.cloned()));
        let Some((repository, candidate)) = found else { return Ok(None) };
        let revision = match candidate {
            Some(candidate) if has_published(&repository, &candidate)? => Some(candidate.revision),
            _ => None,
        };
        self.end_commit(token, revision)?;
        Ok(revision)
    }

    /// Returns true if the head of a repository named a revision once.
    fn has_published(
        &self,
        repository: &RepositoryName,
        candidate: &Candidate,
    ) -> Result<bool, GatewayError> {
        Ok(self.served(repository)?.target.has_published(candidate)?)
    }

    fn end_commit(&self, token: &Token, revision: Option<u64>) -> Result<(), GatewayError> {
        let (event, counter) = match revision {
            Some(_) => ("published", &self.counters.published),
            None => ("commit failed", &self.counters.failed),
        };
        self.change(event, |leases, now| Ok(leases.end_commit(token, revision, now).into_iter().collect()))?;
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn claim(&self, token: &Token) -> Option<Claim<'_>> {
        self.working.lock().insert(token.clone()).then(|| Claim(self, token.clone()))
    }
}
