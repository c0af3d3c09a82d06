//! How a directory becomes a mountpoint: as root with mount(2), as a user through `fusermount3`, or in a
//! user namespace by a process that hands the connection over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How to mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// What is mounted, for the first column of `mount` and `df`: the URL of the repository.
    pub source: String,
    /// Whether other users than the one who mounts may use it. Always on for root; `fusermount3` allows it
    /// only if `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with `EBUSY` while it is used.
    #[default]
    IfUnused,
    /// Out of the tree of names at once, gone when its last user is.
    Lazy,
}

/// Why mounting or unmounting failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {reason}")]
pub struct MountError {
    action: &'static str,
    path: PathBuf,
    reason: String,
    #[source]
    source: Option<io::Error>,
}

/// A mounted connection.
#[derive(Debug)]
pub struct Mount {
    device: OwnedFd,
    mountpoint: PathBuf,
}

impl Mount {
    /// Mounts on `mountpoint`: with mount(2) as root, otherwise through `fusermount3`.
    pub fn new(mountpoint: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let _ = (mountpoint, options);
        todo!()
    }

    /// The connection to serve, for [`crate::Session::start`].
    pub fn into_device(self) -> OwnedFd {
        self.device
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// Opens `/dev/fuse`. A process in a user namespace has to open it itself: the kernel refuses to mount a
/// connection that was opened in another user namespace.
pub fn open_device() -> Result<OwnedFd, MountError> {
    todo!()
}

/// Mounts an open connection with mount(2): for root, and for a process that has `CAP_SYS_ADMIN` in its own
/// user namespace.
pub fn mount_device(
    device: BorrowedFd<'_>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<(), MountError> {
    let _ = (device, mountpoint, options);
    todo!()
}

/// Unmounts: with umount2(2) as root or in an own namespace, otherwise through `fusermount3`.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let _ = (mountpoint, how);
    todo!()
}

/// Sends an open connection to another process.
pub fn send_device(socket: impl AsFd, device: BorrowedFd<'_>) -> io::Result<()> {
    let _ = (socket.as_fd(), device);
    todo!()
}

/// Receives an open connection from another process.
pub fn receive_device(socket: impl AsFd) -> io::Result<OwnedFd> {
    let _ = socket.as_fd();
    todo!()
}
