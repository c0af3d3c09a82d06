//! Reads the objects of a served repository within the budget of a request.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use esker_format::catalog::{Flags, NestedCatalog, PathKey};
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_repository::published::OldCatalog;
use esker_repository::{ObjectSource, RepositoryError, WantedObject, path};
use esker_store::LargeBytes;
use parking_lot::Mutex;

use super::budget::Budget;
use crate::file::Folder;

/// Maximum size of an object, stored and plain.
const OBJECT_MAX: u64 = 256 << 20;
/// Plain bytes of catalogs that stay open between requests.
const KEPT_BYTES: u64 = 64 << 20;

/// Open catalogs, the last used first.
#[derive(Default)]
pub(crate) struct CatalogCache(Mutex<VecDeque<Arc<OldCatalog>>>);

impl CatalogCache {
    fn get(&self, mountpoint: &[u8], hash: ContentHash) -> Option<Arc<OldCatalog>> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|known| known.hash == hash && known.mountpoint == mountpoint)?;
        let found = kept.remove(at)?;
        kept.push_front(found.clone());
        Some(found)
    }

    fn put(&self, catalog: &Arc<OldCatalog>) {
        let mut kept = self.0.lock();
        kept.push_front(catalog.clone());
        let mut bytes = 0;
        kept.retain(|known| {
            bytes += known.catalog.size();
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

    /// Opens the catalog that is mounted at a path; [`RepositoryError::Interrupted`] once the budget is spent.
    pub(crate) fn catalog(
        &self,
        mountpoint: &[u8],
        hash: ContentHash,
    ) -> Result<Arc<OldCatalog>, RepositoryError> {
        if let Some(found) = self.catalogs.get(mountpoint, hash) {
            return Ok(found);
        }
        let opened = Arc::new(OldCatalog::read(self, mountpoint, hash, None)?);
        self.catalogs.put(&opened);
        Ok(opened)
    }

    /// Opens the catalog that lists a directory of a revision.
    pub(crate) fn owner(
        &self,
        root: ContentHash,
        directory: &[u8],
    ) -> Result<Arc<OldCatalog>, RepositoryError> {
        let mut owner = self.catalog(b"", root)?;
        for ancestor in path::ancestry(directory).skip(1) {
            let row = owner.catalog.find(PathKey::of(ancestor)).map_err(owner.failed())?;
            // A path that is not there ends here, however long it is.
            let flags = row.ok_or_else(|| no_such_path(directory))?.flags();
            let nested = owner.nested.get(ancestor).filter(|_| flags.has(Flags::NESTED_MOUNTPOINT));
            if let Some(hash) = nested.and_then(own_hash) {
                owner = self.catalog(ancestor, hash)?;
            }
        }
        Ok(owner)
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
    let stored = folder.read(&name.path(), OBJECT_MAX).map_err(|source| match source.kind() {
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

/// Returns the hash of a nested catalog that is a part of the revision.
pub(crate) fn own_hash(nested: &NestedCatalog) -> Option<ContentHash> {
    nested.hash.filter(|_| !nested.bind)
}

pub(crate) fn no_such_path(path: &[u8]) -> RepositoryError {
    RepositoryError::NoSuchPath(String::from_utf8_lossy(path).into_owned())
}

impl ObjectSource for Objects<'_> {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        self.plain(&wanted.name, wanted.what).map(LargeBytes::from)
    }
}
