//! Rolls the repository back: publishes an earlier revision again, as a new one.

use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::time::UnixTime;
use esker_format::write::history::{HistoryDraft, TRUNK_PREVIOUS};
use serde::Serialize;

use crate::catalogs::{CatalogBuilder, Outline};
use crate::changes::{Changes, NewTree};
use crate::commit::{self, Commit};
use crate::error::AdminError;
use crate::published::Published;
use crate::repository::Repository;
use crate::revisions::{Revision, Revisions};
use crate::snapshots;
use crate::tree_diff::{DiffCounts, DiffVisitor, TreeDiff};

/// Description of a rollback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollback {
    /// Tag, number or root hash of the revision to go back to; none undoes the last publish.
    pub target: Option<String>,
}

/// Result of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RollbackReport {
    /// The newest revision before.
    pub before: Revision,
    /// The revision that was published again.
    pub target: Revision,
    /// Number of the new revision.
    pub revision: u64,
    /// Hash of its root catalog; none in a dry run.
    pub root: Option<String>,
    /// Tags of later revisions, which were removed.
    pub tags_removed: Vec<String>,
    /// The tag that now names the new revision.
    pub tag: Option<String>,
    /// What the rollback changes.
    pub counts: DiffCounts,
}

/// A rollback that was checked.
struct Plan {
    report: RollbackReport,
    history: HistoryDraft,
    /// True if the target was named by its tag.
    tag: Option<String>,
}

impl Rollback {
    /// Returns the report of the planned rollback, and changes nothing; `visit` gets the differences.
    pub fn dry_run(
        &self,
        repository: &Repository,
        now: UnixTime,
        visit: &mut DiffVisitor<'_>,
    ) -> Result<RollbackReport, AdminError> {
        let Plan { mut report, mut history, tag } = self.plan(repository, visit)?;
        let head = new_head(&report.target, report.revision, now);
        let removed = history.roll_back(report.target.number, tag.as_deref(), &head);
        report.tags_removed = removed.into_iter().map(|tag| tag.name).collect();
        Ok(report)
    }

    /// Rolls back.
    pub fn run(&self, repository: &Repository, now: UnixTime) -> Result<RollbackReport, AdminError> {
        let Plan { mut report, mut history, tag } = self.plan(repository, &mut |_| Ok(()))?;
        let now = now.max(repository.head.timestamp());
        let objects = Revisions::of(repository)?.objects().clone();
        let published = Published::of_root(objects, (report.target.root, None));
        let ttl = published.root()?.catalog.properties().ttl.unwrap_or(repository.head.ttl());
        let mut changes = Changes::default();
        changes.touch(b"");
        let builder = CatalogBuilder {
            tree: NewTree { published: &published, changes: &changes },
            sink: &*repository.sink,
            algorithm: repository.head.hash_algorithm(),
            revision: report.revision,
            replaces: Some(report.before.root),
            now,
            ttl,
            built: Default::default(),
        };
        let root = builder.run(&[Outline::root()], 1)?;
        let target = Revision { root: root.hash, size: root.size, ..report.target.clone() };
        let head = new_head(&target, report.revision, now);
        let removed = history.roll_back(report.target.number, tag.as_deref(), &head);
        report.tags_removed = removed.into_iter().map(|tag| tag.name).collect();
        report.root = Some(root.hash.to_string());
        let commit = Commit {
            root: (root.hash, root.size),
            revision: report.revision,
            ttl,
            ..Commit::of_published(repository, now)
        };
        commit.replace_head(history)?;
        snapshots::refresh(repository, now)?;
        Ok(report)
    }

    fn plan(&self, repository: &Repository, visit: &mut DiffVisitor<'_>) -> Result<Plan, AdminError> {
        let revisions = Revisions::of(repository)?;
        let before = revisions.head()?;
        let name = self.target.as_deref().unwrap_or(TRUNK_PREVIOUS);
        let tag = revisions.tags().iter().find(|tag| tag.name == name);
        if name == TRUNK_PREVIOUS && tag.is_none() {
            return Err(AdminError::NothingToUndo { before: revisions.number_before(&before)? });
        }
        let refused =
            |reason: &str| AdminError::NoRevision { name: name.to_owned(), reason: reason.to_owned() };
        if tag.is_some_and(|tag| tag.branch != DEFAULT_BRANCH) {
            return Err(refused("a rollback needs a revision of the default branch"));
        }
        let target = revisions.find(name)?;
        if target.number >= before.number {
            return Err(refused("a rollback needs a revision before the newest one"));
        }
        let (old, new) = (before.root, target.root);
        let diff =
            TreeDiff { objects: &**revisions.objects(), old, new, within: Vec::new(), ignore_times: false };
        // Reads all catalogs that come back, so a collected one is noticed before anything changes.
        let counts = diff.run(visit)?;
        let tag = tag.map(|tag| tag.name.clone());
        let report = RollbackReport {
            revision: before.number.saturating_add(1),
            root: None,
            tags_removed: Vec::new(),
            tag: tag.clone().filter(|tag| tag != TRUNK_PREVIOUS),
            before,
            target,
            counts,
        };
        Ok(Plan { report, history: commit::continue_history(repository, &repository.head)?, tag })
    }
}

fn new_head(target: &Revision, revision: u64, now: UnixTime) -> Tag {
    Tag {
        name: String::new(),
        root_catalog: target.root,
        size: Some(target.size),
        revision,
        timestamp: now,
        description: String::new(),
        branch: DEFAULT_BRANCH.to_owned(),
    }
}
