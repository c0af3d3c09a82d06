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

mod kept_history;
mod lock;
mod prepared;
mod publication;
mod rebase;

use std::collections::HashSet;

use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::time::UnixTime;
use esker_format::write::history::HistoryDraft;
use esker_store::Swap;

use crate::changes::Changes;
use crate::create::DAY;
use crate::error::AdminError;
use crate::progress::Phase;
use crate::report::Report;
use crate::repository::{Base, Repository};
use crate::revision::{Context, PublishOptions};

pub(crate) use kept_history::read_history;
pub(crate) use lock::{ATTEMPTS, HeadLock};
pub(crate) use prepared::objects_of;
use prepared::{Prepared, Written};
pub(crate) use publication::Next;

/// Tag for a revision, beside the automatic tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagRequest {
    /// Name of the tag; none for an automatic one.
    pub name: Option<String>,
    /// Description of the tag.
    pub description: String,
}

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
) -> Result<(), AdminError> {
    let repository = context.repository;
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
    for _ in 0..ATTEMPTS {
        let collected = lock.may_miss_objects_of(&context.base);
        if collected || !lock.is_of(&prepared.head) {
            prepared = Prepared::new(context, changes, lock.head().clone(), options)?;
        }
        if collected {
            lock.keep(&prepared.objects())?;
        }
        report.add_bundles(&mut prepared.bundles);
        if publish(context, &prepared, &lock, options, report)? == Swap::Replaced {
            let seconds = &mut report.seconds;
            (seconds.catalogs, seconds.commit) = (written - begun, context.seconds() - written);
            seconds.locked = context.seconds() - locked;
            return Ok(());
        }
        lock.read_again()?;
    }
    Err(AdminError::Moving)
}

/// A stored revision that is not published.
pub(crate) struct StagedRevision {
    /// The revision that it is made of.
    pub(crate) base: Base,
    /// Root catalog and its plain size.
    pub(crate) root: (ContentHash, u64),
    /// Files and catalogs that exceed limits.
    pub(crate) warnings: Vec<String>,
}

/// Stores the catalogs of changes without publishing them; none if nothing changes.
pub(crate) fn stage(
    context: &Context<'_>,
    changes: &Changes,
    options: &mut PublishOptions<'_>,
) -> Result<Option<StagedRevision>, AdminError> {
    let prepared = Prepared::new(context, changes, context.repository.read_head()?, options)?;
    options.check_stop()?;
    let head = &prepared.head.verified;
    let (revision, root, size) = (head.revision(), head.root_catalog().hash, head.root_catalog_size());
    let base = Base { revision, root, size, ..context.base };
    let staged = |written: Written| StagedRevision {
        base,
        root: (written.root.hash, written.root.size),
        warnings: written.over_limits.warnings().collect(),
    };
    Ok(prepared.written.map(staged))
}

/// Publishes a prepared revision, or only the tag if it is none.
fn publish(
    context: &Context<'_>,
    prepared: &Prepared,
    lock: &HeadLock<'_>,
    options: &PublishOptions<'_>,
    report: &mut Report,
) -> Result<Swap, AdminError> {
    let profiles = context.repository.profiles();
    let Some(written) = &prepared.written else {
        let swap = match &options.tag.name {
            Some(_) => tag(context, lock, &options.tag, report)?,
            None => {
                report.warnings.extend(context.message_warning(options));
                Swap::Replaced
            }
        };
        report.remembered(profiles.remember(&prepared.bundles.triggers));
        return Ok(swap);
    };
    // Recorded before they are public: unrecorded bundles could never be removed.
    profiles.remember_also(&prepared.bundles.all_triggers)?;
    let mut history = lock.history()?;
    let head = Tag {
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
    if let Some(days) = context.repository.settings.automatic_tags_for {
        history.remove_automatic(UnixTime(written.now.0.saturating_sub(i64::from(days) * DAY)));
    }
    history.advance(&head);
    let next = Next {
        root: (written.root.hash, written.root.size),
        revision: written.revision,
        ttl: written.ttl,
        timestamp: written.now,
        history: Some(history),
        forgotten: HashSet::new(),
    };
    let swap = lock.publish(next)?;
    if swap == Swap::Replaced {
        (report.revision, report.root, report.tag) = (written.revision, written.root.hash.to_string(), name);
        (report.catalogs_written, report.catalog_bytes) = written.catalogs;
        report.published = true;
        report.add_over_limits(written.over_limits.clone());
        report.remembered(profiles.remember(&prepared.bundles.triggers));
    }
    Ok(swap)
}

/// Adds a tag to the base of the changes, which make no difference to it.
fn tag(
    context: &Context<'_>,
    lock: &HeadLock<'_>,
    request: &TagRequest,
    report: &mut Report,
) -> Result<Swap, AdminError> {
    let base = context.published.root()?;
    let mut history = lock.history()?;
    let Some(name) = name_for(context.repository, &history, request, context.now)? else {
        return Ok(Swap::Replaced);
    };
    let modified = base.catalog.properties().last_modified;
    history.add(Tag {
        name: name.clone(),
        root_catalog: base.hash,
        size: Some(context.base.size.unwrap_or(0)),
        revision: context.base.revision,
        timestamp: modified.unwrap_or(lock.head().verified.timestamp()),
        description: request.description.clone(),
        ..empty_tag(lock)
    })?;
    let swap = lock.publish(Next { history: Some(history), ..lock.same_revision(context.now) })?;
    report.tag = Some(name);
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
) -> Result<Option<String>, AdminError> {
    let automatic = || repository.settings.automatic_tags.then(|| history.automatic_name(now));
    let name = tag.name.clone().or_else(automatic);
    if name.is_none() && !tag.description.is_empty() {
        return Err(AdminError::MessageWithoutTag);
    }
    Ok(name)
}

/// Returns the name of the tag as it would be now; checked before any other work.
pub(crate) fn check_tag(
    repository: &Repository,
    tag: &TagRequest,
    now: UnixTime,
) -> Result<Option<String>, AdminError> {
    // The newest head: a collect may have taken the history of an earlier one.
    let draft = read_history(repository, repository.read_head()?.verified.history())?;
    let name = name_for(repository, &draft, tag, now)?;
    if let Some(name) = &name {
        let probe = Tag {
            name: name.clone(),
            root_catalog: repository.head.root_catalog().hash,
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
