//! Publishes submissions of several publishers, together where that can be.
//!
//! ```text
//!   submissions ─► base and changes of each, side by side ─► onto the newest revision ─► joined ─► one commit
//!                                                                                         │ refused
//!                                                                                         ▼
//!                                                                       a commit for each of them
//! ```
//!
//! Submissions are joined if their directories don't overlap. Then the tree is that of their commits one after the other, in any
//! order, and they share what a commit costs: catalogs, signature, and the calls that make files durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::time::UnixTime;
use esker_repository::{Base, Repository, parallel, path, published::Published};

use crate::changes::Changes;
use crate::error::PublishError;
use crate::plan::Differences;
use crate::report::Report;
use crate::revision::{Context, PublishOptions};
use crate::submission::{Compared, Submission, Submitted};
use crate::submission_rules::{CommitRules, SubmissionRules};

/// Submissions that are published at the same time.
pub struct Submissions<'r> {
    /// The submissions.
    pub all: Vec<Submission<'r>>,
    /// Rules of their commits.
    pub rules: SubmissionRules<'r>,
    /// Options of their commits.
    pub options: PublishOptions<'r>,
}

impl Submissions<'_> {
    /// Publishes the changes of each submission that lie in its directory; returns the results in the same order. Without a change
    /// there is no new revision.
    ///
    /// A result is [`esker_repository::RepositoryError::Collected`] if objects of a submission are no longer stored: its publisher
    /// has to store them again.
    pub fn run(
        &mut self,
        repository: &Repository,
        now: UnixTime,
    ) -> Result<Vec<Result<Submitted, PublishError>>, PublishError> {
        let Self { all, rules, options } = self;
        let newest = repository.begin();
        // A catalog that several submissions name is read once.
        let catalogs = Published::new(repository.storage().sink().clone(), repository.head());
        let mut results = BTreeMap::new();
        let mut based = Vec::new();
        let bases = parallel::each(options.threads, all, |submission| submission.base(repository, &catalogs));
        for ((place, submission), base) in all.iter().enumerate().zip(bases) {
            match base {
                Ok(base) => based.push((place, submission, base)),
                Err(error) => drop(results.insert(place, Err(error))),
            }
        }
        let _held = repository.hold_all(based.iter().map(|(.., base)| base).chain([&newest]))?;
        let commit = Commit { repository, newest, catalogs, rules: *rules, now };
        let context = commit.context()?;
        context.check_tag(options)?;
        let compared = parallel::each(options.threads, &based, |(_, submission, base)| {
            submission.compare(&context, *base)
        });
        let mut ready = Vec::new();
        for ((place, submission, _), compared) in based.iter().zip(compared) {
            match compared {
                Ok(compared) => {
                    ready.push(Ready { place: *place, directory: &submission.directory, compared })
                }
                Err(error) => drop(results.insert(*place, Err(error))),
            }
        }
        let mut groups = VecDeque::from(groups(ready));
        while let Some(group) = groups.pop_front() {
            match commit.run(&group, options) {
                Ok(report) => {
                    results
                        .extend(group.into_iter().map(|ready| (ready.place, Ok(ready.submitted(&report)))));
                }
                Err(Failed { error, .. }) if group.len() == 1 => {
                    results.extend(group.iter().map(|ready| ready.place).zip([Err(error)]));
                }
                // The publisher of each submission gets the error of its own.
                Err(Failed { error, may_be_public: false }) => {
                    tracing::debug!("{} submissions are published one by one: {error}", group.len());
                    groups.extend(group.into_iter().map(|ready| vec![ready]));
                }
                Err(Failed { error, .. }) => {
                    let error = Arc::new(error);
                    let failed = |ready: Ready<'_>| (ready.place, Err(PublishError::Joint(error.clone())));
                    results.extend(group.into_iter().map(failed));
                }
            }
        }
        Ok(results.into_values().collect())
    }
}

/// A submission that can be published.
struct Ready<'r> {
    place: usize,
    directory: &'r [u8],
    compared: Compared,
}

impl Ready<'_> {
    fn overlaps(&self, other: &Self) -> bool {
        path::is_within(self.directory, other.directory) || path::is_within(other.directory, self.directory)
    }

    /// Returns the result of the submission after its commit.
    fn submitted(self, report: &Report) -> Submitted {
        let Compared { base, found } = self.compared;
        Submitted {
            report: Report { differences: found.differences, ..report.clone() },
            base,
            left_out: found.left_out,
            left_out_count: found.left_out_count,
        }
    }
}

/// Divides submissions into groups whose directories don't overlap. One without a change is alone: its publisher learns of no
/// revision that others made.
fn groups(all: Vec<Ready<'_>>) -> Vec<Vec<Ready<'_>>> {
    let mut groups: Vec<Vec<Ready<'_>>> = Vec::new();
    for ready in all {
        let changes = |ready: &Ready<'_>| !ready.compared.found.changes.is_empty();
        let fits = |group: &&mut Vec<Ready<'_>>| {
            changes(&ready) && group.iter().all(|other| changes(other) && !ready.overlaps(other))
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(ready),
            None => groups.push(vec![ready]),
        }
    }
    groups
}

/// What the commits of several groups share.
struct Commit<'r> {
    repository: &'r Repository,
    newest: Base,
    catalogs: Published,
    rules: SubmissionRules<'r>,
    now: UnixTime,
}

/// A commit failed.
struct Failed {
    error: PublishError,
    /// True if the head may have been replaced.
    may_be_public: bool,
}

impl Commit<'_> {
    /// Returns the inputs of a commit on the newest revision.
    fn context(&self) -> Result<Context<'_>, PublishError> {
        let mut context = Context::without_index(self.repository, self.newest, self.now)?;
        context.published = self.catalogs.other((self.newest.root, self.newest.size));
        Ok(context)
    }

    /// Publishes the changes of a group as one revision.
    fn run(&self, group: &[Ready<'_>], options: &mut PublishOptions<'_>) -> Result<Report, Failed> {
        let places: Vec<usize> = group.iter().map(|ready| ready.place).collect();
        let may_be_public = AtomicBool::new(false);
        let rules = CommitRules { rules: self.rules, places: &places, may_be_public: &may_be_public };
        let publish = |options: &mut PublishOptions<'_>| {
            let mut context = self.context()?;
            context.submission = Some(rules);
            let (mut changes, mut removed) = (Changes::default(), 0_u64);
            for Compared { found, .. } in group.iter().map(|ready| &ready.compared) {
                changes.join(found.changes.clone());
                removed = removed.saturating_add(found.differences.removed.total());
            }
            context.confirm_shrink(removed, options)?;
            let mut report = context.report(Differences::default());
            context.publish(&changes, None, options, &mut report)?;
            Ok(report)
        };
        publish(options)
            .map_err(|error| Failed { error, may_be_public: may_be_public.load(Ordering::Relaxed) })
    }
}
