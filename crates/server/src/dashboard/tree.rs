//! Directories of a revision.

use std::sync::Arc;

use esker_format::catalog::{EntryKind, Flags, NestedCatalog, PathKey, Row};
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_repository::RepositoryError;

use super::objects::{Objects, OpenCatalog, catalog_error};

/// Number of entries on a page.
pub(crate) const LISTED: usize = 200;
/// Number of entries of a directory that are sorted; more are left out.
const SORTED: usize = 200_000;
/// Number of entries between two looks at the budget.
const STRIDE: usize = 4096;

/// What is at a path.
#[derive(Debug)]
pub(crate) enum Found {
    Directory(Directory),
    Entry(TreeEntry),
}

/// A part of a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Entries in the order of names.
    pub(crate) entries: Vec<TreeEntry>,
    /// Number of the first of them in the directory.
    pub(crate) first: usize,
    /// Number of all entries.
    pub(crate) total: usize,
    /// True if the directory has more entries than were read.
    pub(crate) is_cut: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct TreeEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: u64,
    pub(crate) modified: UnixTime,
    /// Target of a symlink.
    pub(crate) target: Vec<u8>,
    pub(crate) hash: Option<ContentHash>,
    /// True if the directory has a catalog of its own.
    pub(crate) is_nested: bool,
    pub(crate) is_chunked: bool,
    pub(crate) is_external: bool,
}

impl TreeEntry {
    pub(crate) fn of(row: &Row<'_>) -> Self {
        Self {
            name: row.name().to_vec(),
            kind: row.kind(),
            mode: row.mode(),
            uid: row.uid(),
            gid: row.gid(),
            size: row.size(),
            modified: UnixTime(row.mtime()),
            target: row.symlink().to_vec(),
            hash: row.hash(),
            is_nested: row.flags().has(Flags::NESTED_MOUNTPOINT),
            is_chunked: row.flags().has(Flags::CHUNKED),
            is_external: row.flags().has(Flags::EXTERNAL),
        }
    }
}

/// A catalog, and the directory that is its root.
pub(crate) struct Mounted {
    pub(crate) mountpoint: Vec<u8>,
    pub(crate) hash: ContentHash,
    pub(crate) catalog: Arc<OpenCatalog>,
}

impl Mounted {
    pub(crate) fn open(
        objects: &Objects<'_>,
        mountpoint: &[u8],
        hash: ContentHash,
    ) -> Result<Self, RepositoryError> {
        Ok(Self { mountpoint: mountpoint.to_vec(), hash, catalog: objects.catalog(hash)? })
    }

    /// Opens the catalog that lists a directory.
    pub(crate) fn of_directory(
        objects: &Objects<'_>,
        root: ContentHash,
        directory: &[u8],
    ) -> Result<Self, RepositoryError> {
        let mut owner = Self::open(objects, b"", root)?;
        let ends = directory.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
        for end in ends.map(|(end, _)| end).chain([directory.len()]).filter(|end| *end > 0) {
            let ancestor = directory.get(..end).unwrap_or(directory);
            let row = owner.catalog.find(PathKey::of(ancestor)).map_err(|error| owner.failed(error))?;
            // A path that is not there ends here, however long it is.
            let flags = row.ok_or_else(|| no_such_path(directory))?.flags();
            if flags.has(Flags::NESTED_MOUNTPOINT) {
                let nested = owner.catalog.nested_at(ancestor).map_err(|error| owner.failed(error))?;
                if let Some(hash) = nested.as_ref().and_then(own_hash) {
                    owner = Self::open(objects, ancestor, hash)?;
                }
            }
        }
        Ok(owner)
    }

    pub(crate) fn failed(&self, source: esker_format::catalog::CatalogError) -> RepositoryError {
        catalog_error(self.hash, source)
    }
}

/// Returns the hash of a nested catalog that is a part of the revision.
pub(crate) fn own_hash(nested: &NestedCatalog) -> Option<ContentHash> {
    nested.hash.filter(|_| !nested.bind)
}

fn no_such_path(path: &[u8]) -> RepositoryError {
    RepositoryError::NoSuchPath(String::from_utf8_lossy(path).into_owned())
}

/// Finds a path, and lists a part of the directory there.
pub(crate) fn find(
    objects: &Objects<'_>,
    root: ContentHash,
    path: &[u8],
    first: usize,
) -> Result<Found, RepositoryError> {
    if let Some(slash) = path.iter().rposition(|byte| *byte == b'/') {
        let above = Mounted::of_directory(objects, root, path.get(..slash).unwrap_or_default())?;
        let row = above.catalog.find(PathKey::of(path)).map_err(|error| above.failed(error))?;
        let entry = TreeEntry::of(&row.ok_or_else(|| no_such_path(path))?);
        if entry.kind != EntryKind::Directory {
            return Ok(Found::Entry(entry));
        }
    }
    let owner = Mounted::of_directory(objects, root, path)?;
    let mut entries = Vec::new();
    let mut is_cut = false;
    for row in owner.catalog.children(PathKey::of(path)).map_err(|error| owner.failed(error))? {
        let is_full =
            entries.len() >= SORTED || (entries.len() % STRIDE == STRIDE - 1 && objects.budget().is_spent());
        if is_full {
            is_cut = true;
            break;
        }
        entries.push(TreeEntry::of(&row.map_err(|error| owner.failed(error))?));
    }
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let total = entries.len();
    let first = first.min(total);
    let entries = entries.into_iter().skip(first).take(LISTED).collect();
    Ok(Found::Directory(Directory { entries, first, total, is_cut }))
}
