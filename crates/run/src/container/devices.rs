//! `/dev` as far as programs in a container need it, made of the host's.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use super::Stage;

/// What every program may expect, and `fuse`, without which no image can be mounted in the container.
const USUAL: [&str; 11] =
    ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse", "pts", "shm", "mqueue"];

/// Names that Linux has for what lies in `/proc`.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Fills `target` with the usual devices and `more`.
pub(super) fn provide(stage: &Stage, target: &Path, more: &[PathBuf]) -> io::Result<()> {
    mount("esker", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755,size=4m")?;
    for name in USUAL {
        bind(&stage.host(&Path::new("/dev").join(name)), &target.join(name))?;
    }
    for device in more {
        let name = device.strip_prefix("/dev").unwrap_or(device);
        bind(&stage.host(device), &target.join(name))?;
    }
    let shared = target.join("shm");
    if !shared.exists() {
        fs::create_dir(&shared)?;
        mount("esker", &shared, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=1777")?;
    }
    for (name, of) in LINKS {
        symlink(of, target.join(name))?;
    }
    Ok(())
}

/// Binds a device, or a directory of them. What the host doesn't have can't be had.
fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(meta) = fs::metadata(from) else { return Ok(()) };
    if fs::symlink_metadata(to).is_ok() {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if meta.is_dir() {
        fs::create_dir(to)?;
    } else {
        fs::File::create(to)?;
    }
    Ok(mount_bind_recursive(from, to)?)
}
