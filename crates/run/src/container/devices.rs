//! Provides `/dev` for a container from devices of the host.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use super::Stage;

/// Standard devices, and `fuse`, which mounts images in the container.
const USUAL: [&str; 9] = ["null", "zero", "full", "random", "urandom", "tty", "fuse", "shm", "mqueue"];

/// Links in `/dev` to files of `/proc`, as Linux has them.
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
    provide_terminals(stage, target)?;
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

/// Provides terminals: those of the host if the command uses one, otherwise new ones. The kernel opens no
/// terminal by a `ptmx` that was bound alone.
fn provide_terminals(stage: &Stage, target: &Path) -> io::Result<()> {
    let has_terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    let (terminals, ptmx) = (target.join("pts"), target.join("ptmx"));
    if !has_terminal {
        fs::create_dir(&terminals)?;
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options = c"newinstance,ptmxmode=0666,mode=0620";
        if mount("devpts", &terminals, "devpts", flags, options).is_ok() {
            return symlink("pts/ptmx", ptmx);
        }
        fs::remove_dir(&terminals)?;
    }
    bind(&stage.host(Path::new("/dev/pts")), &terminals)?;
    bind(&stage.host(Path::new("/dev/ptmx")), &ptmx)
}

/// Binds a device or a directory of devices. A device that the host lacks is skipped.
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
