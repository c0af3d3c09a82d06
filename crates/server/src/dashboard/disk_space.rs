//! Space on the file systems of served folders.

use std::path::Path;

/// Space on the file system of a folder, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) folder: String,
    /// What is free for other users than root.
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl DiskSpace {
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(folder).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let folder = folder.to_string_lossy().into_owned();
        Some(Self { folder, free: bytes(found.f_bavail), size: bytes(found.f_blocks) })
    }
}
