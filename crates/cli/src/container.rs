//! `esker run` with an image as the root directory: options of the command line.

mod binds;
mod root;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use esker_run::Identity;
use esker_run::container::{Contained, ContainerError, LeftOut, MappedIds, Share, Stage};
use esker_run::launch::{Launch, Notice};

use crate::error::{Context, Failure, Kind, chain, warn};
use crate::output::choice;
use crate::process::limits::OpenFiles;

pub(crate) use root::{Kept, Root};

/// Options for commands in containers.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ContainerArgs {
    /// Bind mount of a host file or directory at DST (default SRC), as in `--bind /scratch/data:/data:ro,noexec`;
    /// several are separated by commas
    #[arg(long, short = 'B', value_name = "SRC[:DST[:OPT,…]]", help_heading = HEADING)]
    bind: Vec<OsString>,

    /// Mount the image at this path of the host's root directory, for software stacks, as in `esker run stack.sqfs --at
    /// /opt/stack -- /opt/stack/bin/tool`
    #[arg(long, value_name = "PATH", help_heading = HEADING)]
    at: Option<PathBuf>,

    /// Make the whole image writable, in memory; changes are lost at the end
    #[arg(long, help_heading = HEADING)]
    writable_tmpfs: bool,

    /// Environment variable to set; ESKER_ENV_NAME=VALUE in the environment does the same
    #[arg(long, value_name = "NAME=VALUE", help_heading = HEADING)]
    env: Vec<OsString>,

    /// Start with a clean environment
    #[arg(long, help_heading = HEADING)]
    cleanenv: bool,

    /// Home directory: SRC of the host, at DST [default: the user's own]
    #[arg(long, value_name = "SRC[:DST]", conflicts_with = "no_home", help_heading = HEADING)]
    home: Option<OsString>,

    /// Do not mount the home directory
    #[arg(long, help_heading = HEADING)]
    no_home: bool,

    /// Mount only what --bind names: neither /tmp, /var/tmp, home nor the current directory
    #[arg(long, help_heading = HEADING)]
    no_bind: bool,

    /// Keep the host from the image: empty directories in memory for /tmp, /var/tmp and home, no current directory, own
    /// processes, devices and IPC, a clean environment; root of it isn't root of the host
    #[arg(long, help_heading = HEADING)]
    contain: bool,

    /// Share this with the caller in spite of --contain: terminal (typing into it), descriptors, keyring, ipc,
    /// environment
    #[arg(long, value_name = "WHAT,…", value_parser = choice(SHARES), value_delimiter = ',', requires = "contain", help_heading = HEADING)]
    share: Vec<Share>,

    /// Working directory [default: the current one if it is mounted, the image's, home]
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    pwd: Option<PathBuf>,

    /// Run as root of a user namespace; the user owns the files that the command creates
    #[arg(long, help_heading = HEADING)]
    fakeroot: bool,

    /// Run the image's entry point, with COMMAND as its arguments
    #[arg(long, help_heading = HEADING)]
    entrypoint: bool,

    /// Mount the host's GPU devices and libraries
    #[arg(long, help_heading = HEADING)]
    gpu: bool,

    /// Mount the host's MPI and network libraries, and their devices
    #[arg(long, help_heading = HEADING)]
    mpi: bool,

    /// Mount the files and devices that the rules in /etc/esker/hooks/NAME.hook, or in this FILE, list
    #[arg(long, value_name = "NAME|FILE", help_heading = HEADING)]
    hook: Vec<String>,
}

impl ContainerArgs {
    /// Returns the restrictions of a command that must not reach the host.
    fn contained(&self) -> Option<Contained> {
        self.contain.then(|| Contained { shared: self.share.clone() })
    }

    /// Returns the users of a command of root that must not reach the host.
    pub(crate) fn ids(&self) -> Option<MappedIds> {
        self.contain.then(MappedIds::of_root).flatten()
    }

    /// Returns the command's user in its namespace.
    pub(crate) fn identity(&self) -> Identity {
        if self.fakeroot || self.ids().is_some() { Identity::Root } else { Identity::Same }
    }

    /// Returns the first given option that needs the image as the root directory.
    fn for_own_root(&self) -> Option<&'static str> {
        self.all_given().find(|option| !WITH_AT.contains(option))
    }

    /// Returns the first given option, if the user gave one.
    pub(crate) fn given(&self) -> Option<&'static str> {
        self.all_given().next()
    }

    fn all_given(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--bind", !self.bind.is_empty()),
            ("--at", self.at.is_some()),
            ("--writable-tmpfs", self.writable_tmpfs),
            ("--env", !self.env.is_empty()),
            ("--cleanenv", self.cleanenv),
            ("--home", self.home.is_some()),
            ("--no-home", self.no_home),
            ("--no-bind", self.no_bind),
            ("--contain", self.contain),
            ("--pwd", self.pwd.is_some()),
            ("--fakeroot", self.fakeroot),
            ("--entrypoint", self.entrypoint),
            ("--gpu", self.gpu),
            ("--mpi", self.mpi),
            ("--hook", !self.hook.is_empty()),
        ];
        options.into_iter().filter_map(|(option, given)| given.then_some(option))
    }
}

/// Options that work with `--at`.
const WITH_AT: [&str; 6] = ["--bind", "--at", "--env", "--cleanenv", "--pwd", "--fakeroot"];

const HEADING: &str = "Containers";

/// Part of the host that a contained command may share with its caller.
const SHARES: &[(&str, Share)] = &[
    ("terminal", Share::Terminal),
    ("descriptors", Share::Descriptors),
    ("keyring", Share::Keyring),
    ("ipc", Share::Ipc),
    ("environment", Share::Environment),
];

/// Makes the failure of starting a container.
pub(crate) fn of_container(error: &ContainerError) -> Failure {
    match error {
        ContainerError::Blocked(blocked) => Failure::failed(blocked.to_string()).hint(blocked.remedy.clone()),
        ContainerError::Impossible { what, remedy } => Failure::failed(what.clone()).hint(remedy.clone()),
        ContainerError::NoCommand => Failure::usage(chain(error)).hint("add `-- COMMAND`"),
        ContainerError::Execute { code, hint, .. } => {
            Failure::failed(chain(error)).with_code(*code).hint(hint.clone())
        }
        ContainerError::Step { .. } => Failure::failed(chain(error)),
        ContainerError::Usage { what, remedy } => {
            let failure = Failure::usage(what.clone());
            remedy.iter().fold(failure, |failure, remedy| failure.hint(remedy.clone()))
        }
        ContainerError::Damaged(what) => Failure::new(Kind::Damaged, what.clone()),
    }
}

impl From<ContainerError> for Failure {
    fn from(error: ContainerError) -> Self {
        of_container(&error)
    }
}

/// A command in a container.
pub(crate) struct ContainerRun {
    pub(crate) args: ContainerArgs,
    /// Image as the user named it.
    pub(crate) image: OsString,
    pub(crate) command: Vec<OsString>,
    pub(crate) files: OpenFiles,
}

impl ContainerRun {
    /// Enters the container that `stage` prepared, and executes the command.
    pub(crate) fn become_command(
        self,
        stage: impl FnOnce() -> Result<Stage, Failure>,
    ) -> Result<ExitCode, Failure> {
        let Self { args, image, command, files } = self;
        let options = args.options(command.is_empty())?;
        let launch = Launch { options, image, command, before: Box::new(move || files.give_back()), notify };
        match launch.become_command(stage)? {}
    }
}

/// Prints what the user of a container should know.
fn notify(notice: Notice) {
    warn(Some(&match notice {
        Notice::Text(text) => text,
        Notice::LeftOut(LeftOut { target, error }) => {
            format!("the container is without {}: {}", target.display(), chain(&error))
        }
    }));
}

/// Shows a directory of the host as the root directory.
pub(crate) fn directory(container_run: ContainerRun, directory: &Path) -> Result<ExitCode, Failure> {
    let directory = std::fs::canonicalize(directory)
        .context(Kind::Failed, format!("can't find the directory {}", directory.display()))?;
    let (identity, ids) = (container_run.args.identity(), container_run.args.ids());
    container_run.become_command(|| Ok(Stage::with_directory(&directory, identity, ids)?))
}
