//! The difference between a published revision and a tree above another, unpublished one.

use std::collections::BTreeMap;

use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, entry, path, published::Published};

use crate::changes::{Changes, NewTree};

/// Returns the changes that make a tree of a published revision. Nested catalogs that both have are not read.
pub(super) fn difference(old: &Published, new: NewTree<'_>) -> Result<Changes, RepositoryError> {
    let mut changes = Changes::default();
    if let (Some(before), Some(now)) = (old.entry(b"")?, new.entry(b"")?)
        && !entry::is_same(&before, &now)
    {
        changes.root = Some(now);
        changes.touch(b"");
    }
    let mut waiting = vec![(Vec::new(), true)];
    while let Some((directory, existed)) = waiting.pop() {
        if existed && is_equal(old, new, &directory)? {
            continue;
        }
        let listed = if existed { old.list(&directory)? } else { Vec::new() };
        let mut before: BTreeMap<Vec<u8>, Entry> =
            listed.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for now in new.list(&directory)? {
            let before = before.remove(&now.name);
            if now.is_directory() {
                let was_directory = before.as_ref().is_some_and(Entry::is_directory);
                waiting.push((path::join(&directory, &now.name), was_directory));
            }
            if !before.is_some_and(|before| entry::is_same(&before, &now)) {
                changes.put(&directory, now);
            }
        }
        for name in before.keys() {
            changes.remove(&directory, name);
        }
    }
    Ok(changes)
}

/// Returns true if a directory is the root of the same nested catalog on both sides, and nothing below it changes.
fn is_equal(old: &Published, new: NewTree<'_>, directory: &[u8]) -> Result<bool, RepositoryError> {
    if directory.is_empty() || new.changes.affects(directory) {
        return Ok(false);
    }
    let hash = |tree: &Published| -> Result<_, RepositoryError> {
        Ok(tree.nested_at(directory)?.and_then(|nested| nested.hash))
    };
    let before = hash(old)?;
    Ok(before.is_some() && before == hash(new.published)?)
}
