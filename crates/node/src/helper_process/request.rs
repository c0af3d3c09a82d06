//! Operations that a daemon asks its helper for, and the answers. No operation names a path, a program or an option.

use std::io;
use std::path::PathBuf;

use esker_cache_share::CacheSocket;
use esker_kernel_mount::MountError;
use serde::{Deserialize, Serialize};

/// An operation on the mount of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Request {
    /// Mounts the tree at the mount point; the answer has the device. This and the next four are refused once it is made.
    Mount,
    /// Mounts the tree at its private place; the answer has the device.
    MountBehind,
    /// Shows the tree at the private place through EROFS.
    ShowImage,
    /// Shows it through an overlay, with or without attributes in `trusted.`.
    ShowOverlay { trusted: bool },
    /// Shows it as it is.
    ShowTree,
    /// Takes the private place away, with what is mounted there.
    ClearBehind,
    /// The mount is made.
    Made,
    /// The daemon has left the session of its starter.
    LeaveSession,
    /// Unmounts.
    Unmount { lazy: bool },
    /// Makes the overlay drop unused names.
    DropNames,
    /// Determines how a thread came to wait for a read of a file.
    Look { tid: u32, ino: u64 },
    /// Starts a replayer; the answer has its pipe. Another message, or the end of the connection, ends it.
    Replay,
    /// Binds the socket for `cvmfs_talk`; the answer has it.
    Listen,
    /// Binds the control socket; the answer has it.
    ListenForControl,
    /// Binds the socket for upgrades of the supervisor; the answer has it.
    ListenForUpgrades,
    /// Makes a socket of the cache; the answer has it.
    Cache(CacheSocket),
    /// Removes the runtime directory if it is empty.
    RemoveRuntime,
}

/// Answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The thread waits because of a page fault, or of a call; `None` if it can't be told.
    Faults(Option<bool>),
    Failed(Failure),
}

/// Error of an operation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    action: String,
    #[serde(with = "esker_store::exact_path")]
    path: PathBuf,
    reason: String,
    cause: Option<Cause>,
}

/// Error of the system behind a failure.
#[derive(Debug, Serialize, Deserialize)]
struct Cause {
    errno: Option<i32>,
    text: String,
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Self {
        Self { errno: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<Cause> for io::Error {
    fn from(cause: Cause) -> Self {
        cause.errno.map_or_else(|| Self::other(cause.text), Self::from_raw_os_error)
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let (action, path, reason) = error.parts();
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        Self {
            action: action.to_owned(),
            path: path.to_owned(),
            reason: reason.to_owned(),
            cause: source.map(Cause::from),
        }
    }
}

impl From<Failure> for MountError {
    fn from(failure: Failure) -> Self {
        Self::of_another(failure.action, failure.path, failure.reason, failure.cause.map(io::Error::from))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let cause = Some(Cause::from(&error));
        Self { action: String::new(), path: PathBuf::new(), reason: error.to_string(), cause }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        failure.cause.map_or_else(|| Self::other(failure.reason), Self::from)
    }
}
