//! A catalog at its place in the tree.
//!
//! A catalog files its rows under the paths it was published with, below its `root_prefix`. Usually it is
//! mounted at just that path; below a bind mountpoint (`/.cvmfs/snapshots/<tag>`) it is mounted elsewhere,
//! and paths are translated.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_format::catalog::{Chunk, PathKey, Placement, Row};
use esker_format::hash::ContentHash;
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::{Attached, WantedCatalog};
use crate::{failure, identity};

/// The longest path we follow, in bytes and in components: `PATH_MAX` of Linux is 4096, and no component
/// takes less than two bytes.
const PATH_BYTES_MAX: usize = 4096;
const COMPONENTS_MAX: usize = PATH_BYTES_MAX / 2;

/// An attached catalog and where it is mounted.
pub(crate) struct CatalogMount {
    pub(crate) attached: Arc<Attached>,
    /// The visible path of its root, empty for the root of the repository.
    pub(crate) path: Arc<[u8]>,
    /// Key of that path.
    pub(crate) key: PathKey,
    placement: Placement,
    /// The catalogs mounted below, by visible path.
    pub(crate) nested: HashMap<Box<[u8]>, NestedRef>,
    /// When it was last used, on the clock of its revision.
    pub(crate) used: AtomicU64,
}

/// A reference to a catalog that is mounted below another.
#[derive(Clone, Debug)]
pub(crate) struct NestedRef {
    /// None if the catalog above tells of none that is understood. What lies there can't be had then, which is not the
    /// same as nothing.
    pub(crate) hash: Option<ContentHash>,
    pub(crate) size: Option<u64>,
}

impl NestedRef {
    /// The catalog that is mounted at `mountpoint`.
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
            // One outside its own catalog can't be reached.
            if let Some(seen) = placement.seen(&entry.path)
                && seen.len() > path.len()
            {
                nested.insert(seen.into(), NestedRef { hash: entry.hash, size: entry.size });
            }
        }
        let key = PathKey::of(path);
        Ok(Self { attached, path: path.into(), key, placement, nested, used: AtomicU64::new(0) })
    }

    /// Whether it is mounted at another path than it was published with.
    pub(crate) fn is_bound(&self) -> bool {
        self.placement.mountpoint() != self.attached.prefix()
    }

    /// The catalog's key of the directory `dir`, which lies in it.
    pub(crate) fn key_of(&self, dir: &[u8]) -> PathKey {
        PathKey::of(&self.stored(dir))
    }

    /// The catalog's key of `name` in the directory `dir`.
    pub(crate) fn key_of_child(&self, dir: &[u8], name: &[u8]) -> PathKey {
        PathKey::child(&self.stored(dir), name)
    }

    /// The path under which the catalog files what is seen at `path`.
    fn stored<'p>(&self, path: &'p [u8]) -> Cow<'p, [u8]> {
        if self.is_bound() {
            Cow::Owned(self.placement.stored(path).unwrap_or_default())
        } else {
            Cow::Borrowed(path)
        }
    }

    /// The row with this key.
    pub(crate) fn find(&self, key: PathKey) -> Result<Option<Row<'_>>, TreeError> {
        self.attached.catalog.find(key).map_err(|error| self.damaged(error))
    }

    /// The mountpoint nearest to this one on the way to the visible path, with its reference.
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

    /// The visible path of the row with this key, if the catalog has it: names of the row and its parents
    /// up to the catalog's root.
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

    /// A digest over the chunks of a file.
    pub(crate) fn chunks_digest(&self, row: &Row<'_>) -> Result<[u8; 16], TreeError> {
        self.chunks(row).map(|chunks| identity::chunks_digest(&chunks))
    }

    /// The chunks of a file.
    pub(crate) fn chunks(&self, row: &Row<'_>) -> Result<Vec<Chunk>, TreeError> {
        self.attached.catalog.chunks(row).map_err(|error| self.damaged(error))
    }

    /// Notes that the catalog was used at this time. Writes only when the clock moved, so that lookups in
    /// one catalog don't fight for its cache line.
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
    /// The path its root was published with.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.catalog.properties().root_prefix
    }

    pub(crate) fn describe(&self, path: &[u8]) -> String {
        WantedCatalog::new(self.hash, None, path).describe()
    }
}
