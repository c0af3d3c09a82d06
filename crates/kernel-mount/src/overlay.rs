//! The kernel's overlayfs above a mounted tree, which answers requests that FUSE always sends to the server.
//!
//! A FUSE server gets every ioctl, and can't decline them for good. Programs send many: Python asks each module's file
//! whether it is a terminal. Regular files of an overlayfs have no ioctl, so there the answer costs a system call and
//! nothing else; names, attributes, pages and link targets are those of the tree below, cached once.
//!
//! The price: overlayfs assumes that its layers do not change. It caches an absent name without a limit, and returns
//! `ESTALE` for a name whose file was exchanged while it was open. So only a tree that stays at its revision may get
//! an overlay. It also holds on to the nodes it has seen, so the cache can evict less.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, mount, move_mount};
use rustix::path::Arg;
use rustix::process::{chdir, chroot, geteuid};

use crate::namespace::{IdMap, made_in_namespace, made_nowhere};
use crate::trusted::may_see_trusted;
use crate::{FLAGS, MountError, explain};

/// Type of the mount of a tree with an overlay.
const TYPE: &CStr = c"overlay";

/// Options of the overlay, which keep the inode numbers of the tree except for the upper bits.
const OPTIONS: [(&CStr, &CStr); 3] = [(c"xino", c"on"), (c"index", c"off"), (c"redirect_dir", c"nofollow")];

/// Prefix of the source of an overlay mount: its type alone doesn't show that it is ours.
pub const SOURCE_PREFIX: &str = "esker+";

/// View of the tree's attributes in `trusted.` that the system's root has through an overlay.
///
/// Overlays keep marks of their own there, so an overlay asks for one of each file that it finds: 8,100 requests of an
/// import of TensorFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// All attributes: the overlay passes requests for them to the tree. The tree is asked.
    Shown,
    /// No attributes of `trusted.`: the kernel hides them in a mount of a user namespace. The overlay belongs
    /// to a user namespace if root may make one; there the kernel hides `trusted.` without asking the tree.
    Hidden,
}

/// Mounts an overlay of the tree at `tree` on `mountpoint`, which may be the same directory. The tree must be served by
/// now. At `tree` an empty file system may be left mounted above it, for an overlay wants two layers; the caller
/// takes both away, or ends with the namespace they are in.
///
/// Needs the right to mount, and without root Linux 5.11. If it fails the tree is as it was.
pub fn mount_overlay(
    tree: &Path,
    mountpoint: &Path,
    source: &str,
    trusted: Trusted,
) -> Result<(), MountError> {
    // The overlay copies owner and mode of the root when it is mounted, and a FUSE mount has none before the first
    // GETATTR.
    std::fs::metadata(tree)
        .map_err(|error| MountError::new("looking at", tree, error.to_string(), Some(error)))?;
    let source = format!("{SOURCE_PREFIX}{}", source.split('\0').next().unwrap_or_default());
    // It saves questions and nothing else, so there is nothing to say where that can't be had.
    let hides = trusted == Trusted::Hidden && may_see_trusted(geteuid().as_raw());
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
        // By descriptor: a path may contain the separator of layers, and the tree's path is covered by now.
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
        // The tmpfs; no process has seen it.
        let _ = rustix::mount::unmount(tree, UnmountFlags::DETACH);
    }
    outcome
}

/// Folders of the upper layer of a writable overlay; both must be on one file system.
#[derive(Clone, Copy, Debug)]
pub struct UpperLayer<'a> {
    /// Folder that gets the changes.
    pub upper: &'a Path,
    /// Folder for the kernel's own use.
    pub work: &'a Path,
}

/// Mounts a writable overlay of the tree at `tree` over it. The tree must be served by now.
///
/// Renamed directories of the tree are copied by the programs that rename them, as between two file systems, and changed
/// files are copied whole: the upper layer then has all that changed. Needs the right to mount, and without root Linux 5.11.
pub fn mount_writable(tree: &Path, source: &str, layer: UpperLayer<'_>) -> Result<(), MountError> {
    std::fs::metadata(tree)
        .map_err(|error| MountError::new("looking at", tree, error.to_string(), Some(error)))?;
    let source = format!("{SOURCE_PREFIX}{}", source.split('\0').next().unwrap_or_default());
    let (lower, upper, work) = (at(tree)?, at(layer.upper)?, at(layer.work)?);
    // By descriptor: a path may contain the separators of options and layers.
    let [lower, upper, work] =
        [&lower, &upper, &work].map(|folder| format!("/proc/self/fd/{}", folder.as_raw_fd()));
    // In a user namespace the kernel keeps its marks in attributes that an ordinary user may set.
    let marks = if may_see_trusted(geteuid().as_raw()) { "" } else { ",userxattr" };
    let options = format!(
        "lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=nofollow,metacopy=off,index=off{marks}"
    );
    let options = CString::new(options).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(source, tree, TYPE, flags, Some(options.as_c_str())).map_err(|error| {
        let error = io::Error::from(error);
        let reason = match error.kind() {
            io::ErrorKind::PermissionDenied => "the kernel refuses it; without root it takes Linux 5.11".to_owned(),
            io::ErrorKind::InvalidInput => format!(
                "the kernel refuses {} as the upper layer; it has to be on a local file system with extended attributes \
                 that is no overlay itself",
                layer.upper.display()
            ),
            _ => explain::mount(&error, tree),
        };
        MountError::new("putting a writable overlay on", tree, reason, Some(error))
    })
}

fn mount_empty(path: impl Arg) -> rustix::io::Result<()> {
    mount(c"none", path, c"tmpfs", FLAGS, c"size=4k,mode=0755")
}

/// Makes the overlay in a user namespace, and mounts it for all users.
fn in_namespace(tree: &Path, mountpoint: &Path, source: &str) -> io::Result<()> {
    let (tree, source) = (CString::new(tree.as_os_str().as_bytes())?, CString::new(source)?);
    let made = made_in_namespace(IdMap::AllUsers, || {
        // The tree becomes the working directory and the empty folder the root, so that both have names without a
        // separator of layers.
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
