//! A tree served on a mounted connection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esker_vfs::{Change, Tree, Watcher};

use crate::{Counters, MountError, SessionOptions, Unmount};

/// Why a session could not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's side of the connection failed.
    #[error("{action}")]
    Device {
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel speaks a protocol that is too old.
    #[error("the kernel speaks FUSE protocol {major}.{minor}; at least 7.23 (Linux 3.15) is needed")]
    Protocol {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
}

/// A tree served on a mounted connection by a few worker threads, until it is unmounted.
#[derive(Debug)]
pub struct Session {}

impl Session {
    /// Answers the kernel's greeting and starts to serve. Calls [`Tree::watch`].
    pub fn start(
        device: OwnedFd,
        tree: Arc<dyn Tree>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let _ = (device, tree, options);
        todo!()
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        todo!()
    }

    /// Waits until the mount is gone and every worker has ended.
    pub fn wait(&self) {
        todo!()
    }

    /// Unmounts `options.mountpoint`.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        let _ = how;
        todo!()
    }
}

impl Watcher for Session {
    fn changed(&self, changes: &[Change]) {
        let _ = changes;
        todo!()
    }
}
