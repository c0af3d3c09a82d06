//! Brings a directory of the new tree into order once all of its changes are known.

use std::collections::HashMap;

use esker_format::write::catalog::Entry;
use esker_repository::{
    entry,
    published::{Published, number_groups},
};

use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::trigger_flags::with_flags_mended;

/// Mends hard link groups and bundle flags in every changed directory, and drops changes that equal the published
/// entries.
pub(crate) fn tidy(published: &Published, changes: &mut Changes) -> Result<(), PublishError> {
    for directory in changes.paths() {
        for entry in mended_groups(NewTree { published, changes }, &directory)? {
            changes.put(&directory, entry);
        }
        for entry in with_flags_mended(NewTree { published, changes }, &directory)? {
            changes.put(&directory, entry);
        }
        drop_same(published, changes, &directory)?;
    }
    Ok(())
}

/// Returns the entries whose group or link count does not fit the names that are left in a directory. Groups are numbered
/// as published ones are, so that a group that stayed as it was equals the published one.
fn mended_groups(tree: NewTree<'_>, directory: &[u8]) -> Result<Vec<Entry>, PublishError> {
    let listing = tree.list(directory)?;
    let mut mended = listing.clone();
    mend_groups(&mut mended);
    let group = |entry: &Entry| (entry.hardlink_group, entry.link_count);
    let wrong = mended.into_iter().zip(&listing).filter(|(new, old)| group(new) != group(old));
    Ok(wrong.map(|(new, _)| new).collect())
}

/// Counts the names of each group in the listing of a directory, and numbers the groups as published ones are.
pub(crate) fn mend_groups(listing: &mut [Entry]) {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    for entry in listing.iter().filter(|entry| entry.hardlink_group != 0) {
        *counts.entry(entry.hardlink_group).or_default() += 1;
    }
    for entry in listing.iter_mut().filter(|entry| entry.hardlink_group != 0) {
        entry.link_count = counts.get(&entry.hardlink_group).copied().unwrap_or(1);
        if entry.link_count < 2 {
            entry.hardlink_group = 0;
        }
    }
    number_groups(listing);
}

fn drop_same(published: &Published, changes: &mut Changes, directory: &[u8]) -> Result<(), PublishError> {
    let Some(change) = changes.get(directory) else { return Ok(()) };
    if change.fresh || change.entries.is_empty() {
        return Ok(());
    }
    let old: HashMap<Vec<u8>, Entry> =
        published.list(directory)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
    let is_same = |name: &Vec<u8>, entry: &Option<Entry>| match (old.get(name), entry) {
        (Some(old), Some(new)) => entry::is_same(old, new),
        (None, None) => true,
        _ => false,
    };
    let same: Vec<Vec<u8>> = change
        .entries
        .iter()
        .filter(|(name, entry)| is_same(name, entry))
        .map(|(name, _)| name.clone())
        .collect();
    for name in same {
        changes.revert(directory, &name);
    }
    Ok(())
}
