//! Writes the catalogs of a new revision: those in which something changed, and those above them.
//!
//! Which directory is the root of a catalog follows from the new tree: a changed directory is one if it holds
//! a marker, an unchanged one if it was one. So splitting and joining catalogs is nothing special; a catalog is
//! always written as a walk from its root down to the roots of others.

mod outline;
mod writing;

use std::collections::BTreeMap;

use esker_format::catalog::{Counters, EntryKind, Flags, NestedCatalog};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, entry::MARKER};
use esker_store::Sink;
use parking_lot::Mutex;

use crate::changes::NewTree;
use crate::error::PublishError;

#[cfg(test)]
pub(crate) use outline::OutlineDirectory;
pub(crate) use outline::{Outline, outline_all};

/// A catalog that was written.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) hash: ContentHash,
    pub(crate) size: u64,
    pub(crate) total: Counters,
    pub(crate) stored_bytes: u64,
}

impl Built {
    fn nested(&self, path: &[u8]) -> NestedCatalog {
        NestedCatalog { path: path.to_vec(), hash: Some(self.hash), size: Some(self.size), bind: false }
    }
}

/// State shared by all catalogs of a revision that is being written.
pub(crate) struct CatalogBuilder<'r> {
    pub(crate) tree: NewTree<'r>,
    pub(crate) sink: &'r dyn Sink,
    pub(crate) algorithm: HashAlgorithm,
    /// The number of the new revision.
    pub(crate) revision: u64,
    /// Root catalog of the revision before, if it isn't that of the tree.
    pub(crate) replaces: Option<ContentHash>,
    /// True to add up the counters of all nested catalogs, and not to trust those of the catalog before.
    pub(crate) recount: bool,
    pub(crate) now: UnixTime,
    pub(crate) ttl: u32,
    /// The catalogs written so far, by mountpoint.
    pub(crate) built: Mutex<BTreeMap<Vec<u8>, Built>>,
}

impl CatalogBuilder<'_> {
    /// Writes catalogs, deepest first and several in parallel; returns the root catalog.
    pub(crate) fn run(&self, outlines: &[Outline], threads: usize) -> Result<Built, PublishError> {
        let depth = |outline: &Outline| outline.mountpoint.iter().filter(|byte| **byte == b'/').count();
        let mut levels: BTreeMap<usize, Vec<&Outline>> = BTreeMap::new();
        for outline in outlines {
            levels.entry(depth(outline)).or_default().push(outline);
        }
        for level in levels.into_values().rev() {
            self.run_level(&level, threads)?;
        }
        let root = self.built.lock().get(&b""[..]).cloned();
        Ok(root.ok_or_else(|| RepositoryError::Missing {
            what: "the new root catalog".to_owned(),
            object: String::new(),
        })?)
    }

    fn run_level(&self, level: &[&Outline], threads: usize) -> Result<(), PublishError> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let error = Mutex::new(None);
        let work = || -> Result<(), PublishError> {
            let mut writer = writing::Writer::new(self);
            while let Some(outline) = level.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                if error.lock().is_some() {
                    break;
                }
                let built = writer.write(&outline.mountpoint)?;
                self.built.lock().insert(outline.mountpoint.clone(), built);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.min(level.len()) {
                scope.spawn(|| {
                    if let Err(failed) = work() {
                        let mut error = error.lock();
                        *error = error.take().or(Some(failed));
                    }
                });
            }
        });
        error.into_inner().map_or(Ok(()), Err)
    }
}

/// Returns true if an entry is the marker of a nested catalog.
pub(crate) fn is_marker(entry: &Entry) -> bool {
    entry.name == MARKER && entry.kind() == Some(EntryKind::File)
}

impl NewTree<'_> {
    /// Returns true if the directory `entry` at `path` is the root of a nested catalog.
    pub(crate) fn is_mountpoint(&self, path: &[u8], entry: &Entry) -> Result<bool, PublishError> {
        if self.changes.get(path).is_none() {
            return Ok(entry.flags.has(Flags::NESTED_MOUNTPOINT));
        }
        Ok(self.list(path)?.iter().any(is_marker))
    }
}
