//! Caches the paths of directories in use.
//!
//! A directory's node refers to its row and has no path, but the key of a name in the directory needs the path. This
//! is only a cache: a missing path is found by climbing from the row through its parents, so the cache may be emptied
//! at any time, and is when it grows too large.

use std::sync::Arc;

use esker_format::catalog::PathKey;

use crate::payload::NodeInfo;

/// Maximum number of cached directories: some 10 MB.
const DIRECTORIES_MAX: usize = 1 << 16;

/// Position of a directory's row: its key and that of the mount.
type DirectoryKey = (PathKey, PathKey);
type Map = papaya::HashMap<DirectoryKey, KnownDirectory>;
pub(crate) type DirectoriesRef<'a> =
    papaya::HashMapRef<'a, DirectoryKey, KnownDirectory, std::hash::RandomState, papaya::LocalGuard<'a>>;

/// A cached directory.
#[derive(Clone, Debug)]
pub(crate) struct KnownDirectory {
    /// Visible path, the same in every revision.
    pub(crate) path: Arc<[u8]>,
    /// Mount with its contents, in the revision with this serial number.
    pub(crate) contents: PathKey,
    pub(crate) serial: u64,
}

#[derive(Default)]
pub(crate) struct Directories(Map);

impl Directories {
    pub(crate) fn pin(&self) -> DirectoriesRef<'_> {
        self.0.pin()
    }
}

/// Caches a directory and returns the cached entry.
pub(crate) fn remember<'d>(
    directories: &'d DirectoriesRef<'_>,
    info: &NodeInfo,
    known: KnownDirectory,
) -> &'d KnownDirectory {
    if directories.len() >= DIRECTORIES_MAX {
        directories.clear();
    }
    directories.update_or_insert((info.key, info.mount), |_| known.clone(), known.clone())
}
