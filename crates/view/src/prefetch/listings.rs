//! Lists folders of the present revision, for predictions.

use std::collections::HashMap;
use std::rc::Rc;

use esker_format::catalog::{EntryKind, Flags, Row};
use esker_format::path::split;
use esker_prefetch::elf_files::ElfFile;
use esker_prefetch::elf_needed::within;
use esker_prefetch::neighbours::{
    FOLDERS_MAX, FOLDERS_NEARBY, Folder, Folders, SmallFile, is_library, kind, small_max,
};
use esker_prefetch::objects;
use esker_vfs::{Kind, NodeKey};

use crate::attributes::{self, RowRef};
use crate::catalogs::WantedCatalog;
use crate::failure::Blocked;
use crate::lookup::{Snapshot, is_name};
use crate::nested::CatalogMount;

/// Maximum number of rows read in one folder.
const ROWS_MAX: usize = 1 << 17;
/// Maximum size in bytes of a catalog that is fetched for a prediction.
const CATALOG_MAX: u64 = 16 << 20;
/// Maximum number of catalogs fetched at once for one prediction.
const CATALOGS_MAX: usize = 16;
/// Maximum number of links followed to a file.
const LINKS_MAX: usize = 8;
/// Maximum number of entries in cached folders: some 15 MB.
const REMEMBERED_MAX: usize = 1 << 17;

/// Caches listed folders.
///
/// Predictions climb from many places to the same folders, and reading a folder's rows in a catalog takes longer than
/// evaluating them.
#[derive(Default)]
pub(super) struct FolderCache {
    /// Serial number of the revision of these folders.
    serial: u64,
    folders: HashMap<Box<[u8]>, Rc<Folder>>,
    entries: usize,
}

impl FolderCache {
    /// Clears the cache if it belongs to another revision.
    fn turn_to(&mut self, serial: u64) {
        if self.serial != serial {
            self.forget();
            self.serial = serial;
        }
    }

    fn remember(&mut self, folder: &Rc<Folder>) {
        let entries = 1 + folder.folders.len() + folder.files.len() + folder.libraries.len();
        if self.entries + entries > REMEMBERED_MAX {
            self.forget();
        }
        if entries <= REMEMBERED_MAX {
            self.entries += entries;
            self.folders.insert(folder.path.clone(), Rc::clone(folder));
        }
    }

    /// Clears the cache.
    pub(super) fn forget(&mut self) {
        (self.folders, self.entries) = Default::default();
    }
}

/// Lists folders from attached catalogs; records others, each once, as missing.
pub(super) struct FolderLister<'s, 'a> {
    snapshot: &'s Snapshot<'a>,
    folder_cache: &'s mut FolderCache,
    pub(super) missing: Vec<WantedCatalog>,
    /// True if the server is far.
    far: bool,
}

impl<'s, 'a> FolderLister<'s, 'a> {
    pub(super) fn new(snapshot: &'s Snapshot<'a>, folder_cache: &'s mut FolderCache, far: bool) -> Self {
        folder_cache.turn_to(snapshot.revision.label.serial);
        Self { snapshot, folder_cache, missing: Vec::new(), far }
    }

    /// Reads a folder; `None` if its catalog is not attached.
    fn read(&mut self, path: &[u8]) -> Option<Folder> {
        let mount = self.mounted(path)?;
        let own = mount.key_of(path);
        // A damaged catalog yields no prediction; the program that reads it gets the error.
        let children = mount.attached.catalog.children(own).ok()?;
        let (mut folders, mut files, mut libraries) = (Vec::new(), Vec::new(), Vec::new());
        for row in children.take(ROWS_MAX).flatten() {
            if row.flags().has(Flags::HIDDEN) || row.key() == own || !is_name(row.name()) {
                continue;
            }
            match row.kind() {
                EntryKind::Directory => folders.push(row.name().into()),
                EntryKind::File | EntryKind::Symlink => match small(&row) {
                    Some(file) => files.push(file),
                    None if is_library(row.name()) => libraries.push(row.name().into()),
                    None => {}
                },
                _ => {}
            }
        }
        Some(Folder::new(path, folders, files).with_libraries(libraries))
    }

    /// Returns the mount of a folder; `None` if its catalog is not attached.
    fn mounted(&mut self, folder: &[u8]) -> Option<&'s CatalogMount> {
        match self.snapshot.resolve(folder) {
            Ok(mount) => Some(mount),
            Err(Blocked::On(catalog)) => {
                let is_small = catalog.size.is_none_or(|size| size <= CATALOG_MAX);
                let is_new = || self.missing.iter().all(|known| known.hash != catalog.hash);
                if is_small && self.missing.len() < CATALOGS_MAX && is_new() {
                    self.missing.push(catalog);
                }
                None
            }
            Err(Blocked::Failed(_)) => None,
        }
    }

    /// Finds the library or executable at a path, following links.
    pub(super) fn elf_file(&mut self, path: &[u8]) -> Option<(NodeKey, ElfFile)> {
        let mut path = path.to_vec();
        for _ in 0..LINKS_MAX {
            let (folder, name) = split(&path)?;
            let mount = self.mounted(folder)?;
            let row = mount.find(mount.key_of_child(folder, name)).ok()??;
            let attribute_rules = &self.snapshot.core.attribute_rules;
            match attributes::kind(&row) {
                Kind::Symlink => {
                    path = within(
                        &self.snapshot.core.name,
                        folder,
                        &attribute_rules.followed(&attribute_rules.target(&row)),
                    )?
                }
                Kind::File => {
                    let key = attribute_rules
                        .identity(RowRef { mount, path: &path, row: &row }, Kind::File)
                        .ok()?;
                    let compression = row.compression()?;
                    let elf_file = if row.flags().has(Flags::CHUNKED) {
                        ElfFile::chunked(&path, mount.chunks(&row).ok()?.into(), compression)
                    } else {
                        ElfFile::whole(&path, objects::content(&row)?, row.size())
                    };
                    return Some((key, elf_file));
                }
                _ => return None,
            }
        }
        None
    }
}

impl Folders for FolderLister<'_, '_> {
    fn list(&mut self, path: &[u8]) -> Rc<Folder> {
        if let Some(known) = self.folder_cache.folders.get(path) {
            return Rc::clone(known);
        }
        let Some(folder) = self.read(path).map(Rc::new) else { return Rc::default() };
        self.folder_cache.remember(&folder);
        folder
    }

    fn worth(&self) -> usize {
        if self.far { FOLDERS_MAX } else { FOLDERS_NEARBY }
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Returns the file of a row if it is small and one object.
fn small(row: &Row<'_>) -> Option<SmallFile> {
    if row.size() > small_max(kind(row.name())) {
        return None;
    }
    Some(SmallFile { name: row.name().into(), size: row.size(), content: objects::content(row)? })
}
