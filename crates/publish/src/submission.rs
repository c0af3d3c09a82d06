//! Publishes what a publisher without keys has built and stored: the revision of a submitted root catalog.
//!
//! ```text
//!   submitted root ── previous_revision ──► base ── difference below the directory ──► changes ──► commit
//! ```
//!
//! The base is the revision that the submitted catalogs were built on, as they record it, and not one that the publisher claims: a
//! claim of a newer revision would undo what others published in between (source: CernVM-FS issue 3867). So a submission is
//! rebased onto the newest head as the changes of any publisher are.

use std::collections::BTreeSet;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_repository::{
    Base, ChangeKind, DATABASE_MAX, Repository, TreeDiff, path,
    published::{Published, number_groups},
};

use crate::changes::Changes;
use crate::commit::UNLISTED_MAX;
use crate::error::PublishError;
use crate::plan::Differences;
use crate::report::Report;
use crate::revision::{Context, PublishOptions};

/// Most submitted roots that are built on one another.
const CHAIN_MAX: usize = 64;
/// Most paths outside of the directory that are named.
const NAMED_MAX: usize = 20;

/// A revision that was built and stored without being published.
pub struct Submission<'r> {
    /// Its root catalog.
    pub root: ContentHash,
    /// Directory that the publisher may change; empty for the whole repository.
    pub directory: Vec<u8>,
    /// Returns true for root catalogs that the same publisher has built: no revisions, but what it goes on from.
    pub is_own: &'r dyn Fn(&ContentHash) -> bool,
    /// What the commit asks and does beside that of other publishers.
    pub rules: SubmissionRules<'r>,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

/// Returns an error to refuse a new head, with the root catalog and the number of its revision, if that is new.
pub type BeforeHead<'r> = &'r (dyn Fn(Option<(&ContentHash, u64)>) -> Result<(), PublishError> + Sync);

/// What the commit of a submission asks and does beside that of other publishers.
#[derive(Clone, Copy)]
pub struct SubmissionRules<'r> {
    /// Called before each attempt to replace the head, with the root catalog and the number of the new revision, or none if only
    /// tags change; an error ends the commit with nothing published.
    pub before_head: BeforeHead<'r>,
    /// Tags that are removed with the commit.
    pub removed_tags: &'r [String],
    /// Time before which automatic tags are removed.
    pub tags_before: Option<UnixTime>,
}

/// Result of a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// Report of the publish.
    pub report: Report,
    /// Revision that the submission was built on.
    pub base: ContentHash,
    /// The first paths outside of the directory whose changes were left out.
    pub left_out: Vec<String>,
    /// Number of all such paths.
    pub left_out_count: u64,
}

impl Submission<'_> {
    /// Publishes the changes of the submission that lie in its directory. Without a change there is no new revision.
    ///
    /// Fails with [`esker_repository::RepositoryError::Collected`] if objects of the submission are no longer stored: its publisher
    /// has to store them again.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Submitted, PublishError> {
        // Catalogs that it has read are not read again for the base.
        let submitted = Published::with_root(repository.storage().sink().clone(), self.root, None);
        let base = self.base(repository, &submitted)?;
        let _held = repository.hold(&base)?;
        let mut context = Context::without_index(repository, base, now)?;
        context.published = submitted.other((base.root, base.size));
        context.target = path::normalise(&self.directory)?;
        context.submission = Some(self.rules);
        context.check_tag(&self.options)?;
        let found = self.changes(&context, &submitted)?;
        context.check_files(&found.changes)?;
        context.confirm_shrink(found.differences.removed.total(), &mut self.options)?;
        let mut report = context.report(found.differences);
        context.publish(&found.changes, None, &mut self.options, &mut report)?;
        Ok(Submitted {
            report,
            base: base.root,
            left_out: found.left_out,
            left_out_count: found.left_out_count,
        })
    }

    /// Finds the revision that the submission was built on.
    fn base(&self, repository: &Repository, submitted: &Published) -> Result<Base, PublishError> {
        let mut root = submitted.root()?;
        for _ in 0..CHAIN_MAX {
            let previous = root.catalog.properties().previous_revision.filter(|hash| !hash.is_null());
            let Some(previous) = previous else { break };
            let is_own = (self.is_own)(&previous);
            if !is_own && !is_revision(repository, &previous)? {
                return Err(PublishError::UnknownBase { base: Some(previous) });
            }
            root = submitted.other((previous, None)).root()?;
            if !is_own {
                // What the publisher stored, and what it found stored, may have been collected before this began, so the
                // commit looks whether it is there, as after a collect that no base has seen.
                let revision = root.catalog.properties().revision;
                return Ok(Base { revision, root: previous, size: None, collections: u64::MAX });
            }
        }
        Err(PublishError::UnknownBase { base: None })
    }

    /// Compares the submission with its base.
    fn changes(&self, context: &Context<'_>, submitted: &Published) -> Result<Found, PublishError> {
        let mut found = Found::default();
        let mut grouped = BTreeSet::new();
        // Removals below a removed directory go with it.
        let mut gone: Option<Vec<u8>> = None;
        let diff = TreeDiff {
            objects: &*context.published.objects,
            old: context.base.root,
            new: self.root,
            within: Vec::new(),
            ignore_times: false,
        };
        diff.run(&mut |difference| {
            if !path::is_within(difference.path, &context.target) {
                found.leave_out(difference.path, &context.target);
                return Ok(());
            }
            let Some((directory, name)) = path::split(difference.path) else {
                found.changes.root = difference.new.cloned();
                found.changes.touch(b"");
                return Ok(());
            };
            let in_group = [difference.old, difference.new];
            if in_group.into_iter().flatten().any(|entry| entry.hardlink_group != 0) {
                grouped.insert(directory.to_vec());
            }
            match (difference.change, difference.new) {
                (ChangeKind::Removed, _) | (_, None) => {
                    difference.old.into_iter().for_each(|old| found.differences.removed.add(old));
                    if !gone.as_deref().is_some_and(|gone| path::is_within(difference.path, gone)) {
                        found.changes.remove(directory, name);
                        gone = Some(difference.path.to_vec());
                    }
                }
                (kind, Some(new)) => {
                    let counted = match kind {
                        ChangeKind::Added => &mut found.differences.added,
                        _ => &mut found.differences.changed,
                    };
                    counted.add(new);
                    found.changes.put(directory, new.clone());
                }
            }
            Ok(())
        })?;
        // The members of a group that did not change are numbered as the ones that did.
        for directory in grouped {
            let mut listing = submitted.list(&directory)?;
            number_groups(&mut listing);
            for entry in listing.into_iter().filter(|entry| entry.hardlink_group != 0) {
                found.changes.put(&directory, entry);
            }
        }
        Ok(found)
    }
}

/// Differences of a submission and its base.
#[derive(Default)]
struct Found {
    changes: Changes,
    differences: Differences,
    left_out: Vec<String>,
    left_out_count: u64,
}

impl Found {
    /// Notes a difference outside of the directory; that of a directory above it has a new time only.
    fn leave_out(&mut self, outside: &[u8], directory: &[u8]) {
        if path::is_within(directory, outside) {
            return;
        }
        self.left_out_count += 1;
        if self.left_out.len() < NAMED_MAX {
            self.left_out.push(path::shown(outside));
        }
    }
}

/// Returns true if a root catalog is that of a revision that was published.
///
/// In a bucket the reflog is written after the head, so it may lack the newest revisions of several publishers. Those are found from
/// the head backwards.
pub fn is_revision(repository: &Repository, root: &ContentHash) -> Result<bool, PublishError> {
    let head = repository.read_head()?.verified.root_catalog().hash;
    if head == *root {
        return Ok(true);
    }
    if let Some(bytes) = repository.sink().read(reflog::PATH, DATABASE_MAX)? {
        let listed = Reflog::parse(&bytes).map_err(|source| PublishError::Reflog { source })?;
        let object = ObjectName::new(*root, ObjectKind::Catalog);
        if listed.references().iter().any(|reference| reference.object == object) {
            return Ok(true);
        }
    }
    let newest = Published::with_root(repository.storage().sink().clone(), head, None);
    let mut at = newest.root()?;
    for _ in 0..UNLISTED_MAX {
        let previous = at.catalog.properties().previous_revision.filter(|hash| !hash.is_null());
        match previous {
            Some(previous) if previous == *root => return Ok(true),
            Some(previous) => at = newest.other((previous, None)).root()?,
            None => break,
        }
    }
    Ok(false)
}
