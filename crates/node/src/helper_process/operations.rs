//! The operations of a helper, on the one mount whose options it was started with.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use esker_cache_share::CacheSocket;
use esker_fuse::{Reader, reader};
use esker_kernel_mount::{FLAGS, Trusted, mount_image, mount_overlay};
use esker_kernel_mount::{Mount, MountError, Unmount};
use esker_prefetch::{ReplayerCommand, RunningReplayer, StartReplayer};
use esker_vfs::Ino;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{UnmountFlags, mount_bind, mount_remount, unmount};
use rustix::process::setsid;

use super::request::{Answer, Failure, Request};
use crate::control;
use crate::mount_spec::{ContentSpec, MountSpec};
use crate::mounts::{self, MountLine};
use crate::runtime::RuntimeDir;
use crate::talk_socket;

/// A mount, and what may still be done with it.
pub(super) struct Operations {
    spec: MountSpec,
    replayer: ReplayerCommand,
    is_made: AtomicBool,
}

/// Result of an operation: the answer, and its descriptor.
type Outcome = Result<(Answer, Option<OwnedFd>), Failure>;

const DONE: Outcome = Ok((Answer::Done, None));

impl Operations {
    pub(super) fn new(spec: MountSpec, replayer: ReplayerCommand) -> Self {
        Self { spec, replayer, is_made: AtomicBool::new(false) }
    }

    /// Records that the mount is made.
    pub(super) fn made(&self) {
        self.is_made.store(true, Ordering::Relaxed);
    }

    /// Performs an operation, all but [`Request::Made`] and [`Request::Replay`].
    pub(super) fn perform(&self, request: Request) -> Outcome {
        let MountSpec { mountpoint, options, .. } = &self.spec;
        match request {
            Request::Mount
            | Request::MountBehind
            | Request::ShowImage
            | Request::ShowOverlay { .. }
            | Request::ShowTree
                if self.is_made.load(Ordering::Relaxed) =>
            {
                return Err(self.refused("mounting on", "it is mounted").into());
            }
            Request::Mount => {
                let mounted = Mount::new(mountpoint, &options.mount_options())?;
                return Ok((Answer::Done, Some(mounted.into_device())));
            }
            Request::MountBehind => return Ok((Answer::Done, Some(self.mount_behind()?))),
            Request::ShowImage => mount_image(&self.behind()?, &options.source, mountpoint, options.noexec)?,
            Request::ShowOverlay { trusted } => {
                let trusted = if trusted { Trusted::Shown } else { Trusted::Hidden };
                mount_overlay(&self.behind()?, mountpoint, &options.source, trusted)?;
            }
            Request::ShowTree => mount_bind(self.behind()?, mountpoint)
                .map_err(|error| self.met("mounting on", mountpoint, error.into()))?,
            Request::ClearBehind => self.clear(&self.behind()?),
            Request::Unmount { lazy } => {
                if self.shown()?.is_some_and(|line| !line.is_ours()) {
                    return Err(self.refused("unmounting", "another file system is mounted above it").into());
                }
                esker_kernel_mount::unmount(
                    mountpoint,
                    if lazy { Unmount::Lazy } else { Unmount::IfUnused },
                )?;
            }
            // It may be gone, with another mount in its place. To remount a file system drops its unused names.
            Request::DropNames if self.shown()?.is_some_and(|line| line.is_own_overlay()) => {
                mount_remount(mountpoint, FLAGS, c"").map_err(io::Error::from)?;
            }
            // All of its threads leave it.
            Request::LeaveSession => drop(setsid()),
            Request::DropNames | Request::Made | Request::Replay => {}
            Request::Look { tid, ino } => {
                let faults = match reader(Some(Path::new("/proc")), tid, Ino(ino)) {
                    Reader::Faults => Some(true),
                    Reader::Calls => Some(false),
                    Reader::Unseen => None,
                };
                return Ok((Answer::Faults(faults), None));
            }
            Request::Listen => {
                let ContentSpec::Repository(repository) = &self.spec.content else { return Err(absent()) };
                let talk = repository.talk.as_ref().ok_or_else(absent)?;
                return Ok((Answer::Done, Some(talk_socket::listen(talk)?)));
            }
            Request::ListenForControl => {
                let listening = control::listen(&self.in_runtime(RuntimeDir::socket)?);
                return Ok((Answer::Done, Some(listening.map_err(|error| error.source)?.into())));
            }
            Request::ListenForUpgrades => {
                let socket = self.in_runtime(RuntimeDir::upgrades)?;
                // One of a killed supervisor may be there; the daemon has the registry's lock.
                let _ = fs::remove_file(&socket);
                return Ok((Answer::Done, Some(UnixListener::bind(&socket)?.into())));
            }
            Request::Cache(which) => return Ok((Answer::Done, Some(self.cache_socket(which)?))),
            Request::RemoveRuntime => self.leave(),
        }
        DONE
    }

    /// Starts a replayer.
    pub(super) fn replay(&self) -> io::Result<RunningReplayer> {
        if self.spec.replay { self.replayer.start() } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Removes the runtime directory if it is empty.
    pub(super) fn leave(&self) {
        if let Ok(Some(runtime)) = RuntimeDir::existing(&self.spec.runtime) {
            runtime.leave();
        }
    }

    /// Returns the topmost mount at the mount point.
    fn shown(&self) -> io::Result<Option<MountLine>> {
        mounts::at(&self.spec.mountpoint)
    }

    /// Returns the private place of the tree.
    fn behind(&self) -> io::Result<PathBuf> {
        self.in_runtime(RuntimeDir::layer)
    }

    /// Returns the path of one of the mount's files in the runtime directory.
    fn in_runtime(&self, path: fn(&RuntimeDir, &str) -> PathBuf) -> io::Result<PathBuf> {
        let runtime = RuntimeDir::existing(&self.spec.runtime).map_err(io::Error::other)?;
        let runtime = runtime.ok_or(io::ErrorKind::NotFound)?;
        Ok(path(&runtime, &RuntimeDir::id(&self.spec.mountpoint)))
    }

    fn cache_socket(&self, which: CacheSocket) -> io::Result<OwnedFd> {
        which.make(self.spec.cache().ok_or(io::ErrorKind::NotFound)?, self.spec.broker())
    }

    fn mount_behind(&self) -> Result<OwnedFd, Failure> {
        let place = self.behind()?;
        // A daemon killed at the wrong moment may have left one.
        self.clear(&place);
        fs::create_dir(&place).map_err(|error| self.met("creating", &place, error))?;
        // The daemon can change the folder around it, so that the name might lead elsewhere by now.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(&place, flags, Mode::empty())
            .map_err(|error| self.met("looking at", &place, error.into()))?;
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let mounted = Mount::direct(Path::new(&path), &self.spec.options.mount_options());
        Ok(mounted.map_err(|error| error.at(&place))?.into_device())
    }

    fn clear(&self, place: &Path) {
        // The mount and what the overlay left above it; an error says that nothing is mounted there any more.
        while unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
        // It may not exist.
        let _ = fs::remove_dir(place);
    }

    fn met(&self, action: &str, path: &Path, error: io::Error) -> MountError {
        MountError::of_another(action.into(), path.to_owned(), error.to_string(), Some(error))
    }

    fn refused(&self, action: &str, why: &str) -> MountError {
        MountError::of_another(action.into(), self.spec.mountpoint.clone(), why.into(), None)
    }
}

fn absent() -> Failure {
    io::Error::from(io::ErrorKind::NotFound).into()
}
