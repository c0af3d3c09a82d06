//! Implements `esker run IMAGE --at PATH`: shows the image at a path of the host's own root directory.
//!
//! The command has the host's files, variables and working directory, and the image besides, in a mount namespace of its
//! own. A directory that the host lacks is added there; nothing is created on the host.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use esker_run::container::environment::PREFIX;
use esker_run::container::{Environment, Mount, Plan, Stage, What, enter_directory};

use super::{ContainerRun, host_binds, say};
use crate::error::Failure;

/// Directories of the host that the kernel fills, where nothing can be shown.
const OF_THE_KERNEL: [&str; 3] = ["proc", "sys", "dev"];

impl ContainerRun {
    /// Enters the host's root with the image at `at`, and becomes the command.
    pub(super) fn become_command_at(
        &self,
        at: &Path,
        stage: impl FnOnce() -> Result<Stage, Failure>,
    ) -> Result<ExitCode, Failure> {
        self.check_at(at)?;
        let mut mounts = vec![Mount::asked(at, What::Image)];
        mounts.extend(host_binds::asked(&self.args)?);
        let mut environment = self.host_environment()?;
        let directory = self.args.pwd.clone().or_else(current_directory);
        let stage = stage()?;
        let seal = self.seal(&stage)?;
        stage.build(&Plan { mounts, writable: false, of_host: true })?;
        if let Some(seal) = seal {
            seal.close()?;
        }
        let root = Path::new("/");
        let entered = match (&self.args.pwd, &directory) {
            (Some(asked), _) => enter_directory(&[asked])?,
            (None, Some(current)) => enter_directory(&[current, root])?,
            (None, None) => enter_directory(&[root])?,
        };
        if directory.as_ref().is_some_and(|wanted| *wanted != entered) {
            say("the command starts in /, because the current directory can't be entered");
        }
        let entered = if entered.is_absolute() { Ok(entered) } else { std::env::current_dir() };
        environment.set("PWD", entered.unwrap_or_else(|_| root.into()));
        self.execute(&self.command, &environment)
    }

    fn check_at(&self, at: &Path) -> Result<(), Failure> {
        let wrong = |reason: &str| Failure::usage(format!("--at {}: {reason}", at.display()));
        if let Some(option) = self.args.for_own_root() {
            return Err(Failure::usage(format!(
                "{option} is for an image as the root directory, and --at shows it in the host's"
            ))
            .hint("leave out one of them; --bind, --env, --cleanenv, --pwd and --fakeroot work with --at"));
        }
        if !at.is_absolute() || at.components().any(|part| part == Component::ParentDir) {
            return Err(wrong("it is not an absolute path without ..").hint("as in --at /opt/stack"));
        }
        match at.components().nth(1) {
            None => Err(wrong("that is the root directory")
                .hint("leave out --at to have the image as the root directory")),
            Some(Component::Normal(first)) if OF_THE_KERNEL.iter().any(|name| OsStr::new(name) == first) => {
                Err(wrong("the kernel has that directory").hint("as in --at /opt/stack"))
            }
            _ if self.command.is_empty() => Err(Failure::usage("a COMMAND is missing")
                .hint("as in: esker run IMAGE --at /opt/stack -- /opt/stack/bin/tool")),
            _ => Ok(()),
        }
    }

    /// Returns the host's variables, as the command would have them without a container.
    fn host_environment(&self) -> Result<Environment, Failure> {
        let mut environment = Environment::of_host(self.args.cleanenv);
        let wished = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?.to_vec();
            Some((OsStr::from_bytes(&name).to_owned(), value))
        });
        let asked: Vec<(OsString, OsString)> = self.asked_variables()?;
        for (name, value) in wished.chain(asked) {
            environment.insist(name, value);
        }
        environment.set("ESKER_CONTAINER", self.image.clone());
        Ok(environment)
    }
}

/// Returns the current directory, by the shell's path if that is correct.
fn current_directory() -> Option<PathBuf> {
    let place = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let real = std::env::current_dir().ok()?;
    let of_shell = std::env::var_os("PWD").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(of_shell.filter(|path| place(path).is_some_and(|it| Some(it) == place(&real))).unwrap_or(real))
}
