//! Defines the access of predictors to repository, cache and mount.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::name::RepositoryName;
use esker_store::{CacheKey, ObjectRequest};
use esker_vfs::{Node, NodeKey};

use crate::cluster::FileLookup;
use crate::elf_files::ElfFile;
use crate::folders::Folders;
use crate::pending::PrefetchEvent;

/// Round-trip time from which a miss costs more than the CPU time of a wrong prediction or of a library's remaining
/// code.
pub const FAR_ROUND_TRIP: Duration = Duration::from_millis(2);

/// The present revision, as far as its catalogs are attached, and the cache.
///
/// A lookup that needs another catalog finds nothing, and the catalog is recorded as missing.
pub trait World: Folders + FileLookup {
    /// Returns the name of the repository.
    fn repository(&self) -> &RepositoryName;

    /// True if the round trip to the server took [`FAR_ROUND_TRIP`] or more at the last miss.
    fn is_far(&self) -> bool;

    /// Finds the library or executable at a path, following links.
    fn elf_file(&mut self, path: &[u8]) -> Option<(NodeKey, ElfFile)>;

    /// Returns the object of the bundle's specification beside a trigger, and their directory.
    fn bundle_of(&self, trigger: &[u8]) -> Option<(ObjectRequest, Vec<u8>)>;

    /// Returns true if a file is a library or executable.
    fn is_program(&self, node: &Node) -> bool;

    /// Returns the chunks of an open file.
    fn open_chunks(&self, file: &NodeKey) -> Option<Arc<[Chunk]>>;

    /// Returns the chunks of a file by its row.
    fn chunks(&self, file: &Node) -> Option<Arc<[Chunk]>>;

    /// Reads a range of an object ahead from the cache's disk; returns false if the object is not in the cache.
    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool;

    /// True if the mount wants to know what is expected to be read.
    fn has_listener(&self) -> bool;

    /// Reports what is expected to be read.
    fn announce(&self, event: PrefetchEvent<'_>);

    /// Removes and returns the catalogs that lookups of this prediction lacked.
    fn take_missing(&mut self) -> Vec<Self::Catalog>;
}

/// A file that a program reads.
#[derive(Clone, Debug)]
pub struct File {
    /// Node of the file.
    pub node: Node,
    /// Path of the file; `None` if it needs a catalog that is not attached.
    pub path: Option<Vec<u8>>,
    /// Plain size in bytes.
    pub size: u64,
    /// True if the file consists of chunks.
    pub is_chunked: bool,
    /// True if the file triggers the prefetch of a bundle.
    pub is_trigger: bool,
    /// Compression of the file's objects, if this program knows it.
    pub compression: Option<Compression>,
    /// Cache key of the file's object, if it is one object.
    pub content: Option<CacheKey>,
}
