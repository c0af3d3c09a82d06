//! The kernel's EROFS above a file of a mounted tree, which is an image of another tree.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::process::chdir;

use crate::sys;
use crate::{FLAGS, MountError, SOURCE_PREFIX, explain};

/// The type of the mount.
const TYPE: &str = "erofs";

/// Mount options for EROFS: EROFS caches the content, not FUSE, so that it is cached once. Access control lists
/// are shown but not enforced, as below FUSE.
const OPTIONS: &std::ffi::CStr = c"directio,noacl";

/// Returns the path of the image of `source` in its tree, from the root on; `mount` and `df` show it as the source.
/// All its components are names.
pub fn image_path(source: &str) -> String {
    let source = source.split('\0').next().unwrap_or_default();
    let names: Vec<&str> = source.split('/').filter(|part| !matches!(*part, "." | "..")).collect();
    format!("{SOURCE_PREFIX}{}", names.join("/"))
}

/// Returns true if a kernel of this minor version of the FUSE protocol may be new enough (Linux 6.15) to mount an image
/// file of any size without a block device and without a copy.
pub fn may_mount_images(fuse_minor: u32) -> bool {
    fuse_minor >= 43
}

/// Mounts the image of `source` that is in the tree at `tree` on `mountpoint`. The tree must be served by now, and may be
/// unmounted afterwards: it lives as long as the image is mounted.
///
/// Needs root, in no user namespace. If it fails the tree is as it was.
pub fn mount_image(tree: &Path, source: &str, mountpoint: &Path, noexec: bool) -> Result<(), MountError> {
    let refused = |error: io::Error| {
        let reason = explain::mount(&error, mountpoint);
        MountError::new("mounting an image on", mountpoint, reason, Some(error))
    };
    let mut flags = FLAGS;
    flags.set(MountFlags::NOEXEC, noexec);
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let mounted = || -> io::Result<()> {
        let (tree, at) = (path(tree)?, path(mountpoint)?);
        let image = CString::new(image_path(source))?;
        // A thread with a working directory of its own: the source is a path, and to be shown without where the tree is.
        let thread = esker_threads::spawn("mount", move || -> io::Result<()> {
            sys::unshare_working_directory()?;
            chdir(&*tree)?;
            Ok(mount(&*image, &*at, TYPE, flags, Some(OPTIONS))?)
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts panicked")))
    };
    mounted().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_into_its_names() {
        assert_eq!(image_path("http://h:80/cvmfs/a.test"), "esker+http://h:80/cvmfs/a.test");
        assert_eq!(image_path("/a/.././b"), "esker+/a/b");
        assert_eq!(image_path(".\0x"), "esker+");
    }

    #[test]
    fn erofs_is_not_tried_on_older_kernels() {
        assert!(may_mount_images(45));
        assert!(!may_mount_images(34));
    }
}
