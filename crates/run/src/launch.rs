//! Runs a command with an image as its root directory, or in the host's: chooses what of the host it sees, its variables and
//! where it starts, for users of a cluster.

mod apptainer;
mod at_path;
mod host_binds;
mod host_parts;
mod user;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use esker_oci::Config;
use rustix::process::geteuid;

use crate::container::environment::Origins;
use crate::container::{
    Contained, ContainerError, Environment, LeftOut, MappedIds, Mount, Plan, Seal, Share, Stage, execute,
};
use crate::namespaces::Identity;
use crate::subordinate::missing_ids;

pub use host_parts::WantedRules;

/// Options of a command in a container.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// Mounts that the user requested.
    pub mounts: Vec<Mount>,
    /// Path of the image in the host's root directory; the image is the root directory if `None`.
    pub at: Option<PathBuf>,
    /// True if the whole image is writable, in memory.
    pub writable: bool,
    /// Variables that the user sets.
    pub variables: Vec<(OsString, OsString)>,
    /// True if the host's variables are left out.
    pub clean: bool,
    /// Directory of the host that is the home directory, and its target.
    pub home: Option<(PathBuf, Option<PathBuf>)>,
    /// True if the home directory isn't mounted.
    pub no_home: bool,
    /// True if only [`Self::mounts`] are mounted: no home, temporary or current directory.
    pub no_bind: bool,
    /// Restrictions of a command that must not reach the host.
    pub contained: Option<Contained>,
    /// Users of a contained command of root.
    pub ids: Option<MappedIds>,
    /// Directory in which the command starts.
    pub directory: Option<PathBuf>,
    /// True if the command is root of a user namespace.
    pub fakeroot: bool,
    /// True if the image's entry point runs, with the command as its arguments.
    pub entrypoint: bool,
    /// Rules for parts of the host to mount.
    pub rules: Vec<WantedRules>,
}

/// A notice to the user; the command runs nevertheless.
#[derive(Debug)]
pub enum Notice {
    /// A sentence.
    Text(String),
    /// A mount that the container lacks.
    LeftOut(LeftOut),
}

/// Receiver of notices.
pub type Notify = fn(Notice);

/// A command in a container.
pub struct Launch {
    /// Options of the user.
    pub options: LaunchOptions,
    /// Image as the user named it.
    pub image: OsString,
    /// Command with its arguments; that of the image if empty.
    pub command: Vec<OsString>,
    /// Called right before the command is executed.
    pub before: Box<dyn Fn()>,
    /// Called for what the user should know.
    pub notify: Notify,
}

impl LaunchOptions {
    /// Returns the command's user in its namespace.
    pub fn identity(&self) -> Identity {
        if self.fakeroot || self.ids.is_some() { Identity::Root } else { Identity::Same }
    }

    fn shares(&self, what: Share) -> bool {
        self.contained.as_ref().is_none_or(|contained| contained.shares(what))
    }
}

impl Launch {
    /// Enters the container that `stage` prepared, and executes the command; returns only if that failed.
    pub fn become_command<E: From<ContainerError>>(
        self,
        stage: impl FnOnce() -> Result<Stage, E>,
    ) -> Result<Infallible, E> {
        if let Some(at) = &self.options.at {
            return self.become_command_at(at, stage);
        }
        // All facts of the host are read before the namespaces hide it.
        let options = &self.options;
        let user = user::User::of_host(options.identity());
        let host_binds = host_binds::HostBinds::new(options, &user, self.notify)?;
        let parts = host_parts::load(&options.rules, self.notify)?;
        let missing_ids = (options.fakeroot && options.writable).then(missing_ids);
        let contained = &options.contained;
        if contained.is_some() && options.ids.is_none() && geteuid().is_root() {
            self.say(
                "root of the container is root of this machine or container, which has no other ids or rights to map them",
            );
        }
        let stage = stage()?.of(options.ids);
        if let Some(missing) = missing_ids.filter(|_| !stage.has_several_users()) {
            self.say(only_root(missing));
        }
        if let Some(contained) = contained {
            contained.enter(&stage)?;
        }
        let seal = self.seal(&stage)?;
        let config = config_of(&stage)?;
        let mut environment = self.environment(&config, host_binds.home());
        environment.set("ESKER_CONTAINER", self.image.clone());
        parts.apply_to(&mut environment);
        let mut mounts = host_binds.mounts(&stage, &user);
        mounts.extend(parts.mounts());
        let plan = Plan { mounts, writable: options.writable, of_host: false };
        let mut command = self.command_line(&stage, &config);
        apptainer::source(&mut command, &stage, &mut environment);
        stage.build(&plan)?.into_iter().map(Notice::LeftOut).for_each(self.notify);
        if let Some(seal) = seal {
            seal.close()?;
        }
        if let Some(contained) = contained {
            contained.restrict()?;
        }
        let directory = host_binds.enter_start(config.working_dir.as_deref().map(Path::new))?;
        environment.set("PWD", directory);
        Ok(self.execute(&command, &environment)?)
    }

    /// Prepares the last user namespace of a command that would be root of the one of its mounts, or is contained.
    fn seal(&self, stage: &Stage) -> Result<Option<Seal>, ContainerError> {
        let is_sealed = self.options.contained.is_some() || self.options.fakeroot;
        is_sealed.then(|| Seal::prepare(stage)).transpose()
    }

    fn execute(&self, command: &[OsString], environment: &Environment) -> Result<Infallible, ContainerError> {
        (self.before)();
        execute(command, environment)
    }

    fn environment(&self, config: &Config, home: OsString) -> Environment {
        let image = config.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Environment::new(Origins {
            host: std::env::vars_os().collect(),
            clean: self.options.clean || !self.options.shares(Share::Environment),
            image,
            own: vec![("HOME".into(), home)],
            asked: self.options.variables.clone(),
        })
    }

    fn say(&self, text: impl Into<String>) {
        (self.notify)(Notice::Text(text.into()));
    }

    /// Returns the command, or the image's default command.
    fn command_line(&self, stage: &Stage, config: &Config) -> Vec<OsString> {
        let own = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let has_entry = !config.entrypoint.is_empty() || !config.cmd.is_empty();
        let apptainer = !has_entry && stage.has(Path::new(apptainer::RUN));
        let mut line = if (self.command.is_empty() || self.options.entrypoint) && apptainer {
            vec![apptainer::RUN.into()]
        } else if self.command.is_empty() || self.options.entrypoint {
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

fn config_of(stage: &Stage) -> Result<Config, ContainerError> {
    let json = stage.read(Path::new(Config::PATH), Config::LEN_MAX).map_err(|error| {
        damaged(format!("can't read the configuration {} of the image", Config::PATH), error)
    })?;
    let Some(json) = json else { return Ok(Config::default()) };
    Config::parse(&json).map_err(|error| damaged(format!("{} of the image", Config::PATH), error))
}

fn damaged(what: String, error: impl Display) -> ContainerError {
    ContainerError::Damaged(format!("{what}: {error}"))
}

/// Returns the notice about the limits of root in a namespace with only this user.
fn only_root(missing: Option<String>) -> String {
    let reason = missing.unwrap_or_else(|| "newuidmap and newgidmap refused to map them".into());
    format!(
        "--fakeroot has no other users than root, so chown to others and setgroups fail: {reason}. Ask the administrator for \
         `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER` and the programs newuidmap and newgidmap; \
         apt-get works without with `-o APT::Sandbox::User=root`"
    )
}
