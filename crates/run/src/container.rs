//! A command whose root directory is an image.
//!
//! It takes two steps, because the first may have been taken by somebody else (see [`crate::keeper`]):
//!
//! ```text
//!  stage, a small tmpfs as root          build, for one command, in a mount namespace of its own
//!    .esker-old-root   the host            work/root    the image; if it lacks a mount point, a copy of the
//!    image             the image                        directory that lacks it, made of binds
//!    work              nothing yet         work/...     what is made for this command: /etc/passwd, ...
//! ```
//!
//! Then `work/root` becomes the root and the rest is let go. Images are never written: what is missing in one
//! is added beside it. The command replaces this process, so its exit code, signals and terminal are its own, and
//! nothing is left when it has ended.

pub mod accounts;
mod build;
mod devices;
pub mod environment;
mod resolve;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, mount_bind_recursive, mount_remount};

use crate::explain::{Blocked, Step};
use crate::inside::{NOT_EXECUTABLE, NOT_FOUND};
use crate::namespaces::{self, Identity, because};
use crate::root;

pub use environment::Environment;

/// Where the image is, on a stage.
pub(crate) const IMAGE: &str = "/image";
/// Where a command's own root is made, on a stage.
const WORK: &str = "/work";

/// A root directory could not be made, or the command not executed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The system doesn't let this user make namespaces.
    #[error("{0}")]
    Blocked(Blocked),
    /// A step failed.
    #[error("can't {what}")]
    Step {
        /// What was tried, on which object.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Nobody says what to run.
    #[error("there is no command, and the image has none of its own")]
    NoCommand,
    /// It can't work as asked.
    #[error("{what}")]
    Impossible {
        /// Why not.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The command can't be executed.
    #[error("can't execute {program} in the image")]
    Execute {
        /// The command.
        program: String,
        /// The exit code a shell would give.
        code: u8,
        /// Why not.
        source: io::Error,
    },
}

/// Names a failed step.
pub(crate) fn step(what: impl Into<String>) -> impl FnOnce(io::Error) -> ContainerError {
    let what = what.into();
    move |source| ContainerError::Step { what, source }
}

/// Something that is mounted into the root, or made there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where, as a path in the image.
    pub target: PathBuf,
    /// What.
    pub what: What,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file or directory of the host, with all that is mounted below it.
    Bind {
        /// Its path on the host, absolute and without links.
        from: PathBuf,
        /// Nothing may be written through it. Mounts below it keep what they allow.
        read_only: bool,
    },
    /// An empty directory in memory, with these permissions.
    Scratch(u32),
    /// `/dev` with what every program expects, and these besides, which must be on the host.
    Devices(Vec<PathBuf>),
    /// A file with this content.
    File(Vec<u8>),
}

/// How a root is made from an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is mounted into it, in this order.
    pub mounts: Vec<Mount>,
    /// The root can be written; what is written is in memory and gone with the command.
    pub writable: bool,
}

/// A namespace that has the host and an image, but is nobody's root yet.
#[derive(Debug)]
pub struct Stage {
    host: PathBuf,
    image: PathBuf,
}

impl Stage {
    /// Makes a stage whose image is a directory. The process must have a single thread.
    pub fn with_directory(directory: &Path, identity: Identity) -> Result<Self, ContainerError> {
        let stage = Self::empty(identity, || {})?;
        let from = stage.host(directory);
        let refused = || format!("show {} as the image", directory.display());
        mount_bind_recursive(&from, IMAGE).map_err(|error| step(refused())(error.into()))?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let flags = flags | build::kept_flags(Path::new(IMAGE)).map_err(step(refused()))?;
        mount_remount(IMAGE, flags, c"").map_err(|error| step(refused())(error.into()))?;
        Ok(stage)
    }

    /// Makes a stage whose image is still to be mounted. `entered` is called in its namespaces while the host is
    /// still the root.
    pub(crate) fn empty(identity: Identity, entered: impl FnOnce()) -> Result<Self, ContainerError> {
        namespaces::enter(identity).map_err(ContainerError::Blocked)?;
        entered();
        let host = root::enter_new_root().map_err(blocked(Step::Root))?;
        for directory in [IMAGE, WORK] {
            fs::create_dir(directory).map_err(blocked(Step::Root))?;
        }
        Ok(Self { host, image: IMAGE.into() })
    }

    /// The stage that this process has joined.
    pub(crate) fn joined() -> Self {
        Self { host: Path::new("/").join(root::OLD_ROOT), image: IMAGE.into() }
    }

    /// The image's root directory.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The same, but the image is only what is at this path of it.
    pub fn below(self, path: &Path) -> Self {
        let image = self.image.join(path.strip_prefix("/").unwrap_or(path));
        Self { image, ..self }
    }

    /// Where a path of the host is now.
    pub fn host(&self, path: &Path) -> PathBuf {
        self.host.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether the image has this, following links within it.
    pub fn has(&self, path: &Path) -> bool {
        resolve::within(self.image(), path).is_ok_and(|found| found.exists())
    }

    /// Reads a file of the image that is at most `limit` bytes long; `None` if there is none.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let path = resolve::within(self.image(), path)?;
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(meta) if !meta.is_file() || meta.len() > limit => {
                return Err(io::Error::other(format!("it is no file of at most {limit} bytes")));
            }
            Ok(_) => {}
        }
        let mut content = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(fs::File::open(&path)?, limit), &mut content)?;
        Ok(Some(content))
    }

    /// Makes the root that `plan` describes, and enters it.
    pub fn build(self, plan: &Plan) -> Result<(), ContainerError> {
        build::build(&self, plan)
    }
}

fn blocked(at: Step) -> impl Fn(io::Error) -> ContainerError {
    move |error| ContainerError::Blocked(because(at)(error))
}

/// Becomes the command; returns only if that failed.
pub fn execute(
    command: &[OsString],
    environment: &Environment,
    directory: &Path,
) -> Result<Infallible, ContainerError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(ContainerError::NoCommand);
    };
    std::env::set_current_dir(directory).map_err(step(format!("change to {}", directory.display())))?;
    let source = Command::new(program).args(arguments).env_clear().envs(environment.iter()).exec();
    let code = if source.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    Err(ContainerError::Execute { program: Path::new(program).display().to_string(), code, source })
}
