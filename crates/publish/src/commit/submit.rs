//! Hands a new revision to a gateway, whose commit publishes it.
//!
//! The catalogs are those of a revision on top of the newest head. The gateway publishes the difference between both, on top of
//! what is newest then.

use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_repository::{
    BuiltRevision, GatewayFailure, GatewaySession, ReadHead, Repository, RepositoryError, head::read_history,
};

use crate::changes::Changes;
use crate::error::PublishError;
use crate::filter::Filter;
use crate::profiles::Profiles;
use crate::progress::Phase;
use crate::report::Report;
use crate::revision::{Context, PublishOptions};

use super::outcome::Given;
use super::prepared::Prepared;
use super::{EARLY_ATTEMPTS, TagRequest};

/// Paths outside of the lease that a warning names.
const NAMED_MAX: usize = 20;

/// Publishes changes through a gateway. Without a difference there is no new revision.
pub(super) fn submit(
    context: &Context<'_>,
    changes: &Changes,
    gateway: &dyn GatewaySession,
    options: &mut PublishOptions<'_>,
    report: &mut Report,
) -> Result<(), PublishError> {
    let begun = context.seconds();
    (options.progress)(context.counters.progress(Phase::Catalogs, 0, 0, context.started.elapsed()));
    let mut prepared = Prepared::new(context, changes, context.repository.read_head()?, options)?;
    if !gateway.compares_revisions() {
        // What is seen now is no conflict that the gateway would miss.
        for _ in 0..EARLY_ATTEMPTS {
            let head = context.repository.read_head()?;
            if head.bytes == prepared.head.bytes {
                break;
            }
            prepared = Prepared::new(context, changes, head, options)?;
        }
    }
    let is_changed = prepared.written.is_some();
    if !is_changed && options.tag.name.is_some() {
        prepared = touched(context, prepared.head, options)?;
    }
    options.check_stop()?;
    let Some(written) = &prepared.written else {
        report.warnings.extend(context.message_warning(options));
        return Ok(());
    };
    let profiles = Profiles::of(context.repository);
    profiles.remember_also(&prepared.bundles.all_triggers)?;
    let at = context.seconds();
    (options.progress)(context.counters.progress(Phase::Commit, 0, 0, context.started.elapsed()));
    let built = BuiltRevision {
        base: prepared.onto.root,
        root: written.root.hash,
        tag: options.tag.name.as_deref().unwrap_or_default(),
        description: &options.tag.description,
        removed_tags: &[],
    };
    let done = gateway.commit(&built).map_err(|failure| refused(context, gateway, &prepared, failure))?;
    report.warnings.extend(left_out(&done.left_out));
    report.published = is_changed;
    report.resolved.append(&mut prepared.resolved);
    report.revision = done.revision.unwrap_or(written.revision);
    report.tag.clone_from(&options.tag.name);
    (report.catalogs_written, report.catalog_bytes) = written.catalogs;
    report.add_over_limits(written.over_limits.clone());
    report.add_bundles(&mut prepared.bundles);
    report.remembered(profiles.remember(&prepared.bundles.triggers));
    describe(context.repository, report)?;
    if !gateway.compares_revisions() {
        let (published, target) = (&context.published, context.target.as_slice());
        let given = Given { published, target, onto: &prepared.onto, built: written.root.hash };
        let head = context.repository.read_head().map_err(PublishError::from);
        match head.and_then(|head| given.check(&head.verified, done.revision)) {
            Ok(warning) => report.warnings.extend(warning),
            Err(overwrote @ PublishError::Overwrote { .. }) => return Err(overwrote),
            // The changes are public, whatever can be read now.
            Err(error) => {
                report.warnings.push(format!("what the gateway published can't be compared: {error}"));
            }
        }
    }
    (report.seconds.catalogs, report.seconds.commit) = (at - begun, context.seconds() - at);
    Ok(())
}

/// Adds or removes tags of the newest revision through a gateway.
pub(crate) fn submit_tags(
    context: &Context<'_>,
    gateway: &dyn GatewaySession,
    (tag, removed_tags): (Option<&str>, &[String]),
    description: &str,
) -> Result<(), PublishError> {
    let (mut quiet, mut confirmed) = (|_| (), |_| true);
    let options = PublishOptions {
        tag: TagRequest::default(),
        threads: 1,
        stop: Arc::default(),
        profiles: Vec::new(),
        filter: Filter::default(),
        progress: &mut quiet,
        confirm_shrink: &mut confirmed,
    };
    let prepared = touched(context, context.repository.read_head()?, &options)?;
    let Some(written) = &prepared.written else { return Ok(()) };
    let (base, root, tag) = (prepared.onto.root, written.root.hash, tag.unwrap_or_default());
    let built = BuiltRevision { base, root, tag, description, removed_tags };
    gateway.commit(&built).map(drop).map_err(|failure| refused(context, gateway, &prepared, failure))
}

/// Stores a revision without a difference: a gateway changes tags only with a revision, and Esker's makes none of it.
fn touched(
    context: &Context<'_>,
    head: ReadHead,
    options: &PublishOptions<'_>,
) -> Result<Prepared, PublishError> {
    let mut touched = Changes::default();
    touched.touch(b"");
    Prepared::new(context, &touched, head, options)
}

fn refused(
    context: &Context<'_>,
    gateway: &dyn GatewaySession,
    prepared: &Prepared,
    failure: GatewayFailure,
) -> PublishError {
    match failure {
        GatewayFailure::Conflict(paths) if !paths.is_empty() => {
            // The number tells the user only what to compare with.
            let head = context.repository.read_head().map(|head| head.verified.revision());
            let base = prepared.onto.revision;
            let (count, head) = (paths.len() as u64, head.unwrap_or(base));
            PublishError::Conflict { paths, count, base, head, is_transaction: context.choices.is_some() }
        }
        GatewayFailure::Lacks(objects) => RepositoryError::Collected { objects }.into(),
        GatewayFailure::Interrupted => RepositoryError::Interrupted.into(),
        failure => RepositoryError::Gateway { gateway: gateway.describe(), failure }.into(),
    }
}

fn left_out(paths: &[String]) -> Option<String> {
    let (named, more) = paths.split_at(paths.len().min(NAMED_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!paths.is_empty()).then(|| {
        format!("not published, because the lease is of another directory: {}{more}", named.join(", "))
    })
}

/// Adds to a report what the gateway made of the revision, if the web server has it already.
fn describe(repository: &Repository, report: &mut Report) -> Result<(), PublishError> {
    let head = repository.read_head()?.verified;
    let history = read_history(repository, head.history())?;
    let tagged = history.tags().iter().find(|tag| tag.revision == report.revision);
    let root: Option<ContentHash> = match head.revision() == report.revision {
        true => Some(head.root_catalog().hash),
        false => tagged.map(|tag| tag.root_catalog),
    };
    report.root = root.map(|root| root.to_string()).unwrap_or_default();
    report.tag = report.tag.take().or_else(|| tagged.map(|tag| tag.name.clone()));
    if head.revision() < report.revision {
        let revision = report.revision;
        report.warnings.push(format!("the web server does not show revision {revision} yet"));
    }
    Ok(())
}
