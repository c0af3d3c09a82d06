//! Finds the catalogs that a new revision has to write, and their sizes.

use esker_format::catalog::Flags;
use esker_repository::{entry::AUTO_MARKER, path};

use crate::changes::NewTree;
use crate::error::PublishError;

/// A directory of a catalog.
#[derive(Debug)]
pub(crate) struct OutlineDirectory {
    pub(crate) path: Vec<u8>,
    /// Parent directory, as index; none for the root of the catalog. Parents come before their children.
    pub(crate) parent: Option<usize>,
    /// Number of entries in the directory.
    pub(crate) entries: u64,
}

/// Shape of a catalog to write.
#[derive(Debug)]
pub(crate) struct Outline {
    pub(crate) mountpoint: Vec<u8>,
    pub(crate) directories: Vec<OutlineDirectory>,
    /// True if the publisher split this catalog off automatically.
    pub(crate) automatic: bool,
    /// True if merging the published catalog would lose its properties or counters.
    pub(crate) must_stay: bool,
}

impl Outline {
    /// Returns the outline of a root catalog whose directories don't matter.
    pub(crate) fn root() -> Self {
        Self { mountpoint: Vec::new(), directories: Vec::new(), automatic: false, must_stay: false }
    }

    /// Returns the number of entries that the catalog will have, its root included.
    pub(crate) fn entries(&self) -> u64 {
        1 + self.directories.iter().map(|directory| directory.entries).sum::<u64>()
    }
}

/// Finds all catalogs in which something changes, from the root down.
///
/// Fails if a published catalog can't be written again, or can't go, without a loss.
pub(crate) fn outline_all(tree: NewTree<'_>) -> Result<Vec<Outline>, PublishError> {
    let mut outlines = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(mountpoint) = waiting.pop() {
        let outline = outline(tree, mountpoint, &mut waiting)?;
        outlines.push(outline);
    }
    Ok(outlines)
}

fn outline(
    tree: NewTree<'_>,
    mountpoint: Vec<u8>,
    to_write: &mut Vec<Vec<u8>>,
) -> Result<Outline, PublishError> {
    let must_stay = match tree.published.at(&mountpoint)? {
        Some(old) => old.carried()?.pairs_of_its_own().next().is_some(),
        None => false,
    };
    let mut directories = vec![OutlineDirectory { path: mountpoint.clone(), parent: None, entries: 0 }];
    let mut automatic = false;
    let mut next = 0;
    while next < directories.len() {
        let directory = directories[next].path.clone();
        let entries = tree.list(&directory)?;
        directories[next].entries = entries.len() as u64;
        automatic |= next == 0 && entries.iter().any(|entry| entry.name == AUTO_MARKER);
        for entry in entries.iter().filter(|entry| entry.is_directory()) {
            let path = path::join(&directory, &entry.name);
            if entry.flags.has(Flags::BIND_MOUNTPOINT) {
                continue;
            }
            if !tree.is_mountpoint(&path, entry)? {
                if tree.changes.get(&path).is_some_and(|change| !change.fresh)
                    && let Some(dissolving) = tree.published.at(&path)?
                {
                    dissolving.check_dissolving()?;
                }
                directories.push(OutlineDirectory { path, parent: Some(next), entries: 0 });
            } else if tree.changes.affects(&path) || tree.published.nested_at(&path)?.is_none() {
                to_write.push(path);
            }
        }
        next += 1;
    }
    Ok(Outline { mountpoint, directories, automatic, must_stay })
}
