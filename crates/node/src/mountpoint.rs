//! Checks the place of a new mount, and clears what a killed daemon has left there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_kernel_mount::{MountError, Unmount, unmount};

use crate::mounts;
use crate::registry::{self, Departure, Registered, RegistryError};

/// Time that a daemon may take to end once its mount is gone. It may have to write objects to a slow disk.
const ENDING: Duration = Duration::from_secs(10);

/// A new mount can't have this place.
#[derive(Debug, thiserror::Error)]
pub enum MountpointError {
    /// The registry can't be read.
    #[error("can't look up mounts")]
    Registry(#[from] RegistryError),
    /// The kernel's list can't be read.
    #[error("can't read the list of mounts")]
    List(#[source] io::Error),
    /// What a killed daemon has left can't be unmounted.
    #[error("can't unmount the mount of a killed daemon")]
    Left(#[source] MountError),
    /// A daemon serves a mount there.
    #[error("{} is mounted already", mountpoint.display())]
    Taken {
        /// The mount point.
        mountpoint: PathBuf,
        /// Name of the repository that is mounted there.
        repository: String,
        /// Process of its daemon.
        pid: u32,
    },
    /// A mount without a daemon of this user is there.
    #[error("can't mount on {}: {from} is still mounted there, without a daemon of yours", mountpoint.display())]
    Orphan {
        /// The mount point.
        mountpoint: PathBuf,
        /// Source of the mount.
        from: String,
    },
}

/// Unmounts the mount of a killed daemon of this user, and returns its source. A mount that is alive, that another user
/// made, or of another file system stays. `is_disconnected` tells whether no process serves a FUSE mount; a mount that
/// hangs is served.
pub fn remove_dead(
    mountpoint: &Path,
    runtime: &Path,
    is_disconnected: impl FnOnce() -> bool,
) -> Result<Option<String>, MountpointError> {
    let found = registry::find(runtime, mountpoint)?;
    let left_by_killed = match &found {
        Some(found) if found.alive => return Ok(None),
        found => found.is_some(),
    };
    let me = rustix::process::geteuid().as_raw();
    // A file system above a mount of ours is root's, and doesn't report its user.
    let line = mounts::at(mountpoint).map_err(MountpointError::List)?;
    let Some(line) = line.filter(|line| line.is_ours() && line.user.unwrap_or(0) == me) else {
        return Ok(None);
    };
    // A dead FUSE mount has no connection; one that another session made after the daemon was killed is alive. A file
    // system above it still answers from its cache, or blocks its caller: for it the entry counts.
    let is_left = left_by_killed && line.kind != "fuse.esker";
    if !is_left && !is_disconnected() {
        return Ok(None);
    }
    unmount(mountpoint, Unmount::Lazy).map_err(MountpointError::Left)?;
    found.iter().for_each(Registered::forget);
    Ok(Some(line.source_text()))
}

/// Refuses a place where a mount of Esker is, with a daemon or without.
pub fn refuse_taken(mountpoint: &Path, runtime: &Path) -> Result<(), MountpointError> {
    let place = || mountpoint.to_owned();
    if let Some(found) = registry::find(runtime, mountpoint)?.filter(|found| found.alive)
        && !ends(&found, mountpoint)?
    {
        let (repository, pid) = (found.entry.repository.clone(), found.entry.pid);
        return Err(MountpointError::Taken { mountpoint: place(), repository, pid });
    }
    // A mount whose daemon was killed looks alive as long as the kernel answers from its cache.
    match mounts::at(mountpoint).map_err(MountpointError::List)?.filter(mounts::MountLine::is_ours) {
        Some(line) => Err(MountpointError::Orphan { mountpoint: place(), from: line.source_text() }),
        None => Ok(()),
    }
}

/// True if a registered mount was unmounted, by any process, and is gone by now. An automounter unmounts idle mounts,
/// and a program may trigger it again at that moment.
fn ends(found: &Registered, mountpoint: &Path) -> Result<bool, MountpointError> {
    let line = mounts::at(mountpoint).map_err(MountpointError::List)?;
    let mounted = line.is_some_and(|line| line.is_ours());
    Ok(!mounted && found.wait_until_free(ENDING) != Departure::Here)
}
