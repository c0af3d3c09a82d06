//! Failures of mounting.

use esker_cache_share::FileError;
use esker_fuse::SessionError;
use esker_kernel_mount::MountError;

use crate::registry::RegistryError;

/// Mounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountedError {
    /// The mount can't be registered.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The registry entry or control socket can't be made.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system refused to mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel's side of the mount can't be served.
    #[error("the mount can't be served")]
    Session(#[from] SessionError),
    /// The control socket can't be served.
    #[error("no thread can be started")]
    Thread(#[source] std::io::Error),
    /// The mount of an earlier daemon can't be continued.
    #[error("the mount of the daemon before can't be taken over")]
    Takeover(#[source] std::io::Error),
}
