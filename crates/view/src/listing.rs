//! Lists directories.

use std::sync::Arc;

use esker_format::catalog::{Flags, PathKey};
use esker_vfs::{Cookie, DirEntry, FIRST_COOKIE, Ino, Listing, Node};
use parking_lot::Mutex;

use crate::attributes::RowRef;
use crate::dir_order;
use crate::failure::{self, Blocked};
use crate::identity;
use crate::lookup::{Directory, Snapshot, is_name};
use crate::payload::NodeInfo;
use esker_format::path::{join, split};

/// Maximum number of cached listings, which serve programs that read a directory in pieces.
const LISTINGS_MAX: usize = 64;
/// Maximum number of names in all cached listings but the last: some 64 MB.
const NAMES_MAX: usize = 1 << 18;

/// A directory in one revision: serial number, key of its row, key of the mount that has the row.
type Key = (u64, PathKey, PathKey);

/// Cache of recently used listings, the latest first.
#[derive(Default)]
pub(crate) struct Listings(Mutex<Vec<(Key, CachedListing)>>);

#[derive(Clone)]
struct CachedListing {
    entries: Arc<[DirEntry]>,
    parent: Ino,
}

impl Listings {
    fn get(&self, key: &Key) -> Option<CachedListing> {
        let mut list = self.0.lock();
        let at = list.iter().position(|(known, _)| known == key)?;
        list[..=at].rotate_right(1);
        list.first().map(|(_, cached)| cached.clone())
    }

    /// Removes all listings, after a change of the revision.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.0.lock());
        drop(dropped);
    }

    fn put(&self, key: Key, cached: CachedListing) {
        let mut names = cached.entries.len();
        // Dropped after the lock is released.
        let mut dropped = Vec::new();
        let mut list = self.0.lock();
        list.insert(0, (key, cached));
        let keep = list.iter().enumerate().skip(1).find_map(|(at, (_, cached))| {
            names += cached.entries.len();
            (at == LISTINGS_MAX || names > NAMES_MAX).then_some(at)
        });
        if let Some(keep) = keep {
            dropped = list.split_off(keep);
        }
        drop(list);
        drop(dropped);
    }
}

impl Snapshot<'_> {
    /// Returns the names of a directory after a position.
    pub(crate) fn list(&self, dir: &Node, after: Cookie) -> Result<Listing, Blocked> {
        let directory = self.directory(dir)?;
        let info = NodeInfo::of(dir)?;
        let key = (self.revision.label.serial, info.key, info.mount);
        let cached = match self.core.listings.get(&key) {
            Some(cached) => cached,
            None => {
                let cached =
                    CachedListing { entries: self.names(directory)?.into(), parent: parent(directory.path) };
                self.core.listings.put(key, cached.clone());
                cached
            }
        };
        let start = cached.entries.partition_point(|entry| entry.cookie <= after);
        Ok(Listing { entries: cached.entries, start, parent: cached.parent })
    }

    /// Returns the names of a directory in their order, without hidden ones.
    fn names(&self, directory: Directory<'_>) -> Result<Vec<DirEntry>, Blocked> {
        let Directory { path, mount } = directory;
        let mut entries = Vec::new();
        let own_key = mount.key_of(path);
        let damaged = |error| failure::of_catalog(error, mount.describe());
        for row in mount.attached.catalog.children(own_key).map_err(damaged)? {
            let row = row.map_err(damaged)?;
            // A row that no lookup could find is not listed either.
            if row.flags().has(Flags::HIDDEN) || row.key() == own_key || !is_name(row.name()) {
                continue;
            }
            let found = self.core.attribute_rules.found(RowRef {
                mount,
                path: &join(path, row.name()),
                row: &row,
            })?;
            entries.push(DirEntry {
                name: row.name().into(),
                cookie: FIRST_COOKIE,
                node: found.node,
                attr: found.attr,
            });
        }
        dir_order::arrange(&mut entries, |entry| &entry.name, |entry, cookie| entry.cookie = cookie);
        Ok(entries)
    }
}

/// Returns the inode number of the parent directory.
fn parent(path: &[u8]) -> Ino {
    let above = split(path).map_or(&b""[..], |(parent, _)| parent);
    identity::number(&identity::directory(above), above.is_empty())
}
