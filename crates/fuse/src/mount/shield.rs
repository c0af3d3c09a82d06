//! The kernel's overlayfs above a mounted tree, so that what FUSE always asks us is answered by the kernel.
//!
//! A FUSE server gets every ioctl, and there is no way to decline them for good. Programs send more of them than one
//! would think: Python asks each module's file whether it is a terminal. Regular files of an overlayfs know no ioctl,
//! so there the answer costs a system call and nothing else; names, attributes, pages and link targets are those of
//! the tree below, cached once.
//!
//! The price: overlayfs believes its layers do not change. It keeps a name that was absent for as long as it likes, and
//! gives `ESTALE` for one whose file was exchanged while it was open. So only a tree that stays at its revision may be
//! shielded. It also holds on to what it has seen, so the cache can let go of less.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount};

use super::{MountError, explain};

/// The type of the mount of a shielded tree.
const TYPE: &str = "overlay";

/// Begins the source of a shielded mount: its type alone doesn't tell that it is ours.
pub const SHIELD_MARK: &str = "esker+";

/// Mounts an overlay of the tree at `tree` on `mountpoint`, which may be the same directory. The tree must be served by
/// now. At `tree` an empty file system is left mounted above it, for an overlay wants two layers; the caller
/// takes both away, or ends with the namespace they are in.
///
/// Needs the right to mount, and without root Linux 5.11. If it fails the tree is as it was.
pub fn shield(tree: &Path, mountpoint: &Path, source: &str) -> Result<(), MountError> {
    // The overlay copies owner and mode of the root when it is mounted, and until somebody asks for them a FUSE mount
    // has none.
    std::fs::metadata(tree)
        .map_err(|error| MountError::new("looking at", tree, error.to_string(), Some(error)))?;
    let layer = at(tree)?;
    let refused = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        let reason = explain::mount(&error, mountpoint);
        MountError::new("putting an overlay on", mountpoint, reason, Some(error))
    };
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    mount("none", tree, "tmpfs", flags, c"size=4k,mode=0755").map_err(refused)?;
    let outcome = at(tree).and_then(|empty| {
        // By descriptor: a path may hold what separates layers, and the tree's is covered by now. The numbers of
        // inodes stay those of the tree, but for the upper bits.
        let (layer, empty) = (layer.as_raw_fd(), empty.as_raw_fd());
        let layers = format!("lowerdir=/proc/self/fd/{layer}:/proc/self/fd/{empty}");
        // Numbers can't hold a zero byte, so this is infallible.
        let options = CString::new(format!("{layers},xino=on,index=off,redirect_dir=nofollow"));
        let source = format!("{SHIELD_MARK}{}", source.split('\0').next().unwrap_or_default());
        mount(source, mountpoint, TYPE, flags, Some(options.unwrap_or_default().as_c_str())).map_err(refused)
    });
    if outcome.is_err() {
        // The tmpfs; nobody has seen it.
        let _ = rustix::mount::unmount(tree, UnmountFlags::DETACH);
    }
    outcome
}

fn at(path: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|error| {
        let error = io::Error::from(error);
        MountError::new("looking at", path, error.to_string(), Some(error))
    })
}
