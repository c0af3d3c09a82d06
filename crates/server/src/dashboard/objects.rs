//! Reads the objects of a served repository within the budget of a request.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use esker_format::catalog::Catalog;
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{ObjectSource, RepositoryError, WantedObject};
use esker_store::LargeBytes;
use parking_lot::Mutex;

use super::budget::Budget;
use crate::file::Folder;
use crate::listing;

/// Maximum size of an object, stored and plain.
const OBJECT_MAX: u64 = 256 << 20;
/// Plain bytes of catalogs that stay open between requests.
const KEPT_BYTES: u64 = 64 << 20;

/// A catalog in memory.
pub(crate) type OpenCatalog = Catalog<Vec<u8>>;

/// Open catalogs, the last used first.
#[derive(Default)]
pub(crate) struct CatalogCache(Mutex<VecDeque<(ContentHash, Arc<OpenCatalog>)>>);

impl CatalogCache {
    fn get(&self, hash: ContentHash) -> Option<Arc<OpenCatalog>> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|(known, _)| *known == hash)?;
        let entry = kept.remove(at)?;
        let found = entry.1.clone();
        kept.push_front(entry);
        Some(found)
    }

    fn put(&self, hash: ContentHash, catalog: &Arc<OpenCatalog>) {
        let mut kept = self.0.lock();
        kept.push_front((hash, catalog.clone()));
        let mut bytes = 0;
        kept.retain(|(_, catalog)| {
            bytes += catalog.size();
            bytes <= KEPT_BYTES
        });
    }
}

/// The objects of a repository, for one request.
pub(crate) struct Objects<'d> {
    folder: Folder,
    budget: Budget,
    catalogs: &'d CatalogCache,
}

impl<'d> Objects<'d> {
    pub(crate) fn new(folder: Folder, budget: Budget, catalogs: &'d CatalogCache) -> Self {
        Self { folder, budget, catalogs }
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Opens a catalog; [`RepositoryError::Interrupted`] once the budget is spent.
    pub(crate) fn catalog(&self, hash: ContentHash) -> Result<Arc<OpenCatalog>, RepositoryError> {
        if let Some(found) = self.catalogs.get(hash) {
            return Ok(found);
        }
        let what = "a catalog";
        let bytes = self.plain(&ObjectName::new(hash, ObjectKind::Catalog), what)?;
        let opened = Catalog::open(bytes).map_err(|source| catalog_error(hash, source))?;
        let opened = Arc::new(opened);
        self.catalogs.put(hash, &opened);
        Ok(opened)
    }

    /// Returns the plain bytes of an object, checked against its name.
    pub(crate) fn plain(&self, name: &ObjectName, what: &str) -> Result<Vec<u8>, RepositoryError> {
        if self.budget.is_spent() {
            return Err(RepositoryError::Interrupted);
        }
        let plain = read(&self.folder, name, what)?;
        self.budget.spend(plain.len() as u64);
        Ok(plain)
    }
}

/// Reads a compressed object, and checks it against its name.
pub(crate) fn read(folder: &Folder, name: &ObjectName, what: &str) -> Result<Vec<u8>, RepositoryError> {
    let stored = listing::bytes(folder, &name.path(), OBJECT_MAX).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            RepositoryError::Missing { what: what.to_owned(), object: name.to_string() }
        }
        // Where the folder is on the server is nothing for a page.
        _ => RepositoryError::File { doing: "reading", path: name.path().into(), source },
    })?;
    if ContentHash::of(name.hash.algorithm(), &stored) != name.hash {
        return Err(RepositoryError::Corrupt { what: what.to_owned(), object: name.to_string() });
    }
    let compression = Compression::recognise(&stored).unwrap_or(Compression::Stored);
    decompress(&stored, compression, None, OBJECT_MAX)
        .map_err(|source| RepositoryError::Compressed { what: what.to_owned(), source })
}

/// Returns the error for a catalog that can't be read.
pub(crate) fn catalog_error(
    hash: ContentHash,
    source: esker_format::catalog::CatalogError,
) -> RepositoryError {
    RepositoryError::Catalog { what: format!("catalog {hash}"), source }
}

impl ObjectSource for Objects<'_> {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        self.plain(&wanted.name, wanted.what).map(LargeBytes::from)
    }
}
