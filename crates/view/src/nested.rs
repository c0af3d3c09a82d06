//! A catalog at its mountpoint.
//!
//! A catalog's rows have the keys of the paths that it was published with, below its `root_prefix`. Usually it is
//! mounted at just that path; below a bind mountpoint (`/.cvmfs/snapshots/<tag>`) it is mounted elsewhere, and paths
//! are translated.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_format::catalog::{Chunk, PathKey, Placement, Row};
use esker_format::hash::ContentHash;
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::{Attached, WantedCatalog};
use crate::{failure, identity};

/// Maximum length of a path, in bytes and in components: `PATH_MAX` of Linux is 4096, and no component takes less than
/// two bytes.
const PATH_BYTES_MAX: usize = 4096;
const COMPONENTS_MAX: usize = PATH_BYTES_MAX / 2;

/// An attached catalog and its mountpoint.
pub(crate) struct CatalogMount {
    pub(crate) attached: Arc<Attached>,
    /// Visible path of the catalog's root, empty for the root of the repository.
    pub(crate) path: Arc<[u8]>,
    /// Key of that path.
    pub(crate) key: PathKey,
    placement: Placement,
    /// Catalogs mounted below, by visible path.
    pub(crate) nested: HashMap<Box<[u8]>, NestedRef>,
    /// Time of the last use, on the clock of the revision.
    pub(crate) used: AtomicU64,
}

/// A reference to a catalog that is mounted below another.
#[derive(Clone, Debug)]
pub(crate) struct NestedRef {
    /// Hash of the catalog; `None` if the catalog above has no valid one. The nested directory is then an error, not
    /// empty.
    pub(crate) hash: Option<ContentHash>,
    pub(crate) size: Option<u64>,
}

impl NestedRef {
    /// Returns the request for the catalog, mounted at `mountpoint`.
    pub(crate) fn wanted(&self, mountpoint: &[u8]) -> Result<WantedCatalog, TreeError> {
        let place = || format!("the catalog of {}", String::from_utf8_lossy(mountpoint));
        let untold = || TreeError::on(ErrorKind::Damaged, place()).because("the one above doesn't name it");
        Ok(WantedCatalog::new(self.hash.ok_or_else(untold)?, self.size, mountpoint))
    }
}

impl CatalogMount {
    pub(crate) fn new(attached: Arc<Attached>, path: &[u8]) -> Result<Self, TreeError> {
        let placement = Placement::new(path, attached.prefix());
        let list =
            attached.catalog.nested().map_err(|error| failure::of_catalog(error, attached.describe(path)))?;
        let mut nested = HashMap::new();
        for entry in list {
            // A nested catalog outside of its parent can't be reached.
            if let Some(seen) = placement.seen(&entry.path)
                && seen.len() > path.len()
            {
                nested.insert(seen.into(), NestedRef { hash: entry.hash, size: entry.size });
            }
        }
        let key = PathKey::of(path);
        Ok(Self { attached, path: path.into(), key, placement, nested, used: AtomicU64::new(0) })
    }

    /// Returns true if the catalog is mounted at another path than it was published with.
    pub(crate) fn is_bound(&self) -> bool {
        self.placement.mountpoint() != self.attached.prefix()
    }

    /// Returns the catalog's key of the directory `dir` in it.
    pub(crate) fn key_of(&self, dir: &[u8]) -> PathKey {
        PathKey::of(&self.stored(dir))
    }

    /// Returns the catalog's key of `name` in the directory `dir`.
    pub(crate) fn key_of_child(&self, dir: &[u8], name: &[u8]) -> PathKey {
        PathKey::child(&self.stored(dir), name)
    }

    /// Returns the published path of the visible `path`.
    fn stored<'p>(&self, path: &'p [u8]) -> Cow<'p, [u8]> {
        if self.is_bound() {
            Cow::Owned(self.placement.stored(path).unwrap_or_default())
        } else {
            Cow::Borrowed(path)
        }
    }

    /// Finds the row with this key.
    pub(crate) fn find(&self, key: PathKey) -> Result<Option<Row<'_>>, TreeError> {
        self.attached.catalog.find(key).map_err(|error| self.damaged(error))
    }

    /// Returns the next mountpoint on the way to the visible path, with its reference.
    pub(crate) fn next_mount<'p>(&self, path: &'p [u8]) -> Option<(&'p [u8], &NestedRef)> {
        if self.nested.is_empty() || path.len() <= self.path.len() {
            return None;
        }
        let start = self.path.len() + 1;
        let ends = path.iter().enumerate().skip(start).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).find_map(|end| {
            let mountpoint = path.get(..end)?;
            Some((mountpoint, self.nested.get(mountpoint)?))
        })
    }

    /// Returns the visible path of the row with this key, built from the names of the row and its parents; `None` if
    /// there is no such row.
    pub(crate) fn path_of(&self, key: PathKey) -> Result<Option<Vec<u8>>, TreeError> {
        let root = PathKey::of(self.attached.prefix());
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = key;
        while at != root {
            let Some(row) = self.find(at)? else { return Ok(None) };
            if names.len() == COMPONENTS_MAX {
                return Err(
                    TreeError::on(ErrorKind::Damaged, self.describe()).because("its directories form a loop")
                );
            }
            names.push(row.name().into());
            at = row.parent();
        }
        let mut path = self.path.to_vec();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(Some(path))
    }

    /// Returns a digest over the chunks of a file.
    pub(crate) fn chunks_digest(&self, row: &Row<'_>) -> Result<[u8; 16], TreeError> {
        self.chunks(row).map(|chunks| identity::chunks_digest(&chunks))
    }

    /// Returns the chunks of a file.
    pub(crate) fn chunks(&self, row: &Row<'_>) -> Result<Vec<Chunk>, TreeError> {
        self.attached.catalog.chunks(row).map_err(|error| self.damaged(error))
    }

    /// Records a use of the catalog at this time.
    ///
    /// Writes only when the clock has moved, so that lookups in one catalog don't contend for its cache line.
    pub(crate) fn touch(&self, now: u64) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn describe(&self) -> String {
        self.attached.describe(&self.path)
    }

    pub(crate) fn damaged(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TreeError {
        TreeError::on(ErrorKind::Damaged, self.describe()).because(error)
    }
}

impl Attached {
    /// Returns the path that the root of the catalog was published with.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.catalog.properties().root_prefix
    }

    pub(crate) fn describe(&self, path: &[u8]) -> String {
        WantedCatalog::new(self.hash, None, path).describe()
    }
}
