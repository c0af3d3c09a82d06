//! A mount that is made out of sight and then shown where it belongs, below an overlay of the kernel if it may be.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use esker_fuse::mount::{Trusted, shield};
use esker_fuse::{Mount, MountError, MountOptions};
use esker_vfs::{Change, Watcher};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use crate::FileError;
use crate::mounted::MountedError;
use crate::mounts;

/// A mount at a place that only we know; taken away when dropped, wherever else it is shown by then.
pub(crate) struct Behind {
    place: PathBuf,
}

impl Behind {
    /// Mounts at `place`, a directory that is made for it.
    pub(crate) fn mount(place: PathBuf, options: &MountOptions) -> Result<(Self, OwnedFd), MountedError> {
        let behind = Self { place };
        // A daemon killed at the wrong moment may have left one.
        behind.clear();
        fs::create_dir(&behind.place).map_err(FileError::on("create", &behind.place))?;
        let device = Mount::direct(&behind.place, options)?.into_device();
        Ok((behind, device))
    }

    /// Shows it at `mountpoint`; `Some` is why it could not be put below an overlay and is shown as it is.
    pub(crate) fn show(
        &self,
        mountpoint: &Path,
        source: &str,
        trusted: Trusted,
    ) -> Result<Option<MountError>, MountedError> {
        let Err(refused) = shield(&self.place, mountpoint, source, trusted) else { return Ok(None) };
        let shown = mount_bind(&self.place, mountpoint).map_err(io::Error::from);
        shown.map_err(FileError::on("mount on", mountpoint))?;
        Ok(Some(refused))
    }

    fn clear(&self) {
        // The mount and what the shield left above it; an error says that nothing is mounted there any more.
        while unmount(&self.place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
        // What isn't there needs no removing.
        let _ = fs::remove_dir(&self.place);
    }
}

/// Makes an overlay let go of what nobody uses, so that the tree's own names mean something: without that everything
/// ever looked at would count as held, and the cache could evict nothing.
pub(crate) struct Overlay {
    pub(crate) mountpoint: PathBuf,
}

impl Watcher for Overlay {
    fn changed(&self, _: &[Change]) {
        // It may be gone, with another mount in its place.
        if mounts::at(&self.mountpoint).is_ok_and(|line| line.is_some_and(|line| line.is_shield())) {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
            // To remount a file system drops its unused names; if that is refused, less can be evicted.
            let _ = mount_remount(&self.mountpoint, flags, c"");
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.clear();
    }
}
