//! Shares one mount of an image between all commands of a job.
//!
//! The mount process lives in the namespaces of a stage, mounts the image there, serves it, and admits commands:
//!
//! ```text
//!  esker run (1st)                        mount process                       esker run (2nd, 3rd, ...)
//!     │ start ───────────────────────────► namespaces, mount, serve
//!     │ connect ─────────────────────────► record the client ◄────────────────────── connect │
//!     │ ◄──────────── namespaces ──────────┤├─────────────── namespaces ───────────────► │
//!     │ join them, a mount namespace of    │                             the same         │
//!     │ their own, execute the command     │                                              │
//!     ▼ end                                ▼ the last one has ended: unmounts  ▼ end
//! ```
//!
//! Commands of a job are in one user namespace, so they may read each other's memory, as MPI does within a node. This
//! namespace is a child of that of the mount process, so that no command can trace it or its replayer, or reach the host's files
//! through their root directories in `/proc`. Processes that a command leaves running keep the mount: the mount process
//! only drops its own reference, and ends when the kernel reports that the last one is gone. Commands of a job find it
//! through a socket whose name is made of image and job ([`Key`]); a lock beside it decides which command starts one.
//! A killed mount process leaves both behind, and the next one reuses them.

mod clients;
mod handover;
mod key;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_fuse::{Session, SessionError, SessionOptions};
use esker_kernel_mount::{MountError, MountOptions};
use esker_kernel_mount::{Trusted, mount_device, mount_overlay};
use esker_vfs::Tree;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::UnshareFlags;

use crate::container::{ContainerError, IMAGE, Stage, step};
use crate::explain::device_for_mount;
use crate::namespaces::{Identity, Namespaces, close_to_others, for_commands};
use crate::{signals, sys};
use clients::Clients;

pub use key::Key;

/// Maximum number of attempts to join, each of which fails if the mount's process ends meanwhile.
const ATTEMPTS: usize = 16;

/// Signals of a scheduler or terminal to a whole job, which the process of a shared mount ignores. The command
/// may need its files to save its work, so the process ends only with the last command.
const NOT_FOR_KEEPERS: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGXCPU,
    libc::SIGALRM,
];

/// Address of a job's shared mount.
#[derive(Clone, Debug)]
pub struct SharedMountAddress {
    folder: PathBuf,
    key: Key,
}

/// Errors of the process of a shared mount.
#[derive(Debug, thiserror::Error)]
pub enum SharedMountError {
    /// The namespaces or the mount could not be made.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The system refused to mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The mount can't be served.
    #[error("the image can't be served")]
    Session(#[from] SessionError),
}

impl SharedMountAddress {
    /// Returns the address of the shared mount with this key, in a folder that only this user can write.
    pub fn new(folder: &Path, key: Key) -> Self {
        Self { folder: folder.to_owned(), key }
    }

    /// Returns the key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.img", self.key.short()))
    }

    fn lock_file(&self) -> PathBuf {
        self.folder.join(format!("{}.lck", self.key.short()))
    }

    /// Takes the lock; `None` if another process holds it and `how` doesn't wait.
    fn lock(&self, how: FlockOperation) -> io::Result<Option<File>> {
        loop {
            let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let path = self.lock_file();
            let file =
                OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(&path)?;
            match flock(&file, how) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            }
            // The process that had the lock may have removed the file.
            let named = fs::symlink_metadata(&path);
            if named.is_ok_and(|named| file.metadata().is_ok_and(|held| held.ino() == named.ino())) {
                return Ok(Some(file));
            }
        }
    }

    /// Joins the namespaces of the job's shared mount; `start` starts its process if there is none. The process
    /// must have a single thread.
    pub fn join<E: From<ContainerError>>(
        &self,
        mut start: impl FnMut() -> Result<(), E>,
    ) -> Result<Stage, E> {
        let failed =
            |source| ContainerError::Step { what: "reach the process that keeps the image".into(), source };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..ATTEMPTS {
            match handover::ask(&self.socket(), &self.key) {
                Ok(namespaces) => return Ok(enter(namespaces)?),
                Err(error) if is_gone(&error) => last = error,
                Err(error) => return Err(failed(error).into()),
            }
            let lock = self.lock(FlockOperation::LockExclusive).map_err(failed)?;
            match handover::ask(&self.socket(), &self.key) {
                Ok(namespaces) => return Ok(enter(namespaces)?),
                Err(error) if is_gone(&error) => start()?,
                Err(error) => return Err(failed(error).into()),
            }
            drop(lock);
        }
        Err(failed(last).into())
    }

    /// Runs as the process of a shared mount: makes the namespaces, mounts the tree of `open`, calls `ready`,
    /// and admits commands until the last one ends. `open` gets the path of the mount. The process must have a
    /// single thread, and its starter the lock.
    pub fn keep<E: From<SharedMountError>>(
        &self,
        keeping: SharedMountPlan,
        open: impl FnOnce(MountedAt<'_>) -> Result<Arc<dyn Tree>, E>,
        ready: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), E> {
        let mut device = None;
        // The reason why it can't be opened can only be found while the host is the root.
        let stage = Stage::empty(keeping.identity, || device = Some(device_for_mount()))
            .map_err(SharedMountError::from)?;
        let refused = |blocked| SharedMountError::from(ContainerError::Blocked(blocked));
        let device =
            device.transpose().map_err(refused)?.ok_or(SharedMountError::Session(SessionError::Device {
                action: "the device was not opened",
                source: io::Error::from(io::ErrorKind::NotFound),
            }))?;
        let options =
            MountOptions { source: keeping.source.clone(), allow_other: true, ..MountOptions::default() };
        mount_device(device.as_fd(), Path::new(IMAGE), &options).map_err(SharedMountError::from)?;
        let of_system = |what: &str| {
            let what = what.to_owned();
            move |source| SharedMountError::Container(ContainerError::Step { what, source })
        };
        let hold = Hold::new(&stage).map_err(of_system("hold the mount open"))?;
        // Threads come from here on.
        signals::take_signals(&NOT_FOR_KEEPERS, |_| {}).map_err(of_system("block signals"))?;
        let directory = hold.directory();
        let tree = open(MountedAt { directory: &directory, name: hold.name() })?;
        let session = Session::start(device, tree, keeping.session).map_err(SharedMountError::from)?;
        // Older kernels let only root mount overlays; it works without.
        if keeping.is_fixed
            && hold.within(|image| mount_overlay(image, image, &keeping.source, Trusted::Shown)).is_ok()
        {
            session.put_below_overlay();
        }
        let namespaces = if keeping.apart {
            for_commands(|| hold.enter())
                .map_err(|blocked| SharedMountError::from(ContainerError::Blocked(blocked)))?
        } else {
            Namespaces::of("self").map_err(of_system("open the namespaces"))?
        };
        close_to_others();
        let socket = self.socket();
        let clients = Clients::listen(&socket, namespaces, &self.key, keeping.starter)
            .map_err(of_system("wait for commands"))?;
        if ready().is_ok() {
            clients.serve(|| self.retire()).map_err(of_system("wait for commands"))?;
        } else {
            // The clients are gone. The namespaces of commands have the mount, too.
            drop(clients);
            let _ = fs::remove_file(&socket);
        }
        hold.release();
        session.wait();
        Ok(())
    }

    /// Removes the socket unless a command is about to connect.
    fn retire(&self) -> Option<File> {
        // The holder of the lock asks here before it starts another mount process.
        let lock = self.lock(FlockOperation::NonBlockingLockExclusive).ok().flatten()?;
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.lock_file());
        Some(lock)
    }
}

/// A mount made by the process of a shared mount.
#[derive(Clone, Copy, Debug)]
pub struct MountedAt<'a> {
    /// Directory by which this process and its children reach the mount, through a descriptor.
    pub directory: &'a Path,
    /// Name of the mount in it.
    pub name: &'a Path,
}

/// Plan of a shared mount.
#[derive(Clone, Debug)]
pub struct SharedMountPlan {
    /// Identity of the commands.
    pub identity: Identity,
    /// Source of the mount, for the first column of `mount`.
    pub source: String,
    /// Session options.
    pub session: SessionOptions,
    /// True if the tree never changes, so that an overlay of the kernel may answer for it.
    pub is_fixed: bool,
    /// True if commands get a user namespace below that of the mount's process, and no rights over it.
    pub apart: bool,
    /// Process that started this one and becomes the first client.
    pub starter: u32,
}

/// Detaches from the parent, so that this process is reaped by init. It must have a single thread.
pub fn leave_parent() -> io::Result<()> {
    sys::leave_parent()
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof)
}

fn enter(namespaces: Namespaces) -> Result<Stage, ContainerError> {
    let joined = step("join the namespaces of the image");
    let enter = || -> io::Result<()> {
        namespaces.join()?;
        // Until it is the command it has the host, which commands of the same user must not get at.
        close_to_others();
        // Mounts of this command are private to it.
        Ok(sys::unshare(UnshareFlags::NEWNS)?)
    };
    enter().map_err(joined)?;
    Ok(Stage::joined())
}

/// The mount's own reference to itself, separate from the stage. Only this is on the stage; the root of the mount process
/// is the host's again, so that it opens the paths that its user named.
struct Hold(OwnedFd);

impl Hold {
    fn new(stage: &Stage) -> io::Result<Self> {
        let root = File::open("/")?;
        let host = stage.host(Path::new("/"));
        std::env::set_current_dir(&host)?;
        rustix::process::chroot(&host)?;
        Ok(Self(root.into()))
    }

    /// Returns the path of the stage for this process.
    fn directory(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Returns the name of the image.
    fn name(&self) -> &'static Path {
        Path::new(IMAGE.trim_start_matches('/'))
    }

    /// Sets the stage as the root directory of this process.
    fn enter(&self) -> io::Result<()> {
        rustix::process::fchdir(&self.0)?;
        Ok(rustix::process::chroot(".")?)
    }

    /// Calls a function with the path of the image.
    fn within<T>(&self, what: impl FnOnce(&Path) -> T) -> T {
        let image = self.name();
        // It can't fail: it is an open directory. If it did, the path would lead nowhere.
        let _ = rustix::process::fchdir(&self.0);
        let done = what(image);
        let _ = std::env::set_current_dir("/");
        done
    }

    /// Unmounts the image and the mounts above it.
    fn release(self) {
        self.within(|image| while unmount(image, UnmountFlags::DETACH).is_ok() {});
    }
}
