//! Names the failures of the place of a mount.

use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_node::mountpoint::{self, MountpointError};
use esker_node::mounts;

use crate::error::{Failure, chain, warn};
use crate::machine::doctor::{ProbeResult, ProbeTarget, touch};

fn failed_on(named: &Path, why: &str) -> Failure {
    Failure::failed(format!("can't mount on {}: {why}", named.display()))
}

/// Returns the mount point with its links resolved.
pub(super) fn canonical(named: &Path) -> Result<PathBuf, Failure> {
    mounts::canonical(named).map_err(|error| failed_on(named, &error.to_string()))
}

/// Returns the mount point, if it is usable.
pub(super) fn directory(named: &Path) -> Result<PathBuf, Failure> {
    let failed = |why: &str| failed_on(named, why);
    let path = canonical(named)?;
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(failed("it is not a directory").hint("name an existing directory")),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(failed("there is a mount whose daemon has ended")
                .hint(format!("clean up with `esker umount {}`", path.display())))
        }
        Err(error) => {
            let hint = format!("make it with `mkdir -p {}`", path.display());
            let failure = failed(&error.to_string());
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            Err(if missing { failure.hint(hint) } else { failure })
        }
    }
}

/// Unmounts the mount of a killed daemon of this user.
pub(super) fn remove_dead(mountpoint: &Path, runtime: &Path) -> Result<(), Failure> {
    let is_disconnected = || {
        let touched = touch(ProbeTarget::Mount, mountpoint, ANSWER);
        matches!(touched, Ok(ProbeResult::Failed { errno: libc::ENOTCONN, .. }))
    };
    if let Some(from) = mountpoint::remove_dead(mountpoint, runtime, is_disconnected)? {
        let place = mountpoint.display();
        warn(Some(&format!("unmounted {from} from {place} first, whose daemon was killed")));
    }
    Ok(())
}

/// Timeout of the test whether a mount is served.
const ANSWER: Duration = Duration::from_secs(5);

impl From<MountpointError> for Failure {
    fn from(error: MountpointError) -> Self {
        let failure = Self::failed(chain(&error));
        match &error {
            MountpointError::Taken { mountpoint, repository, pid } => failure.hint(format!(
                "{repository} is mounted there by process {pid}; `esker umount {}` unmounts it",
                mountpoint.display()
            )),
            MountpointError::Orphan { mountpoint, .. } => {
                failure.hint(format!("clean up with `esker umount {}`", mountpoint.display()))
            }
            _ => failure,
        }
    }
}
