//! Adds, moves and removes tags of published revisions.

use std::sync::atomic::AtomicBool;

use esker_format::history::{Branch, DEFAULT_BRANCH, History, Tag};
use esker_format::time::UnixTime;
use esker_format::write::history::{HistoryDraft, TagError};
use esker_repository::{
    GatewaySession, Repository, RepositoryError, Revisions,
    head::{self, Next, exclusively},
};
use serde::Serialize;

use crate::commit::submit_tags;
use crate::error::PublishError;
use crate::revision::Context;
use crate::revived_objects::revived_objects;
use crate::snapshots;

/// A change of tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// Gives a revision a new tag.
    Add {
        /// Name of the tag.
        name: String,
        /// The revision; none for the newest.
        revision: Option<String>,
        /// Description of the tag.
        description: String,
        /// Moves the tag if there is one of this name.
        force: bool,
    },
    /// Gives an existing tag to another revision.
    Move {
        /// Name of the tag.
        name: String,
        /// The revision; none for the newest.
        revision: Option<String>,
        /// New description; empty to keep the old one.
        description: String,
    },
    /// Removes tags: all of these or none.
    Remove {
        /// Names of the tags.
        names: Vec<String>,
    },
}

/// A tag, for reports. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagInfo {
    /// Its name.
    pub name: String,
    /// Number of the revision.
    pub revision: u64,
    /// Hash of the root catalog.
    pub root: String,
    /// Plain size of the root catalog in bytes, if it is recorded.
    pub size: Option<u64>,
    /// Time of publication in seconds since the epoch.
    pub published: i64,
    /// Branch, empty for the default one.
    pub branch: String,
    /// Description.
    pub description: String,
}

impl From<&Tag> for TagInfo {
    fn from(tag: &Tag) -> Self {
        Self {
            name: tag.name.clone(),
            revision: tag.revision,
            root: tag.root_catalog.to_string(),
            size: tag.size,
            published: tag.timestamp.0,
            branch: tag.branch.clone(),
            description: tag.description.clone(),
        }
    }
}

/// A branch, for reports. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BranchInfo {
    /// Its name, empty for the default one.
    pub name: String,
    /// Branch that it started from; none for the default one.
    pub parent: Option<String>,
    /// Number of branches between it and the default one, and one more; 0 for the default one.
    pub depth: usize,
    /// Number of its first revision.
    pub first: u64,
    /// Its newest tag.
    pub newest: Option<TagInfo>,
    /// Number of its tags.
    pub tags: usize,
}

impl BranchInfo {
    /// Lists the branches of a history: each one before those that started from it.
    pub fn list(history: &History) -> Vec<Self> {
        let mut listed = Vec::new();
        let below = |parent: Option<&str>| {
            let is_below = |branch: &&Branch| branch.parent.as_deref() == parent;
            let mut below: Vec<&Branch> = history.branches().iter().filter(is_below).collect();
            below.sort_by(|a, b| b.name.cmp(&a.name));
            below
        };
        let mut waiting: Vec<(&Branch, usize)> = below(None).into_iter().map(|branch| (branch, 0)).collect();
        while let Some((branch, depth)) = waiting.pop() {
            // Branches of a damaged history may start from each other.
            if listed.len() >= history.branches().len() {
                break;
            }
            listed.push(Self::of(history, branch, depth));
            waiting.extend(below(Some(&branch.name)).into_iter().map(|branch| (branch, depth + 1)));
        }
        listed
    }

    fn of(history: &History, branch: &Branch, depth: usize) -> Self {
        let Branch { name, parent, initial_revision: first } = branch.clone();
        let newest = history.branch_head(&name).map(TagInfo::from);
        let tags = history.tags().iter().filter(|tag| tag.branch == name).count();
        Self { name, parent, depth, first, newest, tags }
    }
}

/// Result of a change of tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TagReport {
    /// New tags.
    pub added: Vec<TagInfo>,
    /// Moved tags, after the change.
    pub moved: Vec<TagInfo>,
    /// The moved tags before the change, in the same order.
    pub moved_from: Vec<TagInfo>,
    /// Tags that were removed.
    pub removed: Vec<TagInfo>,
    /// Branches without any remaining tag.
    pub branches_removed: Vec<String>,
    /// New revision with other virtual snapshots, if the repository has those.
    pub snapshots: Option<u64>,
}

impl TagChange {
    /// Returns the names of the tags that change.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Add { name, .. } | Self::Move { name, .. } => std::slice::from_ref(name),
            Self::Remove { names } => names,
        }
    }

    /// Returns the report of the planned change, and changes nothing.
    pub fn dry_run(&self, repository: &Repository) -> Result<TagReport, PublishError> {
        let head = repository.read_head()?.verified;
        let mut history = head::read_history(repository, head.history())?;
        self.apply(&Revisions::of_head(repository, head)?, &mut history)
    }

    /// Changes the tags: a new history, and a new head of the same revision that names it.
    pub fn run(
        &self,
        repository: &Repository,
        now: UnixTime,
        stop: &AtomicBool,
    ) -> Result<TagReport, PublishError> {
        if let Some(gateway) = repository.gateway() {
            return self.submit(repository, gateway, now);
        }
        let base = repository.begin();
        let mut report = exclusively::<_, PublishError>(repository, stop, |lock| {
            let revisions = Revisions::of_head(repository, lock.head().verified.clone())?;
            let mut history = lock.history()?;
            let report = self.apply(&revisions, &mut history)?;
            if lock.may_miss_objects_of(&base) {
                for tag in report.added.iter().chain(&report.moved).filter_map(|tag| history.find(&tag.name))
                {
                    let head = lock.head().verified.root_catalog().hash;
                    let objects = revived_objects(&**revisions.objects(), head, tag.root_catalog)?;
                    lock.keep(&objects)?;
                }
            }
            Ok((Some(Next { history: Some(history), ..lock.same_revision(now) }), report))
        })?;
        report.snapshots = snapshots::refresh(repository, now, stop)?.map(|revision| revision.number);
        Ok(report)
    }

    /// Changes tags of the newest revision through a gateway, which takes no other changes of tags.
    fn submit(
        &self,
        repository: &Repository,
        gateway: &dyn GatewaySession,
        now: UnixTime,
    ) -> Result<TagReport, PublishError> {
        let head = repository.read_head()?.verified;
        let newest = head.root_catalog().hash.to_string();
        let mut history = head::read_history(repository, head.history())?;
        let report = self.apply(&Revisions::of_head(repository, head)?, &mut history)?;
        let no_names = Vec::new();
        let (tag, text, removed) = match self {
            Self::Remove { names } => (None, "", names),
            Self::Add { name, description, .. } if report.added.iter().any(|tag| tag.root == newest) => {
                (Some(name.as_str()), description.as_str(), &no_names)
            }
            Self::Add { .. } | Self::Move { .. } => {
                return Err(RepositoryError::NotThroughGateway(repository.name().to_string()).into());
            }
        };
        let context = Context::without_index(repository, repository.begin(), now)?;
        submit_tags(&context, gateway, (tag, removed), text)?;
        Ok(report)
    }

    fn apply(&self, revisions: &Revisions, history: &mut HistoryDraft) -> Result<TagReport, PublishError> {
        let mut report = TagReport::default();
        let before: Vec<String> = history.branches().iter().map(|branch| branch.name.clone()).collect();
        match self {
            Self::Remove { names } => {
                report.removed = history.remove(names)?.iter().map(TagInfo::from).collect();
            }
            Self::Add { name, revision, description, force } if !*force || history.find(name).is_none() => {
                let tag = named(revisions, name, revision.as_deref(), description)?;
                history.add(tag)?;
                report.added.extend(history.find(name).map(TagInfo::from));
            }
            Self::Add { name, revision, description, .. } | Self::Move { name, revision, description } => {
                if history.find(name).is_none() {
                    return Err(TagError::Unknown(name.clone()).into());
                }
                let old = history.retag(named(revisions, name, revision.as_deref(), description)?)?;
                report.moved_from.push(TagInfo::from(&old));
                report.moved.extend(history.find(name).map(TagInfo::from));
            }
        }
        let is_left = |name: &String| history.branches().iter().any(|branch| branch.name == *name);
        report.branches_removed = before.into_iter().filter(|name| !is_left(name)).collect();
        Ok(report)
    }
}

/// Returns a tag for a revision.
fn named(
    revisions: &Revisions,
    name: &str,
    revision: Option<&str>,
    description: &str,
) -> Result<Tag, PublishError> {
    let found = revision.map_or_else(|| revisions.head(), |revision| revisions.find(revision))?;
    Ok(Tag {
        name: name.to_owned(),
        root_catalog: found.root,
        size: Some(found.size),
        revision: found.number,
        timestamp: found.published,
        description: description.to_owned(),
        branch: DEFAULT_BRANCH.to_owned(),
    })
}
