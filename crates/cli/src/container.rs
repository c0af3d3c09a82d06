//! `esker run` with an image as the root directory: options of the command line, and defaults for users of a cluster.

mod apptainer;
mod binds;
mod hooks;
mod host_binds;
mod root;
mod stack;
mod user;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use esker_oci::Config;
use esker_run::container::environment::Origins;
use esker_run::container::{
    Contained, ContainerError, Environment, LeftOut, MappedIds, Plan, Seal, Share, Stage, execute,
};
use esker_run::{Identity, missing_ids};
use rustix::process::geteuid;

use crate::error::{Context, Failure, Kind, chain, warn};
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
    #[arg(long, value_name = "WHAT,…", value_enum, value_delimiter = ',', requires = "contain", help_heading = HEADING)]
    share: Vec<Shared>,

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
        let shared = self.share.iter().map(|shared| (*shared).into()).collect();
        self.contain.then_some(Contained { shared })
    }

    /// Returns the users of a command of root that must not reach the host.
    pub(crate) fn ids(&self) -> Option<MappedIds> {
        self.contain.then(MappedIds::of_root).flatten()
    }

    /// Returns the first given option that needs the image as the root directory.
    fn for_own_root(&self) -> Option<&'static str> {
        let options = [
            ("--writable-tmpfs", self.writable_tmpfs),
            ("--home", self.home.is_some()),
            ("--no-home", self.no_home),
            ("--no-bind", self.no_bind),
            ("--contain", self.contain),
            ("--entrypoint", self.entrypoint),
            ("--gpu", self.gpu),
            ("--mpi", self.mpi),
            ("--hook", !self.hook.is_empty()),
        ];
        options.into_iter().find_map(|(option, given)| given.then_some(option))
    }

    /// Returns the first given option, if the user gave one.
    pub(crate) fn given(&self) -> Option<&'static str> {
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
        options.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

const HEADING: &str = "Containers";

/// Something that a contained command can share with its caller.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Shared {
    Terminal,
    Descriptors,
    Keyring,
    Ipc,
    Environment,
}

impl From<Shared> for Share {
    fn from(shared: Shared) -> Self {
        match shared {
            Shared::Terminal => Share::Terminal,
            Shared::Descriptors => Share::Descriptors,
            Shared::Keyring => Share::Keyring,
            Shared::Ipc => Share::Ipc,
            Shared::Environment => Share::Environment,
        }
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
    pub(crate) fn identity(&self) -> Identity {
        let is_root = self.args.fakeroot || self.args.ids().is_some();
        if is_root { Identity::Root } else { Identity::Same }
    }

    /// Enters the container that `stage` prepared, and executes the command.
    pub(crate) fn become_command(
        self,
        stage: impl FnOnce() -> Result<Stage, Failure>,
    ) -> Result<ExitCode, Failure> {
        if let Some(at) = &self.args.at {
            return self.become_command_at(at, stage);
        }
        // All facts of the host are read before the namespaces hide it.
        let user = user::User::of_host(self.identity());
        let host_binds = host_binds::HostBinds::new(&self.args, &user)?;
        let hooks = hooks::load(&self.args)?;
        let missing_ids = (self.args.fakeroot && self.args.writable_tmpfs).then(missing_ids);
        let (contained, ids) = (self.args.contained(), self.args.ids());
        if contained.is_some() && ids.is_none() && geteuid().is_root() {
            say(
                "root of the container is root of this machine or container, which has no other ids or rights to map them",
            );
        }
        let stage = stage()?.of(ids);
        if let Some(missing) = missing_ids.filter(|_| !stage.has_several_users()) {
            warn_of_one_user(missing);
        }
        if let Some(contained) = &contained {
            contained.enter(&stage)?;
        }
        let seal = self.seal(&stage)?;
        let config = config_of(&stage)?;
        let mut environment = self.environment(&config, host_binds.home())?;
        environment.set("ESKER_CONTAINER", self.image.clone());
        hooks.apply_to(&mut environment);
        let mut mounts = host_binds.mounts(&stage, &user);
        mounts.extend(hooks.mounts());
        let plan = Plan { mounts, writable: self.args.writable_tmpfs, of_host: false };
        let mut command = self.command_line(&stage, &config);
        apptainer::source(&mut command, &stage, &mut environment);
        for LeftOut { target, error } in stage.build(&plan)? {
            say(format!("the container is without {}: {}", target.display(), chain(&error)));
        }
        if let Some(seal) = seal {
            seal.close()?;
        }
        if let Some(contained) = &contained {
            contained.restrict()?;
        }
        let directory = host_binds.enter_start(config.working_dir.as_deref().map(Path::new))?;
        environment.set("PWD", directory);
        self.execute(&command, &environment)
    }

    /// Prepares the last user namespace of a command that would be root of the one of its mounts, or is contained.
    fn seal(&self, stage: &Stage) -> Result<Option<Seal>, Failure> {
        let is_sealed = self.args.contain || self.args.fakeroot;
        Ok(is_sealed.then(|| Seal::prepare(stage)).transpose()?)
    }

    fn execute(&self, command: &[OsString], environment: &Environment) -> Result<ExitCode, Failure> {
        self.files.give_back();
        match execute(command, environment)? {}
    }

    fn environment(&self, config: &Config, home: OsString) -> Result<Environment, Failure> {
        let image = config.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let host = std::env::vars_os().collect();
        let own = vec![("HOME".into(), home)];
        Ok(Environment::new(Origins {
            host,
            clean: self.args.cleanenv
                || self.args.contained().is_some_and(|it| !it.shares(Share::Environment)),
            image,
            own,
            asked: self.asked_variables()?,
        }))
    }

    /// Returns the variables that `--env` sets.
    fn asked_variables(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let pair = |text: &OsString| {
            let bytes = text.clone().into_vec();
            let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
            let (name, value) = bytes.split_at(at);
            Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.get(1..)?.to_vec())))
        };
        let wrong = |text: &OsString| {
            Failure::usage(format!("--env {}: it is not NAME=VALUE", text.display()))
                .hint("as in --env LANG=C.UTF-8")
        };
        self.args.env.iter().map(|text| pair(text).ok_or_else(|| wrong(text))).collect()
    }

    /// Returns the command, or the image's default command.
    fn command_line(&self, stage: &Stage, config: &Config) -> Vec<OsString> {
        let own = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let has_entry = !config.entrypoint.is_empty() || !config.cmd.is_empty();
        let apptainer = !has_entry && stage.has(Path::new(apptainer::RUN));
        let mut line = if (self.command.is_empty() || self.args.entrypoint) && apptainer {
            vec![apptainer::RUN.into()]
        } else if self.command.is_empty() || self.args.entrypoint {
            own(&config.entrypoint)
        } else {
            Vec::new()
        };
        if self.command.is_empty() {
            line.extend(own(&config.cmd));
        }
        line.extend(self.command.iter().cloned());
        line
    }
}

fn config_of(stage: &Stage) -> Result<Config, Failure> {
    let path = Path::new(Config::PATH);
    let json = stage
        .read(path, Config::LEN_MAX)
        .context(Kind::Damaged, format!("can't read the configuration {} of the image", Config::PATH))?;
    let Some(json) = json else { return Ok(Config::default()) };
    let config = Config::parse(&json)
        .map_err(|error| Failure::new(Kind::Damaged, format!("{} of the image: {error}", Config::PATH)))?;
    Ok(config)
}

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
    }
}

impl From<ContainerError> for Failure {
    fn from(error: ContainerError) -> Self {
        of_container(&error)
    }
}

/// Shows a directory of the host as the root directory.
pub(crate) fn directory(container_run: ContainerRun, directory: &Path) -> Result<ExitCode, Failure> {
    let directory = std::fs::canonicalize(directory)
        .context(Kind::Failed, format!("can't find the directory {}", directory.display()))?;
    let (identity, ids) = (container_run.identity(), container_run.args.ids());
    container_run.become_command(|| Ok(Stage::with_directory(&directory, identity, ids)?))
}

/// Warns about the limits of root in a namespace with only this user.
fn warn_of_one_user(missing: Option<String>) {
    let reason = missing.unwrap_or_else(|| "newuidmap and newgidmap refused to map them".into());
    say(format!(
        "--fakeroot has no other users than root, so chown to others and setgroups fail: {reason}. Ask the administrator for \
         `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER` and the programs newuidmap and newgidmap; \
         apt-get works without with `-o APT::Sandbox::User=root`"
    ));
}

/// Prints a warning; the command runs nevertheless.
fn say(text: impl Into<String>) {
    warn(Some(&text.into()));
}
