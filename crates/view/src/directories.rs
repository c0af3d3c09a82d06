//! The paths of directories in use.
//!
//! A directory's node says where its row is, not its path, but the key of a name in it needs the path. This
//! remembers them. Only to be quick: what is missing here is found again by climbing from the row through
//! its parents, so it may be emptied at any time, and is when it grows too large.

use std::sync::Arc;

use esker_format::catalog::PathKey;

use crate::payload::NodeInfo;

/// Most directories remembered: some 10 MB.
const DIRECTORIES_MAX: usize = 1 << 16;

/// Where a directory's row is: its key and that of the mount.
type DirectoryKey = (PathKey, PathKey);
type Map = papaya::HashMap<DirectoryKey, KnownDirectory>;
pub(crate) type DirectoriesRef<'a> =
    papaya::HashMapRef<'a, DirectoryKey, KnownDirectory, std::hash::RandomState, papaya::LocalGuard<'a>>;

/// What is known of a directory.
#[derive(Clone, Debug)]
pub(crate) struct KnownDirectory {
    /// Its visible path, true in every revision.
    pub(crate) path: Arc<[u8]>,
    /// The mount that holds its contents, in the revision with this serial number.
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

/// Remembers a directory and returns what is remembered.
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
