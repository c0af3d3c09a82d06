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

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{MountAttrFlags, MoveMountFlags, UnmountFlags, mount, move_mount};
use rustix::path::Arg;
use rustix::process::{chdir, chroot, geteuid};

use super::namespace::{Known, made_in_namespace, made_nowhere};
use super::{FLAGS, MountError, explain};

/// The type of the mount of a shielded tree.
const TYPE: &CStr = c"overlay";

/// Numbers of inodes stay those of the tree, but for the upper bits.
const OPTIONS: [(&CStr, &CStr); 3] = [(c"xino", c"on"), (c"index", c"off"), (c"redirect_dir", c"nofollow")];

/// Begins the source of a shielded mount: its type alone doesn't tell that it is ours.
pub const SHIELD_MARK: &str = "esker+";

/// What the system's root sees of the tree's attributes in `trusted.` through an overlay.
///
/// That is where overlays leave marks for themselves, so an overlay asks for one of each file that it finds: 8,100 questions of
/// an import of TensorFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// What there is. The tree is asked.
    Shown,
    /// Nothing. The overlay belongs to a user namespace if root may make one, and to what lies in one the kernel shows
    /// nothing of `trusted.`, without a question.
    Hidden,
}

/// Mounts an overlay of the tree at `tree` on `mountpoint`, which may be the same directory. The tree must be served by
/// now. At `tree` an empty file system may be left mounted above it, for an overlay wants two layers; the caller
/// takes both away, or ends with the namespace they are in.
///
/// Needs the right to mount, and without root Linux 5.11. If it fails the tree is as it was.
pub fn shield(tree: &Path, mountpoint: &Path, source: &str, trusted: Trusted) -> Result<(), MountError> {
    // The overlay copies owner and mode of the root when it is mounted, and until somebody asks for them a FUSE mount
    // has none.
    std::fs::metadata(tree)
        .map_err(|error| MountError::new("looking at", tree, error.to_string(), Some(error)))?;
    let source = format!("{SHIELD_MARK}{}", source.split('\0').next().unwrap_or_default());
    // It saves questions and nothing else, so there is nothing to say where that can't be had.
    let hides = trusted == Trusted::Hidden && crate::trusted::may_see(geteuid().as_raw());
    if hides && in_namespace(tree, mountpoint, &source).is_ok() {
        return Ok(());
    }
    let layer = at(tree)?;
    let refused = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        let reason = explain::mount(&error, mountpoint);
        MountError::new("putting an overlay on", mountpoint, reason, Some(error))
    };
    mount_empty(tree).map_err(refused)?;
    let outcome = at(tree).and_then(|empty| {
        // By descriptor: a path may hold what separates layers, and the tree's is covered by now.
        let (layer, empty) = (layer.as_raw_fd(), empty.as_raw_fd());
        let layers = format!("lowerdir=/proc/self/fd/{layer}:/proc/self/fd/{empty}");
        let options = OPTIONS.iter().fold(layers, |options, (name, value)| {
            let value = value.to_string_lossy();
            format!("{options},{}={value}", name.to_string_lossy())
        });
        // Numbers can't hold a zero byte, so this is infallible.
        let options = CString::new(options).unwrap_or_default();
        mount(source, mountpoint, TYPE, FLAGS, Some(options.as_c_str())).map_err(refused)
    });
    if outcome.is_err() {
        // The tmpfs; nobody has seen it.
        let _ = rustix::mount::unmount(tree, UnmountFlags::DETACH);
    }
    outcome
}

fn mount_empty(path: impl Arg) -> rustix::io::Result<()> {
    mount(c"none", path, c"tmpfs", FLAGS, c"size=4k,mode=0755")
}

/// Has it made in a user namespace, for everybody to use.
fn in_namespace(tree: &Path, mountpoint: &Path, source: &str) -> io::Result<()> {
    let (tree, source) = (CString::new(tree.as_os_str().as_bytes())?, CString::new(source)?);
    let made = made_in_namespace(Known::Everybody, || {
        // The tree becomes the working directory and what is empty the root, so that both have names without
        // anything that separates layers.
        chdir(&*tree)?;
        mount_empty(&*tree)?;
        chroot(&*tree)?;
        let layers = [(c"source", &*source), (c"lowerdir", c".:/")];
        made_nowhere(TYPE, layers.into_iter().chain(OPTIONS), MountAttrFlags::MOUNT_ATTR_RDONLY)
    })?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(&made, c"", CWD, mountpoint, flags)?)
}

fn at(path: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|error| {
        let error = io::Error::from(error);
        MountError::new("looking at", path, error.to_string(), Some(error))
    })
}
