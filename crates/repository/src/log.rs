//! Lists the revisions of a repository, newest first, with the changes of each.

use std::collections::HashMap;

use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::write::history::TagError;
use serde::Serialize;

use crate::entry_diff::Attributes;
use crate::error::RepositoryError;
use crate::revisions::{Revision, Revisions};
use crate::tree_diff::{ChangeKind, DiffCounts, TreeDiff};

/// Request for the revisions of a repository.
pub struct Log<'r> {
    /// The repository.
    pub revisions: &'r Revisions,
    /// Only revisions that changed this path or something below it; empty for all.
    pub within: Vec<u8>,
    /// Branch whose revisions are listed, from its newest tag on; none for the default one, whose newest revision is the head.
    pub branch: Option<String>,
    /// Maximum number of revisions to list.
    pub limit: Option<usize>,
}

/// A revision and its changes. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// The revision.
    #[serde(flatten)]
    pub revision: Revision,
    /// Tags of the revision.
    pub tags: Vec<String>,
    /// Descriptions of those tags.
    pub descriptions: Vec<String>,
    /// Number of the revision that it is compared with; none for the oldest one that is there.
    pub since: Option<u64>,
    /// Number of changes at the given path and below it.
    pub counts: Option<DiffCounts>,
    /// Kind of change of the given path itself.
    pub path: Option<ChangeKind>,
    /// Attributes of the given path that changed.
    pub attributes: Attributes,
}

/// Reason for the end of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogEnd {
    /// All revisions are listed.
    First,
    /// The log ended at the requested number of entries; there may be more.
    Limit,
    /// Earlier revisions are not there any more; this is the root catalog that is missing.
    Missing(String),
}

impl Log<'_> {
    /// Hands each revision to `visit`, newest first.
    pub fn run(
        &self,
        visit: &mut dyn FnMut(LogEntry) -> Result<(), RepositoryError>,
    ) -> Result<LogEnd, RepositoryError> {
        let revisions = self.revisions;
        let mut tags: HashMap<ContentHash, Vec<&Tag>> = HashMap::new();
        for tag in revisions.tags() {
            tags.entry(tag.root_catalog).or_default().push(tag);
        }
        let mut listed = 0;
        let mut missing = None;
        let mut current = Some(self.newest()?);
        while let Some(revision) = current {
            let (before, gap) = self.before(&revision)?;
            missing = missing.or(gap);
            let of_revision = tags.remove(&revision.root).unwrap_or_default();
            if let Some(entry) = self.entry(revision, before.as_ref(), &of_revision)? {
                if self.limit.is_some_and(|limit| listed >= limit) {
                    return Ok(LogEnd::Limit);
                }
                visit(entry)?;
                listed += 1;
            }
            current = before;
        }
        Ok(missing.map_or(LogEnd::First, LogEnd::Missing))
    }

    /// Returns the newest revision of the branch.
    fn newest(&self) -> Result<Revision, RepositoryError> {
        let Some(branch) = &self.branch else { return self.revisions.head() };
        let tags = self.revisions.tags().iter().filter(|tag| tag.branch == *branch);
        let newest = tags.max_by_key(|tag| tag.revision);
        let newest = newest.ok_or_else(|| TagError::UnknownBranch(branch.clone()))?;
        self.revisions.at(newest.root_catalog)
    }

    /// Returns the revision before, or the next earlier one that has a tag; and the root catalog that is missing.
    fn before(&self, revision: &Revision) -> Result<(Option<Revision>, Option<String>), RepositoryError> {
        let Some(previous) = revision.previous else { return Ok((None, None)) };
        let gap = match self.revisions.at(previous) {
            // Numbers fall, so that a chain that leads back to itself ends.
            Ok(found) => return Ok((Some(found).filter(|found| found.number < revision.number), None)),
            Err(RepositoryError::Missing { .. }) => previous.to_string(),
            Err(error) => return Err(error),
        };
        let on_trunk = self.revisions.tags().iter().filter(|tag| tag.branch == DEFAULT_BRANCH);
        let mut earlier: Vec<&Tag> = on_trunk.filter(|tag| tag.revision < revision.number).collect();
        earlier.sort_by_key(|tag| std::cmp::Reverse(tag.revision));
        for tag in earlier {
            match self.revisions.at(tag.root_catalog) {
                Ok(found) if found.number < revision.number => return Ok((Some(found), Some(gap))),
                Ok(_) | Err(RepositoryError::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((None, Some(gap)))
    }

    /// Returns the entry of a revision; none if it did not change the given path.
    fn entry(
        &self,
        revision: Revision,
        before: Option<&Revision>,
        tags: &[&Tag],
    ) -> Result<Option<LogEntry>, RepositoryError> {
        let mut entry = LogEntry {
            tags: tags.iter().map(|tag| tag.name.clone()).collect(),
            descriptions: tags.iter().map(|tag| tag.description.clone()).collect(),
            since: before.map(|before| before.number),
            counts: None,
            path: None,
            attributes: Attributes::default(),
            revision,
        };
        let Some(before) = before else {
            let exists = self.within.is_empty() || self.exists_in(&entry.revision)?;
            return Ok(exists.then_some(entry));
        };
        let diff = TreeDiff {
            objects: &**self.revisions.objects(),
            old: before.root,
            new: entry.revision.root,
            within: self.within.clone(),
            ignore_times: false,
        };
        let mut differs = self.within.is_empty();
        let counts = diff.run(&mut |found| {
            differs = true;
            if found.path == self.within && !self.within.is_empty() {
                // A change of type is a removal and an addition.
                let is_first = entry.path.replace(found.change).is_none();
                entry.path = if is_first { entry.path } else { Some(ChangeKind::Changed) };
                entry.attributes = found.attributes;
            }
            Ok(())
        });
        entry.counts = match counts {
            Ok(counts) => Some(counts),
            // A nested catalog of the earlier revision was collected.
            Err(RepositoryError::Missing { .. }) if self.within.is_empty() => None,
            Err(RepositoryError::NoSuchPath(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(differs.then_some(entry))
    }

    fn exists_in(&self, revision: &Revision) -> Result<bool, RepositoryError> {
        self.revisions.has_path(revision.root, &self.within)
    }
}
