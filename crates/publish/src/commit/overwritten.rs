//! Finds what a commit overwrote at a gateway that compares no revisions.
//!
//! ```text
//!   onto ── others' revisions ──► before ── the commit ──► published       paths in both differences were overwritten
//! ```
//!
//! The gateway of the reference puts the difference of two root catalogs on whatever the head names by then. If a publisher with
//! the keys, or one that the web server did not show yet, came in between, its changes of the same paths are gone without a word.

use std::collections::BTreeSet;

use esker_repository::{BranchHead, TreeDiff, path};

use super::UNLISTED_MAX;
use crate::error::PublishError;
use crate::revision::Context;

/// Most paths that are named.
const NAMED_MAX: usize = 20;

/// Fails if a revision that was built on `onto` overwrote what others published in between. Returns a warning if that can't be
/// found out. The number is none if the gateway's answer was lost.
pub(super) fn check(
    context: &Context<'_>,
    onto: &BranchHead,
    revision: Option<u64>,
) -> Result<Option<String>, PublishError> {
    let head = context.repository.read_head()?.verified;
    if revision.unwrap_or(head.revision()) <= onto.revision.saturating_add(1) {
        return Ok(None);
    }
    let newest = (head.root_catalog().hash, head.root_catalog_size());
    let mut at = context.published.other(newest).root()?;
    for _ in 0..UNLISTED_MAX {
        let previous = at.catalog.properties().previous_revision.filter(|hash| !hash.is_null());
        match previous {
            Some(previous)
                if revision.is_some_and(|revision| at.catalog.properties().revision > revision) =>
            {
                at = context.published.other((previous, None)).root()?;
            }
            _ => break,
        }
    }
    let properties = at.catalog.properties();
    let (Some(previous), Some(revision)) =
        (properties.previous_revision, revision.filter(|revision| *revision == properties.revision))
    else {
        return Ok(Some(format!(
            "others published since revision {}, and this gateway may have overwritten what they changed: that can't be found out",
            onto.revision
        )));
    };
    let before = context.published.other((previous, None)).root()?;
    let difference = |old, new| TreeDiff {
        objects: &*context.published.objects,
        old,
        new,
        within: Vec::new(),
        ignore_times: true,
    };
    let mut theirs = BTreeSet::new();
    difference(onto.root, before.hash).run(&mut |found| {
        if path::is_within(found.path, &context.target) {
            theirs.insert(found.path.to_vec());
        }
        Ok(())
    })?;
    let (mut paths, mut count) = (Vec::new(), 0);
    difference(before.hash, at.hash).run(&mut |found| {
        if theirs.remove(found.path) {
            count += 1;
            if paths.len() < NAMED_MAX {
                paths.push(path::shown(found.path));
            }
        }
        Ok(())
    })?;
    match count {
        0 => Ok(None),
        _ => Err(PublishError::Overwrote {
            paths,
            count,
            revision,
            before: before.catalog.properties().revision,
        }),
    }
}
