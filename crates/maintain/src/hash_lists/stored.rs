//! Lists of a repository's catalogs, made on demand and kept in the publisher's state folder.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::catalog::Catalog;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{DATABASE_MAX, RepositoryError, signed::read_object};
use esker_store::{Disk, StoredFiles, read_file, replace};

use super::list::HashList;

/// Folder of the lists below the publisher's state.
const FOLDER: &str = "lists";

/// Reads the lists of catalogs, and makes those that are missing.
pub(crate) struct HashLists<'r> {
    sink: &'r dyn StoredFiles,
    disk: Arc<dyn Disk>,
    /// None if lists are not kept.
    folder: Option<PathBuf>,
    /// False if no list is written, since the disk is full.
    pub(crate) are_written: bool,
    /// True if a damaged catalog counts as missing.
    lenient: bool,
}

impl<'r> HashLists<'r> {
    /// Returns the lists of a repository; they are kept if there is a state folder.
    pub(crate) fn new(sink: &'r dyn StoredFiles, disk: Arc<dyn Disk>, state: Option<&Path>) -> Self {
        Self { sink, disk, folder: state.map(|state| state.join(FOLDER)), are_written: true, lenient: false }
    }

    /// Returns the same lists, for which a damaged catalog counts as missing.
    pub(crate) fn lenient(&self) -> Self {
        let (disk, folder) = (self.disk.clone(), self.folder.clone());
        Self { sink: self.sink, disk, folder, are_written: self.are_written, lenient: true }
    }

    /// Returns the list of a catalog; none if the storage does not have the catalog and the list was never made.
    pub(crate) fn get(&self, catalog: &ContentHash) -> Result<Option<HashList>, RepositoryError> {
        if let Some(list) = self.path(catalog).and_then(|path| self.read(&path)) {
            return Ok(Some(list));
        }
        match self.make(catalog) {
            Ok(list) => Ok(Some(list)),
            Err(RepositoryError::Missing { .. }) => Ok(None),
            Err(
                RepositoryError::Corrupt { .. }
                | RepositoryError::Compressed { .. }
                | RepositoryError::Catalog { .. },
            ) if self.lenient => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn make(&self, catalog: &ContentHash) -> Result<HashList, RepositoryError> {
        let name = ObjectName::new(*catalog, ObjectKind::Catalog);
        let what = format!("catalog {catalog}");
        let bytes = read_object(self.sink, &name, None, DATABASE_MAX, &what)?;
        let opened = Catalog::open(bytes).and_then(|catalog| HashList::of(&catalog));
        let list = opened.map_err(|source| RepositoryError::Catalog { what, source })?;
        self.keep(catalog, &list);
        Ok(list)
    }

    /// Returns true if the list of a catalog is kept already, or none is kept.
    pub(crate) fn has(&self, catalog: &ContentHash) -> bool {
        self.path(catalog).is_none_or(|path| self.disk.facts(&path).is_ok())
    }

    /// Stores a list. Losing one costs time only, so a failure is no error.
    pub(crate) fn keep(&self, catalog: &ContentHash, list: &HashList) {
        let Some(path) = self.path(catalog).filter(|_| self.are_written) else { return };
        for folder in path.ancestors().skip(1).take(2).collect::<Vec<_>>().into_iter().rev() {
            let _ = self.disk.make_dir(folder);
        }
        let _ = replace(&*self.disk, &path, &list.encode());
    }

    fn read(&self, path: &Path) -> Option<HashList> {
        HashList::decode(&read_file(&*self.disk, path, DATABASE_MAX).ok()??)
    }

    fn path(&self, catalog: &ContentHash) -> Option<PathBuf> {
        let text = catalog.to_string();
        let (first, rest) = text.split_at_checked(2)?;
        Some(self.folder.as_ref()?.join(first).join(rest))
    }

    /// Removes all lists; false if there is none.
    pub(crate) fn clear(&self) -> bool {
        let is_kept = |folder: &PathBuf| {
            let lists = self.disk.list(folder).unwrap_or_default();
            lists.iter().any(|first| self.disk.list(&folder.join(first)).is_ok_and(|inner| !inner.is_empty()))
        };
        let has_lists = self.folder.as_ref().is_some_and(is_kept);
        self.retain(&HashSet::new());
        has_lists
    }

    /// Removes the lists of all other catalogs, and what interrupted writers left.
    pub(crate) fn retain(&self, keep: &HashSet<ContentHash>) {
        let Some(folder) = &self.folder else { return };
        for first in self.disk.list(folder).unwrap_or_default() {
            let inner = folder.join(&first);
            for rest in self.disk.list(&inner).unwrap_or_default() {
                let text = first.to_str().zip(rest.to_str()).map(|(first, rest)| format!("{first}{rest}"));
                let catalog = text.and_then(|text| ContentHash::parse(&text).ok());
                if catalog.is_none_or(|catalog| !keep.contains(&catalog)) {
                    let _ = self.disk.remove(&inner.join(rest));
                }
            }
        }
    }
}
