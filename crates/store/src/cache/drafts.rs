//! Makes files that have no place in the cache yet.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::disk::Disk;

/// Name of the file that tries whether unnamed files can get a name.
const NAMED: &str = "named";

/// True for the name of a file in `txn/` that the cache gave.
pub(crate) fn is_draft(name: &OsStr) -> bool {
    name == NAMED || name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// Folder of unfinished files.
pub(super) struct Drafts {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    /// True if new files are unnamed.
    nameless: bool,
    next: AtomicU64,
}

impl Drafts {
    /// Opens the folder, which must be empty, and tries whether its file system has unnamed files that can get a name
    /// later.
    pub(super) fn open(disk: Arc<dyn Disk>, folder: &Path) -> Self {
        let path = folder.join(NAMED);
        let nameless = match disk.create_nameless(folder) {
            Ok(Some(file)) => disk.name(&file, &path).is_ok() && disk.remove(&path).is_ok(),
            _ => false,
        };
        Self { disk, folder: folder.to_owned(), nameless, next: AtomicU64::new(0) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes an unnamed file; none where the file system needs a name.
    pub(super) fn begin_nameless(&self) -> io::Result<Option<File>> {
        if self.nameless { self.disk.create_nameless(&self.folder) } else { Ok(None) }
    }

    /// Returns a new name.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }
}
