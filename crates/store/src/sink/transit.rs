//! Folder of one process for objects on their way, below that of the repository.
//!
//! Each process that stores objects has a folder of its own, and holds the lock file in it. A folder whose lock is free
//! belongs to a process that has ended; any process may remove it.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::disk::Disk;
use crate::file_lock::{FileLock, Locking};

/// Prefix of the staging folders of processes, and of the staged files of older versions.
pub(super) const PREFIX: &str = "esker-";
const LOCK: &str = "lock";
/// Maximum number of attempts to make a folder. Another process may remove one before it is locked.
const ATTEMPTS: u32 = 16;

/// Staging folder of this process, which a lock marks as in use.
pub(super) struct Transit {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    _lock: FileLock,
}

impl Transit {
    /// Makes a folder below `all`, which is made if needed.
    pub(super) fn make(disk: Arc<dyn Disk>, all: &Path) -> io::Result<Self> {
        disk.make_dir(all)?;
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let random = RandomState::new().build_hasher().finish();
            let folder = all.join(format!("{PREFIX}{}-{random:016x}", std::process::id()));
            disk.make_dir(&folder)?;
            match FileLock::try_take(&folder.join(LOCK)) {
                Ok(Locking::Taken(lock)) => return Ok(Self { disk, folder, _lock: lock }),
                // Another process takes the folder for a leftover, and removes it.
                Ok(Locking::Held(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
                Err(error) => {
                    // The error that matters is the first one.
                    let _ = disk.remove_dir(&folder);
                    return Err(error);
                }
            }
        }
        Err(last)
    }

    /// Returns the path of a file in the folder.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        // What can't be removed now is removed by another process later.
        let _ = empty(&*self.disk, &self.folder);
    }
}

/// Removes the folders of processes that have ended.
pub(super) fn remove_leftovers(disk: &dyn Disk, all: &Path) -> io::Result<()> {
    let names = match disk.list(all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names.iter().filter(|name| is_of_a_process(name)) {
        let folder = all.join(name);
        match FileLock::try_take(&folder.join(LOCK)) {
            Ok(Locking::Taken(_lock)) => empty(disk, &folder)?,
            Ok(Locking::Held(_)) => {}
            // Another process has just removed it, or it is no folder.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells whether a name is one that [`Transit::make`] gives.
fn is_of_a_process(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    rest.is_some_and(|rest| rest.contains('-'))
}

/// Removes a folder with its files. The lock goes last: its owner may be a process that has just made the folder.
fn empty(disk: &dyn Disk, folder: &Path) -> io::Result<()> {
    let names = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names.iter().filter(|name| *name != LOCK) {
        disk.remove(&folder.join(name))?;
    }
    // From here on, another process may take the folder for a leftover, too, and be faster.
    for removed in [disk.remove(&folder.join(LOCK)), disk.remove_dir(folder)] {
        match removed {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {}
            other => other?,
        }
    }
    Ok(())
}
