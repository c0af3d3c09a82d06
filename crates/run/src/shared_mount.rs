//! One mount of an image for all commands of a job that use it.
//!
//! A keeper is a process that lives in the namespaces of a stage, mounts the image there, serves it, and admits commands:
//!
//! ```text
//!  esker run (1st)                        keeper                              esker run (2nd, 3rd, ...)
//!     │ start ───────────────────────────► namespaces, mount, serve
//!     │ connect ─────────────────────────► record the client ◄────────────────────── connect │
//!     │ ◄──────────── namespaces ──────────┤├─────────────── namespaces ───────────────► │
//!     │ join them, a mount namespace of    │                             the same         │
//!     │ one's own, become the command      │                                              │
//!     ▼ end                                ▼ the last one has ended: lets go of the mount ▼ end
//! ```
//!
//! Commands of a job are in one user namespace, so they may read each other's memory, as MPI does within a node. This
//! namespace is a child of the keeper's, so that no command can trace the keeper or its scout, or reach the host's files
//! through their root directories in `/proc`. Processes that a command leaves running keep the mount: the keeper only
//! drops its own reference, and ends when the kernel reports that the last one is gone. Commands of a job find the keeper
//! through a socket whose name is made of image and job ([`Key`]); a lock beside it decides which command starts one.
//! A keeper that is killed leaves both behind, and the next one takes them over.

mod clients;
mod handover;
mod key;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_fuse::mount::{Trusted, mount_device, mount_overlay};
use esker_fuse::{MountError, MountOptions, Session, SessionError, SessionOptions};
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

/// Attempts to join a keeper that ends meanwhile and is followed by another; so many in a row are not a coincidence.
const ATTEMPTS: usize = 16;

/// Signals that a scheduler or a terminal sends to a whole job. The command may need its files to save its work, so a
/// keeper ends with the last command, and not before.
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

/// Address of a job's keeper.
#[derive(Clone, Debug)]
pub struct SharedMountAddress {
    folder: PathBuf,
    key: Key,
}

/// A keeper could not do its work.
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
    /// Makes the address of the keeper with this key, in a folder that only this user can write.
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

    /// Takes the lock; `None` if it is taken and `how` doesn't wait.
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

    /// Joins the namespaces of the job's keeper; `start` starts one if there is none, and returns when it is ready.
    /// The process must have a single thread.
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

    /// Becomes the keeper: makes the namespaces, mounts the tree of `open`, calls `ready`, and admits commands until
    /// the last of them has ended; `starter` counts as one of them. `open` gets the path of the mount. The process
    /// must have a single thread, and its starter the lock.
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

    /// Removes the socket, so that no command finds this keeper, unless one is about to connect.
    fn retire(&self) -> Option<File> {
        // The holder of the lock asks here before it starts another keeper.
        let lock = self.lock(FlockOperation::NonBlockingLockExclusive).ok().flatten()?;
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.lock_file());
        Some(lock)
    }
}

/// Mount of a keeper.
#[derive(Clone, Copy, Debug)]
pub struct MountedAt<'a> {
    /// Directory that this process finds by this path, and so do programs that it starts until they call exec: they
    /// have another root than the commands, and reach it through a descriptor.
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
    /// Commands get a user namespace below that of the keeper, so that they have no rights over it.
    pub apart: bool,
    /// The process that started the keeper and is to become a command.
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

/// The keeper's own reference to the mount. Only this is on the stage; the keeper's root is the host's again, so that
/// it opens the paths that its user named.
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

    /// Returns the name of the image there.
    fn name(&self) -> &'static Path {
        Path::new(IMAGE.trim_start_matches('/'))
    }

    /// Makes the stage the root of this process again.
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

    /// Unmounts it, and the mounts above it.
    fn release(self) {
        self.within(|image| while unmount(image, UnmountFlags::DETACH).is_ok() {});
    }
}
