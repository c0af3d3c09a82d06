//! Lists the catalogs of a revision.

use esker_format::catalog::{Counters, NestedCatalog};
use esker_format::hash::ContentHash;
use serde::Serialize;

use crate::error::RepositoryError;
use crate::path;
use crate::published::{OldCatalog, Published};
use crate::revisions::Revisions;

/// A catalog of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedCatalog {
    /// Directory that is the root of the catalog.
    pub path: String,
    /// Number of catalogs above it.
    pub depth: usize,
    /// Hash of its object.
    pub hash: String,
    /// Plain size of the database in bytes.
    pub size: u64,
    /// Number of entries, its root directory included.
    pub entries: u64,
    /// Number of entries of all catalogs below it.
    pub entries_below: u64,
    /// Number of catalogs directly below it.
    pub nested: usize,
}

impl Revisions {
    /// Visits the catalogs at and below a path in the revision with this root catalog, parents before their children.
    /// Stops at the first error of the visitor; a path that the revision does not have is an error.
    pub fn visit_catalogs<E: From<RepositoryError>>(
        &self,
        root: ContentHash,
        below: &[u8],
        visit: &mut dyn FnMut(ListedCatalog) -> Result<(), E>,
    ) -> Result<(), E> {
        let objects = self.objects();
        let published = Published::of_root(objects.clone(), (root, None));
        let below = path::normalise(below)?;
        if published.entry(&below)?.is_none() {
            return Err(RepositoryError::NoPath(path::shown(&below)).into());
        }
        let top = NestedCatalog { path: Vec::new(), hash: Some(root), size: None, bind: false };
        let mut waiting = vec![(top, 0)];
        while let Some((next, depth)) = waiting.pop() {
            let catalog = OldCatalog::read_nested(&**objects, &next)?;
            if path::is_within(&catalog.mountpoint, &below) {
                visit(described(&published, &catalog, depth)?)?;
            }
            // Only a catalog further down is below another one, so this ends.
            let is_below =
                |path: &[u8]| path::is_within(path, &catalog.mountpoint) && path != catalog.mountpoint;
            let is_wanted = |path: &[u8]| path::is_within(path, &below) || path::is_within(&below, path);
            let nested = catalog.nested.values().rev().filter(|nested| !nested.bind);
            for nested in nested.filter(|nested| is_below(&nested.path) && is_wanted(&nested.path)) {
                waiting.push((nested.clone(), depth + 1));
            }
        }
        Ok(())
    }
}

fn described(
    published: &Published,
    catalog: &OldCatalog,
    depth: usize,
) -> Result<ListedCatalog, RepositoryError> {
    let statistics = published.statistics(catalog)?;
    let entries = |counters: Counters| {
        let kinds = [counters.regular, counters.symlink, counters.special, counters.dir];
        kinds.into_iter().fold(0, u64::saturating_add)
    };
    Ok(ListedCatalog {
        path: path::shown(&catalog.mountpoint),
        depth,
        hash: catalog.hash.to_string(),
        size: catalog.catalog.size(),
        entries: entries(statistics.own),
        entries_below: entries(statistics.subtree),
        nested: catalog.nested.values().filter(|nested| !nested.bind).count(),
    })
}
