//! Options of a session.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_kernel_mount::{MountError, Unmount};
use esker_vfs::Ino;

use crate::{KernelMask, Reader};

/// Deadlines of requests in flight; after them the caller gets `EIO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// LOOKUP, also of a symlink's target and of extended attributes.
    pub lookup: Duration,
    /// GETATTR.
    pub attributes: Duration,
    /// READDIR and READDIRPLUS.
    pub list: Duration,
    /// READ by a call that can return an error.
    pub read: Duration,
    /// READ by a page fault, which can't return an error: it would be SIGBUS. `None` waits until the bytes
    /// come or the program is killed.
    pub fault: Option<Duration>,
}

impl Default for Deadlines {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { lookup: minute, attributes: minute, list: minute, read: minute, fault: None }
    }
}

/// Returns whether a caller of this group may see the extended attribute of this name; others get `ENODATA`.
pub type XattrGuard = Arc<dyn Fn(&[u8], u32) -> bool + Send + Sync>;

/// Process that performs operations on its own mount which a confined process may not perform.
pub trait MountHelper: Send + Sync {
    /// Unmounts the mount.
    fn unmount(&self, how: Unmount) -> Result<(), MountError>;

    /// Determines how thread `tid` came to wait for a read of `ino`.
    fn reader(&self, tid: u32, ino: Ino) -> Reader;
}

/// Options of a [`crate::Session`].
#[derive(Clone)]
pub struct SessionOptions {
    /// Number of worker threads. They never wait for the network, so a few serve any number of callers.
    pub threads: usize,
    /// Newest kernel whose capabilities are used.
    pub kernel: KernelMask,
    /// Deadlines of requests in flight.
    pub deadlines: Deadlines,
    /// Mountpoint, for [`crate::Session::unmount`].
    pub mountpoint: Option<PathBuf>,
    /// Procfs of the pid namespace that called mount(2), in which the process ids of callers are valid; `None`
    /// if it isn't reachable. `None` if there is none within reach; then every caller counts as unknown.
    pub proc: Option<Arc<Path>>,
    /// Access check for extended attributes; without one all callers may see all.
    pub xattr_guard: Option<XattrGuard>,
    /// True if another process may go on with the session ([`crate::Session::resume`]).
    pub outlives: bool,
    /// True if the kernel enforces the access control lists that the tree has as extended attributes.
    pub enforce_acls: bool,
    /// Process that unmounts and inspects callers; `None` if this process may do so itself.
    pub helper: Option<Arc<dyn MountHelper>>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, usize::from);
        Self {
            threads: cores.clamp(4, 16),
            kernel: KernelMask::default(),
            deadlines: Deadlines::default(),
            mountpoint: None,
            proc: Some(Path::new("/proc").into()),
            xattr_guard: None,
            outlives: false,
            enforce_acls: false,
            helper: None,
        }
    }
}

impl std::fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionOptions")
            .field("threads", &self.threads)
            .field("kernel", &self.kernel)
            .field("deadlines", &self.deadlines)
            .field("mountpoint", &self.mountpoint)
            .field("proc", &self.proc)
            .finish_non_exhaustive()
    }
}
