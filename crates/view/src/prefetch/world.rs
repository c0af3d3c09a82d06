//! Shows predictors the present revision and the cache.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use esker_format::bundle;
use esker_format::catalog::{Chunk, EntryKind, Flags, Row};
use esker_format::name::RepositoryName;
use esker_format::path::{join, split};
use esker_prefetch::{
    ElfFile, FOLDERS_MAX, FOLDERS_NEARBY, FileContent, FileLookup, FileObjects, Folder, Folders,
    PrefetchEvent, SmallFile, World, is_library, kind, objects, small_max, within,
};
use esker_store::ObjectRequest;
use esker_vfs::{Kind, Node, NodeKey};

use crate::attributes::{self, RowRef};
use crate::catalogs::WantedCatalog;
use crate::core::Core;
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

const EXECUTABLE: u32 = 0o111;

/// Caches listed folders.
///
/// Predictions climb from many places to the same folders, and reading a folder's rows in a catalog takes longer than
/// evaluating them.
#[derive(Default)]
pub(super) struct FolderCache {
    /// Serial number of the revision of these folders.
    serial: u64,
    folders: HashMap<Box<[u8]>, Arc<Folder>>,
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

    fn remember(&mut self, folder: &Arc<Folder>) {
        let entries = 1 + folder.folders.len() + folder.files.len() + folder.libraries.len();
        if self.entries + entries > REMEMBERED_MAX {
            self.forget();
        }
        if entries <= REMEMBERED_MAX {
            self.entries += entries;
            self.folders.insert(folder.path.clone(), Arc::clone(folder));
        }
    }

    /// Clears the cache.
    pub(super) fn forget(&mut self) {
        (self.folders, self.entries) = Default::default();
    }
}

/// The present revision, the cache and the listener, for one event.
pub(super) struct PresentWorld<'w> {
    core: &'w Core,
    snapshot: &'w Snapshot<'w>,
    folder_cache: &'w mut FolderCache,
    /// Catalogs that lookups lacked, each once.
    missing: Vec<WantedCatalog>,
    is_far: bool,
}

impl<'w> PresentWorld<'w> {
    pub(super) fn new(
        core: &'w Core,
        snapshot: &'w Snapshot<'w>,
        folder_cache: &'w mut FolderCache,
        is_far: bool,
    ) -> Self {
        folder_cache.turn_to(snapshot.revision.label.serial);
        Self { core, snapshot, folder_cache, missing: Vec::new(), is_far }
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
    fn mounted(&mut self, folder: &[u8]) -> Option<&'w CatalogMount> {
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
}

impl Folders for PresentWorld<'_> {
    fn list(&mut self, path: &[u8]) -> Arc<Folder> {
        if let Some(known) = self.folder_cache.folders.get(path) {
            return Arc::clone(known);
        }
        let Some(folder) = self.read(path).map(Arc::new) else { return Arc::default() };
        self.folder_cache.remember(&folder);
        folder
    }

    fn worth(&self) -> usize {
        if self.is_far { FOLDERS_MAX } else { FOLDERS_NEARBY }
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

impl World for PresentWorld<'_> {
    fn repository(&self) -> &RepositoryName {
        &self.core.name
    }

    fn is_far(&self) -> bool {
        self.is_far
    }

    fn elf_file(&mut self, path: &[u8]) -> Option<(NodeKey, ElfFile)> {
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

    fn bundle_of(&self, trigger: &[u8]) -> Option<(ObjectRequest, Vec<u8>)> {
        if self.core.without_bundles {
            return None;
        }
        let (directory, name) = split(trigger)?;
        let name = bundle::name_for(name)?;
        let mount = self.snapshot.resolve(directory).ok()?;
        let row = mount.find(mount.key_of_child(directory, &name)).ok()??;
        if row.size() > bundle::BYTES_MAX as u64 {
            return None;
        }
        // The reference client only supports specifications that are one object, too.
        Some((objects::whole(&row, &join(directory, &name))?, directory.to_vec()))
    }

    fn is_program(&self, node: &Node) -> bool {
        let is_program = |row: &Row<'_>| row.mode() & EXECUTABLE != 0 || is_library(row.name());
        self.snapshot.with_row(node, |_, row| Ok(is_program(row))).unwrap_or(false)
    }

    fn open_chunks(&self, file: &NodeKey) -> Option<Arc<[Chunk]>> {
        self.core.open_files.chunks(file)
    }

    fn chunks(&self, file: &Node) -> Option<Arc<[Chunk]>> {
        self.snapshot.chunks(file).ok()
    }

    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        self.core.store.read_ahead(wanted, range)
    }

    fn has_listener(&self) -> bool {
        self.core.prefetch.listener.get().is_some()
    }

    fn announce(&self, event: PrefetchEvent<'_>) {
        self.core.prefetch.announce(event);
    }

    fn take_missing(&mut self) -> Vec<WantedCatalog> {
        std::mem::take(&mut self.missing)
    }
}

impl FileLookup for PresentWorld<'_> {
    type Catalog = WantedCatalog;

    fn find(&self, path: &[u8], wants_chunks: bool) -> Result<Option<FileObjects>, WantedCatalog> {
        match find_file(self.snapshot, path, wants_chunks) {
            Ok(found) => Ok(found),
            Err(Blocked::On(catalog)) => Err(catalog),
            Err(Blocked::Failed(_)) => Ok(None),
        }
    }
}

fn find_file(
    snapshot: &Snapshot<'_>,
    path: &[u8],
    wants_chunks: bool,
) -> Result<Option<FileObjects>, Blocked> {
    let Some((directory, name)) = split(path) else { return Ok(None) };
    let mount = snapshot.resolve(directory)?;
    let Some(row) = mount.find(mount.key_of_child(directory, name))? else { return Ok(None) };
    let size = row.size();
    if !row.flags().has(Flags::CHUNKED) {
        let content = objects::whole(&row, path).map(FileContent::Whole);
        return Ok(content.map(|content| FileObjects { size, content }));
    }
    let is_file = row.kind() == EntryKind::File && !row.flags().has(Flags::EXTERNAL);
    let Some(compression) = row.compression().filter(|_| is_file && wants_chunks) else { return Ok(None) };
    let content = FileContent::Chunked(mount.chunks(&row)?, compression);
    Ok(Some(FileObjects { size, content }))
}

/// Returns the file of a row if it is small and one object.
fn small(row: &Row<'_>) -> Option<SmallFile> {
    if row.size() > small_max(kind(row.name())) {
        return None;
    }
    Some(SmallFile { name: row.name().into(), size: row.size(), content: objects::content(row)? })
}
