//! Catalogs of a revision by size.

use std::collections::BinaryHeap;
use std::sync::Arc;

use esker_format::catalog::NestedCatalog;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::RepositoryError;
use esker_repository::published::OldCatalog;

use super::objects::{Objects, own_hash};

/// Number of catalogs that one request reads.
const READ: usize = 500;
/// Number of catalogs that are listed.
const LISTED: usize = 5000;

/// Catalogs of a revision, the largest first.
#[derive(Debug)]
pub(crate) struct CatalogList {
    pub(crate) rows: Vec<CatalogRow>,
    /// Number of listed catalogs that were not read: those below them are not listed.
    pub(crate) unread: usize,
    /// True if there are more than are listed.
    pub(crate) is_cut: bool,
}

/// A catalog.
#[derive(Debug)]
pub(crate) struct CatalogRow {
    /// Directory that is its root.
    pub(crate) path: Vec<u8>,
    pub(crate) hash: ContentHash,
    /// Plain size in bytes, if it is recorded or the catalog was read.
    pub(crate) size: Option<u64>,
    /// Size of its object.
    pub(crate) stored: Option<u64>,
    /// Entries of the catalog itself; none if it was not read.
    pub(crate) entries: Option<u64>,
    /// Entries of all catalogs below it.
    pub(crate) below: Option<u64>,
    /// Number of catalogs directly below it.
    pub(crate) nested: Option<usize>,
}

impl CatalogList {
    /// Returns true if another request would have the same result.
    pub(crate) fn is_final(&self) -> bool {
        self.unread == 0
    }
}

/// A catalog that is to be read, in the order of sizes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    size: u64,
    path: Vec<u8>,
    hash: ContentHash,
}

/// Lists the catalogs of a revision; the largest ones are read first.
pub(crate) fn list(objects: &Objects<'_>, root: ContentHash) -> Result<CatalogList, RepositoryError> {
    let mut list = CatalogList { rows: Vec::new(), unread: 0, is_cut: false };
    let mut waiting = BinaryHeap::from([Waiting { size: u64::MAX, path: Vec::new(), hash: root }]);
    let mut is_ended = false;
    while let Some(next) = waiting.pop() {
        if list.rows.len() >= LISTED {
            list.is_cut = true;
            break;
        }
        is_ended |= list.rows.len() >= READ;
        let opened = match objects.catalog(&next.path, next.hash) {
            _ if is_ended => None,
            Ok(opened) => Some(opened),
            Err(RepositoryError::Interrupted) if !list.rows.is_empty() => {
                is_ended = true;
                None
            }
            Err(error) => return Err(error),
        };
        list.unread += usize::from(opened.is_none());
        if let Some(opened) = &opened {
            waiting.extend(opened.nested.values().filter_map(|nested| below(opened, nested)));
        }
        list.rows.push(row(objects, next, opened)?);
    }
    list.rows.sort_by(|one, other| other.size.cmp(&one.size).then_with(|| one.path.cmp(&other.path)));
    Ok(list)
}

/// Returns a nested catalog that is further down: so reading them ends.
fn below(above: &OldCatalog, nested: &NestedCatalog) -> Option<Waiting> {
    let hash = own_hash(nested).filter(|_| nested.path.len() > above.mountpoint.len())?;
    Some(Waiting { size: nested.size.unwrap_or(0), path: nested.path.clone(), hash })
}

fn row(
    objects: &Objects<'_>,
    next: Waiting,
    opened: Option<Arc<OldCatalog>>,
) -> Result<CatalogRow, RepositoryError> {
    let object = ObjectName::new(next.hash, ObjectKind::Catalog).path();
    let stored = objects.folder().open(&object).ok().map(|opened| opened.len);
    let recorded = Some(next.size).filter(|size| *size > 0);
    let mut row = CatalogRow {
        path: next.path,
        hash: next.hash,
        size: recorded,
        stored,
        entries: None,
        below: None,
        nested: None,
    };
    if let Some(opened) = opened {
        let statistics = opened.catalog.statistics().map_err(opened.failed())?;
        row.size = Some(opened.catalog.size());
        row.entries = Some(statistics.own.entries());
        row.below = Some(statistics.subtree.entries());
        row.nested = Some(opened.nested.values().filter(|nested| !nested.bind).count());
    }
    Ok(row)
}
