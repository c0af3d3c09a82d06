//! Runs a command with an image as its root directory.
//!
//! It takes two steps, because another process may have taken the first (see [`crate::shared_mount`]):
//!
//! ```text
//!  stage, a small tmpfs as root          build, for one command, in a mount namespace of its own
//!    .esker-old-root   the host            work/root    the image; if it lacks a mount point, a copy of the
//!    image             the image                        directory that lacks it, made of binds
//!    work              nothing yet         work/...     what is made for this command: /etc/passwd, ...
//! ```
//!
//! Then `work/root` becomes the root and the rest is unmounted. Images are never written: missing entries
//! are added beside them. The command replaces this process, so its exit code, signals and terminal are its own, and
//! nothing is left when it has ended.

pub mod accounts;
mod bind;
mod build;
mod devices;
pub mod environment;
mod filter;
mod kernel;
mod mapped;
pub(crate) mod resolve;
mod seal;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::mount_bind_recursive;

use crate::explain::{Blocked, Step};
use crate::namespaces::{self, Identity, because};
use crate::root::Owner;
use crate::{exec, root};

pub use bind::{BindOptions, Propagation};
pub(crate) use build::read_only;
pub use devices::Devices;
pub use environment::Environment;
pub use mapped::MappedIds;
pub use seal::{Contained, Seal, Share};

/// Path of the image on a stage.
pub(crate) const IMAGE: &str = "/image";
/// Path of a command's own root on a stage.
const WORK: &str = "/work";

/// A root directory could not be made, or the command not executed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The system denies this user namespaces.
    #[error("{0}")]
    Blocked(Blocked),
    /// A step failed.
    #[error("can't {what}")]
    Step {
        /// Operation that failed, and its object.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Neither the user nor the image names a command.
    #[error("there is no command, and the image has none of its own")]
    NoCommand,
    /// The request can't be fulfilled.
    #[error("{what}")]
    Impossible {
        /// Text of the error.
        what: String,
        /// Advice for the user.
        remedy: String,
    },
    /// An option can't have this value.
    #[error("{what}")]
    Usage {
        /// Text of the error.
        what: String,
        /// Advice for the user.
        remedy: Option<String>,
    },
    /// The image is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The command can't be executed.
    #[error("can't execute {program}: {reason}")]
    Execute {
        /// Name of the command.
        program: String,
        /// The exit code a shell would give.
        code: u8,
        /// Reason, as the kernel or the search of the program gives it.
        reason: String,
        /// Advice for the user.
        hint: String,
    },
}

/// Creates the error for a failed step.
pub(crate) fn step(what: impl Into<String>) -> impl FnOnce(io::Error) -> ContainerError {
    let what = what.into();
    move |source| ContainerError::Step { what, source }
}

/// A mount into the root, or a directory or file made there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Target, as a path in the image.
    pub target: PathBuf,
    /// Source of the mount.
    pub what: What,
    /// True if the command may run without it.
    pub need: Need,
}

/// Importance of a mount for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The user requested the mount: without it the command doesn't run.
    Asked,
    /// Containers usually have the mount: it replaces a file of the image, and is omitted if it fails. In a
    /// writable root a file is copied, so that programs can replace it.
    Usual,
}

/// Source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file or directory of the host, with all that is mounted below it.
    Bind {
        /// Path on the host, absolute and without links.
        from: PathBuf,
        /// Options of the bind mount.
        options: BindOptions,
    },
    /// An empty directory in memory, with these permissions.
    Scratch(u32),
    /// `/dev` with these devices.
    Devices(Devices),
    /// A file with this content.
    File(Vec<u8>),
    /// The image, in a root that is the host's.
    Image,
    /// `/proc` of the PID namespace, without what shows or changes the machine.
    Processes,
    /// `/sys` of the host, read-only, without what is mounted in it.
    System,
}

impl Mount {
    /// Creates a mount that the user requested.
    pub fn asked(target: impl Into<PathBuf>, what: What) -> Self {
        Self { target: target.into(), what, need: Need::Asked }
    }

    /// Creates a mount that containers usually have.
    pub fn usual(target: impl Into<PathBuf>, what: What) -> Self {
        Self { target: target.into(), what, need: Need::Usual }
    }
}

/// Plan of a root made from an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Mounts in order.
    pub mounts: Vec<Mount>,
    /// True if the root is writable; changes are in memory and gone with the command.
    pub writable: bool,
    /// True if the root is that of the host, not of the image.
    pub of_host: bool,
}

/// A mount that could not be made, and without which the command runs.
#[derive(Debug)]
pub struct LeftOut {
    /// Target of the mount.
    pub target: PathBuf,
    /// Error of the failed launch.
    pub error: ContainerError,
}

/// A namespace with the host and an image, in which a command's root is built.
#[derive(Debug)]
pub struct Stage {
    host: PathBuf,
    image: PathBuf,
    /// Users and groups of the command, if they aren't those of this process.
    ids: Option<MappedIds>,
    /// A user namespace with them.
    users: Option<OwnedFd>,
    /// Owner of what is made for the command.
    owner: Owner,
}

impl Stage {
    /// Creates a stage whose image is a directory. The process must have a single thread.
    pub fn with_directory(
        directory: &Path,
        identity: Identity,
        ids: Option<MappedIds>,
    ) -> Result<Self, ContainerError> {
        let stage = Self::empty(identity, || {})?.of(ids);
        namespaces::close_to_others();
        let from = stage.host(directory);
        let refused = || step(format!("show {} as the image", directory.display()));
        // Where the file system can't map owners, the files of an image are those of no user of the container.
        if ids.is_none() || mapped::bind(stage.users.as_ref(), &from, Path::new(IMAGE), true).is_err() {
            mount_bind_recursive(&from, IMAGE).map_err(|error| refused()(error.into()))?;
        }
        let options = BindOptions { read_only: true, no_suid: true, no_dev: true, ..BindOptions::default() };
        options.apply(Path::new(IMAGE), &stage).map_err(refused())?;
        Ok(stage)
    }

    /// Creates a stage whose image is mounted later. `entered` is called in its namespaces while the host is
    /// still the root.
    pub(crate) fn empty(identity: Identity, entered: impl FnOnce()) -> Result<Self, ContainerError> {
        namespaces::enter(identity).map_err(ContainerError::Blocked)?;
        entered();
        let host = root::enter_new_root().map_err(blocked(Step::Root))?;
        for directory in [IMAGE, WORK] {
            fs::create_dir(directory).map_err(blocked(Step::Root))?;
        }
        Ok(Self { host, image: IMAGE.into(), ids: None, users: None, owner: Owner::default() })
    }

    /// Returns the stage that this process has joined.
    pub(crate) fn joined() -> Self {
        let host = Path::new("/").join(root::OLD_ROOT);
        Self { host, image: IMAGE.into(), ids: None, users: None, owner: Owner::default() }
    }

    /// Returns a stage whose command has these users and groups. The process must have a single thread.
    #[must_use]
    pub fn of(self, ids: Option<MappedIds>) -> Self {
        let users = ids.and_then(|ids| mapped::users(ids, &self.host(Path::new("/proc"))));
        Self { ids, users, owner: Owner(ids.map(MappedIds::first)), ..self }
    }

    /// Returns the image's root directory.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Returns a stage whose image is the directory at this path of the image.
    pub fn below(self, path: &Path) -> Self {
        let image = self.image.join(path.strip_prefix("/").unwrap_or(path));
        Self { image, ..self }
    }

    /// Returns the path at which a path of the host is reachable now.
    pub fn host(&self, path: &Path) -> PathBuf {
        self.host.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// True if the image has this path, following links within it.
    pub fn has(&self, path: &Path) -> bool {
        resolve::within(self.image(), path).is_ok_and(|found| found.exists())
    }

    /// Reads a file of the image of at most `limit` bytes; `None` if it is missing.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let path = resolve::within(self.image(), path)?;
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(meta) if !meta.is_file() || meta.len() > limit => {
                return Err(io::Error::other(format!("it is not a file of at most {limit} bytes")));
            }
            Ok(_) => {}
        }
        let mut content = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(fs::File::open(&path)?, limit), &mut content)?;
        Ok(Some(content))
    }

    /// Returns true if the user namespace maps more than one user.
    pub fn has_several_users(&self) -> bool {
        let map = fs::read_to_string(self.host(Path::new("/proc/self/uid_map"))).unwrap_or_default();
        map.lines().count() > 1 || map.split_whitespace().nth(2).is_some_and(|count| count != "1")
    }

    /// Makes the root of `plan`, and enters it; returns the mounts that had to be left out.
    pub fn build(self, plan: &Plan) -> Result<Vec<LeftOut>, ContainerError> {
        build::build(&self, plan)
    }
}

fn blocked(at: Step) -> impl Fn(io::Error) -> ContainerError {
    move |error| ContainerError::Blocked(because(at)(error))
}

/// Enters the first of these directories that this process may enter. All but the last may be missing.
pub fn enter_directory(directories: &[&Path]) -> Result<PathBuf, ContainerError> {
    let mut refused = ContainerError::NoCommand;
    for directory in directories {
        match std::env::set_current_dir(directory) {
            Ok(()) if is_in_root() => return Ok(directory.to_path_buf()),
            Ok(()) => {
                let error = io::Error::other("it is outside of the container");
                refused = step(format!("change to {}", directory.display()))(error);
                std::env::set_current_dir("/").map_err(step("change to /"))?;
            }
            Err(error) => refused = step(format!("change to {}", directory.display()))(error),
        }
    }
    Err(refused)
}

/// True if the working directory is in the root: a link in `/proc` may lead to an open directory that isn't.
fn is_in_root() -> bool {
    rustix::process::getcwd(Vec::new()).is_ok_and(|path| path.to_bytes().starts_with(b"/"))
}

/// Executes the command; returns only if that failed.
pub fn execute(command: &[OsString], environment: &Environment) -> Result<Infallible, ContainerError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(ContainerError::NoCommand);
    };
    exec::refuse_process_links(program, environment.get("PATH"))
        .map_err(step(format!("execute {}", program.display())))?;
    let environment: Vec<(OsString, OsString)> =
        environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let failed = exec::execute(program, arguments, &environment);
    Err(ContainerError::Execute {
        program: program.display().to_string(),
        code: failed.code,
        reason: failed.reason,
        hint: failed.hint,
    })
}
