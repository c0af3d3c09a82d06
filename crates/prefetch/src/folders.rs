//! Folders of the tree, as far as predictions need them.

use std::sync::Arc;

use esker_format::path::join;
use esker_store::{CacheKey, ObjectRequest};

use crate::objects;

/// Maximum plain bytes of a small file, which costs less than a round trip.
pub(crate) const SMALL_MAX: u64 = 1 << 20;
/// Maximum size of libraries that count as small, in bytes: libraries are few and loaded one after the other.
pub(crate) const SMALL_LIBRARY_MAX: u64 = 4 << 20;

/// Maximum number of folders listed for a prediction from a far server; bounds its time to some tens of milliseconds.
pub const FOLDERS_MAX: usize = 8192;
/// Maximum number of folders listed for a prediction from a near server, from which a missed file is fetched
/// faster.
pub const FOLDERS_NEARBY: usize = 256;
/// Lists folders of the tree.
pub trait Folders {
    /// Returns the entries of the folder at `path`; empty if its catalog is not attached.
    fn list(&mut self, path: &[u8]) -> Arc<Folder>;

    /// Returns true if all listed folders were available.
    fn is_complete(&self) -> bool;

    /// Returns the maximum number of folders worth listing for a prediction.
    fn worth(&self) -> usize;
}

/// Entries of a folder.
#[derive(Debug, Default)]
pub struct Folder {
    /// Path of the folder.
    pub path: Box<[u8]>,
    /// Names of its folders, sorted.
    pub folders: Vec<Box<[u8]>>,
    /// Small files, sorted by name.
    pub files: Vec<SmallFile>,
    /// Names of libraries that are not small, and of links to libraries, sorted.
    pub libraries: Vec<Box<[u8]>>,
}

impl Folder {
    /// Returns a folder with these folders and small files, in any order.
    pub fn new(path: &[u8], mut folders: Vec<Box<[u8]>>, mut files: Vec<SmallFile>) -> Self {
        folders.sort_unstable();
        files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self { path: path.into(), folders, files, libraries: Vec::new() }
    }

    /// Sets the large libraries of the folder.
    pub fn with_libraries(mut self, mut libraries: Vec<Box<[u8]>>) -> Self {
        libraries.sort_unstable();
        self.libraries = libraries;
        self
    }

    /// Returns the name of a library that begins with `start`, small or large.
    pub fn library(&self, start: &[u8]) -> Option<&[u8]> {
        let from = self.files.partition_point(|file| *file.name < *start);
        let small = self.files[from..].iter().map(|file| &*file.name);
        let from = self.libraries.partition_point(|name| **name < *start);
        let large = self.libraries[from..].iter().map(|name| &**name);
        let is_meant = |name: &&[u8]| name.starts_with(start);
        let mut small = small.take_while(is_meant).filter(|name| is_library(name));
        small.next().or_else(|| large.take_while(is_meant).next())
    }

    /// Returns true if the folder has a folder of this name.
    pub fn has_folder(&self, name: &[u8]) -> bool {
        self.folders.binary_search_by(|known| (**known).cmp(name)).is_ok()
    }
}

/// A small file of a folder.
#[derive(Debug)]
pub struct SmallFile {
    /// Name of the file.
    pub name: Box<[u8]>,
    /// Plain bytes of the file.
    pub size: u64,
    /// Cache key of its object.
    pub content: CacheKey,
}

/// A small file, and its folder.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub(crate) folder: Arc<Folder>,
    pub(crate) number: usize,
}

impl Leaf {
    /// Finds the small file of this name in a folder.
    pub fn find(folder: &Arc<Folder>, name: &[u8]) -> Option<Self> {
        let number = folder.files.binary_search_by(|file| (*file.name).cmp(name)).ok()?;
        Some(Self { folder: Arc::clone(folder), number })
    }

    fn file(&self) -> &SmallFile {
        &self.folder.files[self.number]
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.file().name
    }

    /// Returns the folder of the file.
    pub fn folder(&self) -> Arc<Folder> {
        Arc::clone(&self.folder)
    }

    /// Returns the plain bytes of the file.
    pub fn size(&self) -> u64 {
        self.file().size
    }

    /// Returns the cache key of the object.
    pub fn key(&self) -> CacheKey {
        self.file().content
    }

    /// Returns the path of the file.
    pub fn path(&self) -> Vec<u8> {
        join(&self.folder.path, self.name())
    }

    /// Returns the request for its object.
    pub fn wanted(&self) -> ObjectRequest {
        objects::file(self.key(), self.size(), &self.path())
    }
}

/// Returns the kind of a file: the suffix of its name. All versions of shared libraries are one kind.
pub fn kind(name: &[u8]) -> &[u8] {
    if is_library(name) {
        return b".so";
    }
    // A name whose only dot is its first character has no suffix.
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(at) if at > 0 => &name[at..],
        _ => b"",
    }
}

/// Returns the maximum plain bytes of a small file of this kind.
pub fn small_max(kind: &[u8]) -> u64 {
    if is_library(kind) { SMALL_LIBRARY_MAX } else { SMALL_MAX }
}

/// Returns true if a name is that of a shared library: `x.so`, `x.so.1.2`.
pub fn is_library(name: &[u8]) -> bool {
    name.ends_with(b".so") || name.windows(4).any(|part| part == b".so.")
}
