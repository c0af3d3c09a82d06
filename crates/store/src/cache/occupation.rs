//! Holds the folder of a cache for one writer.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::layout::Layout;
use crate::error::Cause;
use crate::file_lock::FileLock;

/// Lock on the folder of a cache.
pub(super) struct Occupation {
    path: PathBuf,
    lock: Mutex<Option<FileLock>>,
    /// Open folder, so that it is not cleaned up by age.
    _folder: Option<File>,
}

impl Occupation {
    /// Locks the folder of a cache.
    pub(super) fn take(layout: &Layout) -> Result<Self, Cause> {
        let failed = |source| Cause::Disk { doing: "locking", path: layout.lock.clone(), source };
        let asked = FileLock::try_take(&layout.lock).map_err(failed)?;
        let lock = asked.or_held(|holder| Cause::Busy { path: layout.root.clone(), pid: holder.pid })?;
        let (path, lock) = (layout.lock.clone(), Mutex::new(Some(lock)));
        Ok(Self { path, lock, _folder: keep_open(&layout.root).ok() })
    }

    /// Returns true if the folder is gone, or another is in its place.
    pub(super) fn is_lost(&self) -> bool {
        self.lock.lock().as_ref().is_some_and(|lock| lock.is_lost_at(&self.path))
    }

    /// Lets another process write.
    pub(super) fn end(&self) {
        drop(self.lock.lock().take());
    }
}

/// Locks the folder against cleaners of temporary folders while it is in use: systemd-tmpfiles skips locked folders.
/// Failure is harmless.
fn keep_open(root: &Path) -> io::Result<File> {
    let folder = File::open(root)?;
    flock(&folder, FlockOperation::NonBlockingLockShared)?;
    Ok(folder)
}
