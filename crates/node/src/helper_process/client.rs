//! A daemon's connection to its helper.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esker_cache_share::CacheSocket;
use esker_fuse::{MountHelper, Reader};
use esker_kernel_mount::{MountError, Unmount};
use esker_prefetch::{RunningReplayer, StartReplayer};
use esker_vfs::Ino;

use super::request::{Answer, Failure, Request};
use crate::packets;

/// The helper of a mount. It ends with the daemon.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    mountpoint: PathBuf,
}

/// An answer that is no failure, its descriptor, and the connection over which it came.
pub(super) type Answered = (Answer, Option<OwnedFd>, OwnedFd);

impl Helper {
    /// Starts the helper of a mount with `command`, which calls [`super::run`], and gives it the mount's options.
    pub fn start(mut command: Command, mountpoint: &Path, spec: &OwnedFd) -> io::Result<Self> {
        let (socket, theirs) = packets::pair()?;
        // While an automounter waits for a mount, only its process group can mount: the helper stays in it.
        command.stdin(theirs).stdout(Stdio::null()).spawn()?;
        // It has a copy of the helper's end.
        drop(command);
        Self::over(socket, mountpoint, spec)
    }

    /// Gives the helper on the other end of a connection the mount's options.
    pub(super) fn over(socket: OwnedFd, mountpoint: &Path, spec: &OwnedFd) -> io::Result<Self> {
        packets::send(&socket, &[b"options"], Some(spec.as_fd()))?;
        Ok(Self { socket, mountpoint: mountpoint.to_owned() })
    }

    /// Mounts the tree at the mount point, and returns the device to serve.
    pub(crate) fn mount(&self) -> Result<OwnedFd, MountError> {
        self.device(Request::Mount)
    }

    /// Mounts the tree at its private place, and returns the device to serve.
    pub(crate) fn mount_behind(&self) -> Result<OwnedFd, MountError> {
        self.device(Request::MountBehind)
    }

    /// Shows the tree at the private place through EROFS.
    pub(crate) fn show_image(&self) -> Result<(), MountError> {
        self.change(Request::ShowImage).map(drop)
    }

    /// Shows the tree at the private place through an overlay.
    pub(crate) fn show_overlay(&self, trusted: bool) -> Result<(), MountError> {
        self.change(Request::ShowOverlay { trusted }).map(drop)
    }

    /// Shows the tree at the private place as it is.
    pub(crate) fn show_tree(&self) -> Result<(), MountError> {
        self.change(Request::ShowTree).map(drop)
    }

    /// Takes the private place away, with what is mounted there.
    pub(crate) fn clear_behind(&self) {
        // The next daemon at this mount point tries again.
        let _ = self.change(Request::ClearBehind);
    }

    /// Gives up what was needed to make the mount.
    pub fn made(&self) -> io::Result<()> {
        self.ask(Request::Made).map(drop)
    }

    /// Leaves the session of the process that has started the mount.
    pub fn leave_session(&self) -> io::Result<()> {
        self.ask(Request::LeaveSession).map(drop)
    }

    /// Makes the overlay at the mount point drop unused names.
    pub(crate) fn drop_names(&self) {
        // If that is refused, less can be evicted from the cache.
        let _ = self.change(Request::DropNames);
    }

    /// Binds the socket for `cvmfs_talk`.
    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        self.socket(Request::Listen)
    }

    /// Binds the control socket.
    pub(crate) fn listen_for_control(&self) -> io::Result<OwnedFd> {
        self.socket(Request::ListenForControl)
    }

    /// Binds the socket of the supervisor for upgrades.
    pub(crate) fn listen_for_upgrades(&self) -> io::Result<OwnedFd> {
        self.socket(Request::ListenForUpgrades)
    }

    /// Makes a socket of the cache of the mount.
    pub fn cache_socket(&self, which: CacheSocket) -> io::Result<OwnedFd> {
        self.socket(Request::Cache(which))
    }

    fn socket(&self, request: Request) -> io::Result<OwnedFd> {
        self.ask(request)?.1.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Removes the runtime directory if it is empty.
    pub(crate) fn leave(&self) {
        // Another mount still uses it, most likely.
        let _ = self.ask(Request::RemoveRuntime);
    }

    fn device(&self, request: Request) -> Result<OwnedFd, MountError> {
        self.change(request)?.ok_or_else(|| self.failed(io::ErrorKind::InvalidData.into()))
    }

    /// Changes the mount; returns the descriptor of the answer.
    fn change(&self, request: Request) -> Result<Option<OwnedFd>, MountError> {
        let (_, descriptor, _) = self.call(request).map_err(|error| self.failed(error))??;
        Ok(descriptor)
    }

    fn failed(&self, error: io::Error) -> MountError {
        let has_ended = error.raw_os_error() == Some(libc::EPIPE);
        let reason = if has_ended { "it has ended".to_owned() } else { error.to_string() };
        MountError::of_another("asking the helper of".into(), self.mountpoint.clone(), reason, Some(error))
    }

    fn ask(&self, request: Request) -> io::Result<Answered> {
        Ok(self.call(request)??)
    }

    fn call(&self, request: Request) -> io::Result<Result<Answered, Failure>> {
        self.send(&serde_json::to_vec(&request)?)
    }

    /// Sends a request over a separate connection, so that others continue, and waits for the answer.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<Result<Answered, Failure>> {
        let (connection, theirs) = packets::pair()?;
        packets::send(&self.socket, &[request], Some(theirs.as_fd()))?;
        drop(theirs);
        let (bytes, descriptor) = packets::receive(&connection)?;
        if bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        Ok(match serde_json::from_slice(&bytes)? {
            Answer::Failed(failure) => Err(failure),
            answer => Ok((answer, descriptor, connection)),
        })
    }
}

impl AsFd for Helper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl MountHelper for Helper {
    fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.change(Request::Unmount { lazy: how == Unmount::Lazy }).map(drop)
    }

    fn reader(&self, tid: u32, ino: Ino) -> Reader {
        match self.ask(Request::Look { tid, ino: ino.0 }) {
            Ok((Answer::Faults(Some(true)), ..)) => Reader::Faults,
            Ok((Answer::Faults(Some(false)), ..)) => Reader::Calls,
            _ => Reader::Unseen,
        }
    }
}

impl StartReplayer for Helper {
    fn start(&self) -> io::Result<RunningReplayer> {
        let (_, pipe, connection) = self.ask(Request::Replay)?;
        let pipe = File::from(pipe.ok_or(io::ErrorKind::InvalidData)?);
        let end = move || {
            // A helper that has ended has ended its replayers.
            let _ = packets::send(&connection, &[b"end"], None);
            let _ = packets::receive(&connection);
        };
        Ok(RunningReplayer { pipe, end: Box::new(end) })
    }
}
