//! Rolls the repository back: publishes an earlier revision again, as a new one.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::write::history::{HistoryDraft, TRUNK_PREVIOUS, is_reserved};
use esker_repository::{
    DiffCounts, DiffVisitor, Repository, RepositoryError, Revision, Revisions, TreeDiff,
    head::{self, Next, exclusively},
    published::Published,
};
use serde::Serialize;

use crate::catalogs::{Built, CatalogBuilder, Outline};
use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::revived_objects::revived_objects;
use crate::snapshots;

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
    /// Number of changes by the rollback.
    pub counts: DiffCounts,
}

impl Rollback {
    /// Returns the report of the planned rollback, and changes nothing; `visit` gets the differences.
    pub fn dry_run(
        &self,
        repository: &Repository,
        now: UnixTime,
        visit: &mut DiffVisitor<'_>,
    ) -> Result<RollbackReport, PublishError> {
        let head = repository.read_head()?.verified;
        let revisions = Revisions::of_head(repository, head.clone())?;
        let mut report = self.plan(&revisions, visit)?;
        existing_objects(repository, &revisions, &report)?;
        let mut history = head::read_history(repository, head.history())?;
        let target = report.target.clone();
        report.change(&mut history, &new_head(&target, report.revision, now));
        Ok(report)
    }

    /// Rolls back.
    pub fn run(
        &self,
        repository: &Repository,
        now: UnixTime,
        stop: &AtomicBool,
    ) -> Result<RollbackReport, PublishError> {
        let base = repository.begin_again(None)?;
        // The comparison may take long, so the lock is taken after it.
        let head = repository.read_head()?;
        let revisions = Revisions::of_head(repository, head.verified.clone())?;
        let mut planned = self.plan(&revisions, &mut |_| Ok(()))?;
        let mut returning = existing_objects(repository, &revisions, &planned)?;
        let report = exclusively::<_, PublishError>(repository, stop, |lock| {
            let revisions = Revisions::of_head(repository, lock.head().verified.clone())?;
            if !lock.is_of(&head) {
                planned = self.plan(&revisions, &mut |_| Ok(()))?;
                returning = existing_objects(repository, &revisions, &planned)?;
            }
            let mut report = planned.clone();
            if lock.may_miss_objects_of(&base) {
                lock.keep(&returning)?;
            }
            let same = lock.same_revision(now);
            let (root, ttl) = write(repository, &revisions, &report, same.timestamp)?;
            let mut history = lock.history()?;
            let target = Revision { root: root.hash, size: root.size, ..report.target.clone() };
            report.change(&mut history, &new_head(&target, report.revision, same.timestamp));
            report.root = Some(root.hash.to_string());
            let (root, revision) = ((root.hash, root.size), report.revision);
            Ok((Some(Next { root, revision, ttl, history: Some(history), ..same }), report))
        })?;
        snapshots::refresh(repository, now, stop)?;
        Ok(report)
    }

    fn plan(
        &self,
        revisions: &Revisions,
        visit: &mut DiffVisitor<'_>,
    ) -> Result<RollbackReport, PublishError> {
        let before = revisions.head()?;
        let name = self.target.as_deref().unwrap_or(TRUNK_PREVIOUS);
        let tag = revisions.tags().iter().find(|tag| tag.name == name);
        if name == TRUNK_PREVIOUS && tag.is_none() {
            return Err(PublishError::NothingToUndo { before: revisions.number_before(&before)? });
        }
        let refused = |reason: &str| {
            RepositoryError::NoRevision { name: name.to_owned(), reason: reason.to_owned() }.into()
        };
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
        Ok(RollbackReport {
            revision: before.number.saturating_add(1),
            root: None,
            tags_removed: Vec::new(),
            tag: tag.map(|tag| tag.name.clone()).filter(|name| !is_reserved(name)),
            before,
            target,
            counts,
        })
    }
}

impl RollbackReport {
    /// Changes the tags of a history, and records the removed ones.
    fn change(&mut self, history: &mut HistoryDraft, head: &Tag) {
        let removed = history.roll_back(self.target.number, self.tag.as_deref(), head);
        self.tags_removed = removed.into_iter().map(|tag| tag.name).collect();
    }
}

/// Names of missing objects that a refusal has.
const NAMED_MAX: usize = 3;

/// Returns the objects of the target that the newest revision may lack, and fails if one of these is missing.
fn existing_objects(
    repository: &Repository,
    revisions: &Revisions,
    report: &RollbackReport,
) -> Result<BTreeSet<ObjectName>, PublishError> {
    let objects = revived_objects(&**revisions.objects(), report.before.root, report.target.root)?;
    let missing = repository.storage().missing(&objects)?;
    let mut missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(objects);
    }
    let more = match missing.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    missing.truncate(NAMED_MAX);
    let reason = format!("its files are incomplete: the storage lacks {}{more}", missing.join(", "));
    Err(RepositoryError::NoRevision { name: report.target.number.to_string(), reason }.into())
}

/// Writes the root catalog of the target once more, as that of a new revision. All other catalogs stay.
fn write(
    repository: &Repository,
    revisions: &Revisions,
    report: &RollbackReport,
    now: UnixTime,
) -> Result<(Built, u32), PublishError> {
    let published = Published::of_root(revisions.objects().clone(), (report.target.root, None));
    let head = revisions.published();
    let ttl = published.root()?.catalog.properties().ttl.unwrap_or(head.ttl());
    let mut changes = Changes::default();
    changes.touch(b"");
    let builder = CatalogBuilder {
        tree: NewTree { published: &published, changes: &changes },
        sink: repository.sink(),
        algorithm: head.hash_algorithm(),
        revision: report.revision,
        replaces: Some(report.before.root),
        recount: false,
        now,
        ttl,
        built: Default::default(),
    };
    Ok((builder.run(&[Outline::root()], 1)?, ttl))
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
