//! The changes of a publisher without keys, which has built and stored them: those of a submitted root catalog.
//!
//! ```text
//!   submitted root ── previous_revision ──► base ── difference below the directory ──► changes
//! ```
//!
//! The base is the revision that the submitted catalogs were built on, as they record it, and not one that the publisher claims: a
//! claim of a newer revision would undo what others published in between (source: CernVM-FS issue 3867). So a submission is
//! rebased onto the newest head as the changes of any publisher are.

use std::collections::BTreeSet;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_repository::{
    Base, ChangeKind, DATABASE_MAX, Repository, RepositoryError, TreeDiff,
    entry::objects_of,
    path,
    published::{Published, number_groups},
};

use crate::changes::Changes;
use crate::commit::{UNLISTED_MAX, move_onto};
use crate::error::PublishError;
use crate::plan::Differences;
use crate::report::Report;
use crate::revision::Context;

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
    pub is_own: &'r (dyn Fn(&ContentHash) -> bool + Sync),
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
    /// Finds the revision that the submission was built on.
    pub(crate) fn base(&self, repository: &Repository, catalogs: &Published) -> Result<Base, PublishError> {
        let mut root = catalogs.other((self.root, None)).root()?;
        for _ in 0..CHAIN_MAX {
            let previous = root.catalog.properties().previous_revision.filter(|hash| !hash.is_null());
            let Some(previous) = previous else { break };
            let is_own = (self.is_own)(&previous);
            if !is_own && !is_revision(repository, &previous)? {
                return Err(PublishError::UnknownBase { base: Some(previous) });
            }
            root = catalogs.other((previous, None)).root()?;
            if !is_own {
                let revision = root.catalog.properties().revision;
                return Ok(Base { revision, root: previous, size: None, ..repository.begin() });
            }
        }
        Err(PublishError::UnknownBase { base: None })
    }

    /// Finds the changes of the submission, and moves them onto the revision of the context.
    ///
    /// What the publisher stored, and what it found stored, may have been collected before the context's revision was read; later
    /// collects are noticed by the commit.
    pub(crate) fn compare(&self, context: &Context<'_>, base: Base) -> Result<Compared, PublishError> {
        let (newest, old) = (&context.published, context.published.other((base.root, base.size)));
        let mut found = self.changes(&old, &path::normalise(&self.directory)?)?;
        move_onto((&old, base.revision), (newest, context.base.revision), &mut found.changes, None)?;
        let objects: BTreeSet<_> = found.changes.entries().flat_map(objects_of).collect();
        let missing = context.repository.storage().missing(&objects)?.len() as u64;
        if missing > 0 {
            return Err(RepositoryError::Collected { objects: missing }.into());
        }
        context.check_files(&found.changes)?;
        Ok(Compared { base: base.root, found })
    }

    /// Compares the submission with its base.
    fn changes(&self, base: &Published, directory: &[u8]) -> Result<Found, PublishError> {
        let mut found = Found::default();
        let mut grouped = BTreeSet::new();
        // Removals below a removed directory go with it.
        let mut gone: Option<Vec<u8>> = None;
        let diff = TreeDiff {
            objects: &*base.objects,
            old: base.root_hash(),
            new: self.root,
            within: Vec::new(),
            ignore_times: false,
        };
        diff.run(&mut |difference| {
            if !path::is_within(difference.path, directory) {
                found.leave_out(difference.path, directory);
                return Ok(());
            }
            let Some((parent, name)) = path::split(difference.path) else {
                found.changes.root = difference.new.cloned();
                found.changes.touch(b"");
                return Ok(());
            };
            let in_group = [difference.old, difference.new];
            if in_group.into_iter().flatten().any(|entry| entry.hardlink_group != 0) {
                grouped.insert(parent.to_vec());
            }
            match (difference.change, difference.new) {
                (ChangeKind::Removed, _) | (_, None) => {
                    difference.old.into_iter().for_each(|old| found.differences.removed.add(old));
                    if !gone.as_deref().is_some_and(|gone| path::is_within(difference.path, gone)) {
                        found.changes.remove(parent, name);
                        gone = Some(difference.path.to_vec());
                    }
                }
                (kind, Some(new)) => {
                    let counted = match kind {
                        ChangeKind::Added => &mut found.differences.added,
                        _ => &mut found.differences.changed,
                    };
                    counted.add(new);
                    found.changes.put(parent, new.clone());
                }
            }
            Ok(())
        })?;
        // The members of a group that did not change are numbered as the ones that did.
        let submitted = base.other((self.root, None));
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

/// A submission whose changes fit the newest revision.
pub(crate) struct Compared {
    /// Revision that it was built on.
    pub(crate) base: ContentHash,
    pub(crate) found: Found,
}

/// Differences of a submission and its base.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) changes: Changes,
    pub(crate) differences: Differences,
    pub(crate) left_out: Vec<String>,
    pub(crate) left_out_count: u64,
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
