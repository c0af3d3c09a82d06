//! Directories of a revision.

use esker_format::catalog::{EntryKind, PathKey};
use esker_format::hash::ContentHash;
use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, path};

use super::objects::{Objects, no_such_path};

/// Number of entries on a page.
pub(crate) const LISTED: usize = 200;
/// Number of entries of a directory that are sorted; more are left out.
const SORTED: usize = 200_000;
/// Number of entries between two checks of the budget.
const STRIDE: usize = 4096;

/// Entry at a path.
#[derive(Debug)]
pub(crate) enum Found {
    Directory(Directory),
    Entry(Entry),
}

/// A part of a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Entries in the order of names.
    pub(crate) entries: Vec<Entry>,
    /// Number of the first of them in the directory.
    pub(crate) first: usize,
    /// Number of all entries.
    pub(crate) total: usize,
    /// True if the directory has more entries than were read.
    pub(crate) is_cut: bool,
}

/// Finds a path, and lists a part of the directory there.
pub(crate) fn find(
    objects: &Objects<'_>,
    root: ContentHash,
    path: &[u8],
    first: usize,
) -> Result<Found, RepositoryError> {
    if let Some((directory, _)) = path::split(path) {
        let above = objects.owner(root, directory)?;
        let row = above.catalog.find(PathKey::of(path)).map_err(above.failed())?;
        let row = row.ok_or_else(|| no_such_path(path))?;
        if row.kind() != EntryKind::Directory {
            return Ok(Found::Entry(Entry::from_row(&row, Vec::new())));
        }
    }
    let owner = objects.owner(root, path)?;
    let mut entries = Vec::new();
    let mut is_cut = false;
    for row in owner.catalog.children(PathKey::of(path)).map_err(owner.failed())? {
        let is_full =
            entries.len() >= SORTED || (entries.len() % STRIDE == STRIDE - 1 && objects.budget().is_spent());
        if is_full {
            is_cut = true;
            break;
        }
        entries.push(Entry::from_row(&row.map_err(owner.failed())?, Vec::new()));
    }
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let total = entries.len();
    let first = first.min(total);
    let entries = entries.into_iter().skip(first).take(LISTED).collect();
    Ok(Found::Directory(Directory { entries, first, total, is_cut }))
}
