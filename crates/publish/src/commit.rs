//! Makes a revision public. Every writer ends here.
//!
//! ```text
//!   newest head ─► rebase ─► catalogs, stored without the lock ─► lock ─► still that head? ─► history, reflog, head
//!                    ▲                                                        │ no
//!                    └──────────── again, now under the lock ◄────────────────┘
//! ```
//!
//! The lock is held for a short time: what is large is stored before. If another publisher replaced the head meanwhile,
//! the catalogs that the changes touch are written once more under the lock, so no publisher waits for ever.
//!
//! Object storage has no lock. There the head is replaced only if its bytes are still those that were read, and otherwise
//! everything after the preparation is done again, after a random pause.

mod link_groups;
mod outcome;
mod prepared;
mod rebase;
mod submit;

use std::collections::BTreeSet;

use esker_format::hash::ContentHash;
use esker_format::history::{Branch, DEFAULT_BRANCH, Tag};
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_format::write::history::{HistoryDraft, TagError};
use esker_repository::{
    Base, BranchHead, BranchRequest, Repository,
    head::{HeadLock, Next, read_history},
};
use esker_store::Swap;

use crate::changes::Changes;
use crate::choices::Resolved;
use crate::error::PublishError;
use crate::profiles::Profiles;
use crate::progress::Phase;
use crate::report::Report;
use crate::revision::{Context, PublishOptions};
use crate::revived_objects::revived_objects;
use crate::submission_rules::CommitRules;

use prepared::Prepared;

pub(crate) use rebase::move_onto;
pub(crate) use submit::submit_tags;

/// Tag for a revision, beside the automatic tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagRequest {
    /// Name of the tag; none for an automatic one.
    pub name: Option<String>,
    /// Description of the tag.
    pub description: String,
    /// Branch that is published on; none for the default one, whose newest revision is the head.
    pub branch: Option<BranchRequest>,
}

impl TagRequest {
    /// Fails if a revision can't get the tag, as it would be now.
    pub fn check(&self, repository: &Repository, now: UnixTime) -> Result<(), PublishError> {
        check_tag(repository, self, now).map(drop)
    }

    /// Returns the name of the branch.
    fn branch_name(&self) -> &str {
        self.branch.as_ref().map_or(DEFAULT_BRANCH, |branch| &branch.name)
    }
}

/// Most revisions that other publishers commit between the end of a request of this one and its look at the head, and that the
/// reflog of a bucket may lack.
pub(crate) const UNLISTED_MAX: usize = 32;
/// Attempts to write the catalogs for a head that stays until the lock is taken, so that little is done under the lock.
const EARLY_ATTEMPTS: u32 = 3;

/// Publishes changes that were computed from the base of the context. Changes that other publishers made meanwhile stay;
/// a path that both changed is a conflict.
///
/// Changes that come to nothing, because other publishers made the same, are no new revision.
pub(crate) fn commit(
    context: &Context<'_>,
    changes: &Changes,
    options: &mut PublishOptions<'_>,
    report: &mut Report,
) -> Result<(), PublishError> {
    let repository = context.repository;
    if let Some(gateway) = repository.gateway() {
        return submit::submit(context, changes, gateway, options, report);
    }
    let begun = context.seconds();
    (options.progress)(context.counters.progress(Phase::Catalogs, 0, 0, context.started.elapsed()));
    let mut prepared = Prepared::new(context, changes, repository.read_head()?, options)?;
    options.check_stop()?;
    let written = context.seconds();
    (options.progress)(context.counters.progress(Phase::Commit, 0, 0, context.started.elapsed()));
    for _ in 0..EARLY_ATTEMPTS {
        let head = repository.read_head()?;
        if head.bytes == prepared.head.bytes {
            break;
        }
        prepared = Prepared::new(context, changes, head, options)?;
        options.check_stop()?;
    }
    let mut lock = repository.lock_head(&options.stop)?;
    let locked = context.seconds();
    loop {
        let collected = lock.may_miss_objects_of(&context.base);
        if collected || !lock.is_of(&prepared.head) {
            prepared = Prepared::new(context, changes, lock.head().clone(), options)?;
        }
        if collected {
            lock.keep(&prepared.objects())?;
            if prepared.onto.new.is_some() {
                // It may start at a revision that nothing else keeps.
                let (objects, head) = (&*context.published.objects, lock.head().verified.root_catalog().hash);
                lock.keep(&revived_objects(objects, head, prepared.onto.root)?)?;
            }
        }
        report.add_bundles(&mut prepared.bundles);
        let (swap, tag) = publish(context, &prepared, &lock, options, report)?;
        let replaced = lock.head().verified.root_catalog().hash;
        let is_public = swap == Swap::Replaced || {
            lock.read_again()?;
            is_between(&prepared, (replaced, lock.head().verified.root_catalog().hash), context, options)?
        };
        if is_public {
            report_revision(context, &prepared, tag, options, report);
            tracing::debug!(seconds = context.seconds(), "the head is public");
            let seconds = &mut report.seconds;
            (seconds.catalogs, seconds.commit) = (written - begun, context.seconds() - written);
            seconds.locked = context.seconds() - locked;
            return Ok(());
        }
        context.submission.iter().for_each(CommitRules::head_stayed);
        tracing::debug!("another publisher replaced the head; the catalogs are written again");
    }
}

/// A stored revision that is not published.
pub(crate) struct StagedRevision {
    /// The revision that it is made of.
    pub(crate) base: Base,
    /// Root catalog and its plain size, if that is known; those of the base if nothing changes.
    pub(crate) root: (ContentHash, Option<u64>),
    /// Objects of all new and changed entries, and of the catalogs.
    pub(crate) objects: BTreeSet<ObjectName>,
    /// Conflicts that the publisher has decided.
    pub(crate) resolved: Vec<Resolved>,
    /// Files and catalogs that exceed limits.
    pub(crate) warnings: Vec<String>,
}

/// Stores the catalogs of changes on top of the newest revision, without publishing them.
pub(crate) fn stage(
    context: &Context<'_>,
    changes: &Changes,
    options: &mut PublishOptions<'_>,
) -> Result<StagedRevision, PublishError> {
    let prepared = Prepared::new(context, changes, context.repository.read_head()?, options)?;
    options.check_stop()?;
    let BranchHead { revision, root, size, .. } = prepared.onto;
    let base = Base { revision, root, size, ..context.base };
    let mut staged = StagedRevision {
        base,
        root: (root, size),
        objects: prepared.objects(),
        resolved: prepared.resolved,
        warnings: Vec::new(),
    };
    if let Some(written) = prepared.written {
        staged.root = (written.root.hash, Some(written.root.size));
        staged.warnings.extend(written.over_limits.warnings());
    }
    Ok(staged)
}

/// Returns true if a prepared revision was published after a head and before another one: an object storage may lose the answer
/// to the request that replaced the head, and another publisher may come next.
fn is_between(
    prepared: &Prepared,
    (old, new): (ContentHash, ContentHash),
    context: &Context<'_>,
    options: &PublishOptions<'_>,
) -> Result<bool, PublishError> {
    let Some(written) = prepared.written.as_ref().filter(|_| options.tag.branch.is_none()) else {
        return Ok(false);
    };
    let mut at = new;
    for _ in 0..UNLISTED_MAX {
        if at == written.root.hash || at == old {
            break;
        }
        let previous = context.published.other((at, None)).root()?.catalog.properties().previous_revision;
        match previous.filter(|hash| !hash.is_null()) {
            Some(previous) => at = previous,
            None => break,
        }
    }
    Ok(at == written.root.hash)
}

/// Reports a revision that is public.
fn report_revision(
    context: &Context<'_>,
    prepared: &Prepared,
    tag: Option<String>,
    options: &PublishOptions<'_>,
    report: &mut Report,
) {
    report.resolved.clone_from(&prepared.resolved);
    let Some(written) = &prepared.written else { return };
    (report.revision, report.root, report.tag) = (written.revision, written.root.hash.to_string(), tag);
    (report.catalogs_written, report.catalog_bytes) = written.catalogs;
    report.published = true;
    report.branch = options.tag.branch.as_ref().map(|branch| branch.name.clone());
    report.add_over_limits(written.over_limits.clone());
    if options.tag.branch.is_none() {
        let profiles = Profiles::of(context.repository);
        report.remembered(profiles.remember(&prepared.bundles.triggers));
    }
}

/// Publishes a prepared revision, or only the tag if it is none. Returns the name of the revision's tag, too.
fn publish(
    context: &Context<'_>,
    prepared: &Prepared,
    lock: &HeadLock<'_>,
    options: &PublishOptions<'_>,
    report: &mut Report,
) -> Result<(Swap, Option<String>), PublishError> {
    let profiles = Profiles::of(context.repository);
    let Some(written) = &prepared.written else {
        let removes = context.submission.is_some_and(|submission| !submission.rules.removed_tags.is_empty());
        let swap = match &options.tag.name {
            Some(_) => tag(context, lock, prepared.onto.new.as_ref(), &options.tag, report)?,
            None if removes => tag(context, lock, None, &options.tag, report)?,
            None => {
                report.warnings.extend(context.message_warning(options));
                Swap::Replaced
            }
        };
        // Profiles follow the bundles that the head has.
        if options.tag.branch.is_none() {
            report.remembered(profiles.remember(&prepared.bundles.triggers));
        }
        return Ok((swap, None));
    };
    // Recorded before they are public: unrecorded bundles could never be removed.
    profiles.remember_also(&prepared.bundles.all_triggers)?;
    let mut history = lock.history()?;
    if let Some(branch) = &prepared.onto.new {
        history.add_branch(Branch { initial_revision: written.revision, ..branch.clone() })?;
    }
    let head = Tag {
        branch: options.tag.branch_name().to_owned(),
        root_catalog: written.root.hash,
        size: Some(written.root.size),
        revision: written.revision,
        timestamp: written.now,
        ..empty_tag(lock)
    };
    let name = name_for(context.repository, &history, &options.tag, context.now)?;
    if let Some(name) = &name {
        let description = options.tag.description.clone();
        history.add(Tag { name: name.clone(), description, ..head.clone() })?;
    }
    if let Some(age) = context.repository.settings().automatic_tags_age() {
        history.remove_automatic(UnixTime(written.now.0.saturating_sub(age)));
    }
    if let Some(submission @ CommitRules { rules, .. }) = context.submission {
        rules.tags_before.into_iter().for_each(|time| drop(history.remove_automatic(time)));
        history.remove(rules.removed_tags)?;
        submission.before_head(Some((&written.root.hash, written.revision)))?;
    }
    let same = lock.same_revision(context.now);
    let next = if options.tag.branch.is_some() {
        Next { history: Some(history), branch_root: Some(written.root.hash), ..same }
    } else {
        history.advance(&head);
        Next {
            root: (written.root.hash, written.root.size),
            revision: written.revision,
            ttl: written.ttl,
            timestamp: written.now,
            history: Some(history),
            ..same
        }
    };
    Ok((lock.publish(next)?, name))
}

/// Changes tags: the base of the changes, which make no difference to it, gets one, and those of a submission are removed.
fn tag(
    context: &Context<'_>,
    lock: &HeadLock<'_>,
    new_branch: Option<&Branch>,
    request: &TagRequest,
    report: &mut Report,
) -> Result<Swap, PublishError> {
    let base = context.published.root()?;
    let mut history = lock.history()?;
    new_branch.into_iter().try_for_each(|branch| history.add_branch(branch.clone()))?;
    if let Some(CommitRules { rules, .. }) = context.submission {
        history.remove(rules.removed_tags)?;
    }
    if let Some(name) = &request.name {
        let modified = base.catalog.properties().last_modified;
        history.add(Tag {
            name: name.clone(),
            root_catalog: base.hash,
            size: Some(base.catalog.size()),
            revision: context.base.revision,
            timestamp: modified.unwrap_or(lock.head().verified.timestamp()),
            description: request.description.clone(),
            branch: request.branch_name().to_owned(),
        })?;
    }
    if let Some(submission) = context.submission {
        submission.before_head(None)?;
    }
    let swap = lock.publish(Next { history: Some(history), ..lock.same_revision(context.now) })?;
    report.tag.clone_from(&request.name);
    report.branch = request.branch.as_ref().map(|branch| branch.name.clone());
    Ok(swap)
}

/// Returns a tag of the default branch whose other fields are to be filled in.
fn empty_tag(lock: &HeadLock<'_>) -> Tag {
    Tag {
        name: String::new(),
        root_catalog: lock.head().verified.root_catalog().hash,
        size: None,
        revision: 0,
        timestamp: UnixTime(0),
        description: String::new(),
        branch: DEFAULT_BRANCH.to_owned(),
    }
}

/// Returns the name of the tag that a new revision gets, and refuses one that can't be made.
pub(crate) fn name_for(
    repository: &Repository,
    history: &HistoryDraft,
    tag: &TagRequest,
    now: UnixTime,
) -> Result<Option<String>, PublishError> {
    if let (None, Some(branch)) = (&tag.name, &tag.branch) {
        return Err(TagError::BranchWithoutTag(branch.name.clone()).into());
    }
    let automatic = || repository.settings().automatic_tags.then(|| history.automatic_name(now));
    let name = tag.name.clone().or_else(automatic);
    // A gateway may have settings that are not known here.
    let is_known = !repository.storage().is_served() || repository.has_settings();
    if name.is_none() && !tag.description.is_empty() && is_known {
        return Err(PublishError::MessageWithoutTag);
    }
    Ok(name)
}

/// Returns the name of the tag as it would be now; checked before any other work.
pub(crate) fn check_tag(
    repository: &Repository,
    tag: &TagRequest,
    now: UnixTime,
) -> Result<Option<String>, PublishError> {
    if tag.branch.is_some() {
        repository.require_keys()?;
    }
    // The newest head: a collect may have taken the history of an earlier one.
    let head = repository.read_head()?.verified;
    let draft = read_history(repository, head.history())?;
    BranchHead::find(repository, &head, tag.branch.as_ref())?;
    let name = name_for(repository, &draft, tag, now)?;
    if let Some(name) = &name {
        let probe = Tag {
            name: name.clone(),
            root_catalog: repository.head().root_catalog().hash,
            size: None,
            revision: 0,
            timestamp: now,
            description: String::new(),
            branch: DEFAULT_BRANCH.to_owned(),
        };
        draft.clone().add(probe)?;
    }
    Ok(name)
}
