//! Checks the place of a mount, and clears what a killed daemon has left there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_node::mounts;
use esker_node::registry::{self, Departure, Registered};

use crate::error::{Context, Failure, Kind, chain_after, warn};
use crate::machine::doctor::{Touch, Touched, touch};

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

/// Unmounts the mount of a killed daemon of this user. A mount that is alive, that another user made, or of another
/// file system stays.
pub(super) fn remove_dead(mountpoint: &Path, runtime: &Path) -> Result<(), Failure> {
    let found = registry::find(runtime, mountpoint).context(Kind::Failed, "can't look up mounts")?;
    let left_by_killed = match &found {
        Some(found) if found.alive => return Ok(()),
        found => found.is_some(),
    };
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    let me = rustix::process::geteuid().as_raw();
    // A file system above a mount of ours is root's, and doesn't report its user.
    let Some(line) = line.filter(|line| line.is_ours() && line.user.unwrap_or(0) == me) else {
        return Ok(());
    };
    // A dead FUSE mount has no connection; one that another session made after the daemon was killed is alive. A file
    // system above it still answers from its cache, or blocks its caller: for it the entry counts.
    let is_left = left_by_killed && line.kind != "fuse.esker";
    if !is_left && !is_disconnected(mountpoint) {
        return Ok(());
    }
    esker_kernel_mount::unmount(mountpoint, esker_kernel_mount::Unmount::Lazy).map_err(|error| {
        let said = "can't unmount the mount of a killed daemon";
        Failure::failed(format!("{said}: {}", chain_after(said, &error)))
    })?;
    warn(Some(&format!(
        "unmounted {} from {} first, whose daemon was killed",
        line.source_text(),
        mountpoint.display()
    )));
    if let Some(left) = found {
        left.forget();
    }
    Ok(())
}

/// True if no process serves a mount any more. A mount that hangs is served.
fn is_disconnected(mountpoint: &Path) -> bool {
    match touch(Touch::Mount, mountpoint, ANSWER) {
        Ok(Touched::Failed { errno, .. }) => errno == libc::ENOTCONN,
        _ => false,
    }
}

/// Timeout of the test whether a mount is served.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) fn refuse_taken(mountpoint: &Path, runtime: &Path) -> Result<(), Failure> {
    let found = registry::find(runtime, mountpoint).context(Kind::Failed, "can't look up mounts")?;
    match found {
        Some(found) if found.alive && !ends(&found, mountpoint)? => {
            let entry = &found.entry;
            Err(taken(mountpoint).hint(format!(
                "{} is mounted there by process {}; `esker umount {}` unmounts it",
                entry.repository,
                entry.pid,
                mountpoint.display()
            )))
        }
        _ => refuse_orphan(mountpoint),
    }
}

/// Time that a daemon may take to end once its mount is gone. It may have to write objects to a slow disk.
const ENDING: Duration = Duration::from_secs(10);

/// True if a registered mount was unmounted, by any process, and is gone by now. An automounter unmounts idle mounts,
/// and a program may trigger it again at that moment.
fn ends(found: &Registered, mountpoint: &Path) -> Result<bool, Failure> {
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    let mounted = line.is_some_and(|line| line.is_ours());
    Ok(!mounted && found.wait_until_free(ENDING) != Departure::Here)
}

/// Refuses a mount whose daemon was killed, although the kernel may still answer from its cache.
fn refuse_orphan(mountpoint: &Path) -> Result<(), Failure> {
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    match line {
        Some(line) if line.is_ours() => {
            let (place, source) = (mountpoint.display(), line.source_text());
            Err(Failure::failed(format!(
                "can't mount on {place}: {source} is still mounted there, without a daemon of yours"
            ))
            .hint(format!("clean up with `esker umount {place}`")))
        }
        _ => Ok(()),
    }
}

pub(super) fn taken(mountpoint: &Path) -> Failure {
    Failure::failed(format!("{} is mounted already", mountpoint.display()))
}
