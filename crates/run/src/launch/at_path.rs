//! Implements `esker run IMAGE --at PATH`: shows the image at a path of the host's own root directory.
//!
//! The command has the host's files, variables and working directory, and the image besides, in a mount namespace of its
//! own. A directory that the host lacks is added there; nothing is created on the host.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Launch;
use crate::container::environment::PREFIX;
use crate::container::{ContainerError, Environment, Mount, Plan, Stage, What, enter_directory};

impl Launch {
    /// Enters the host's root with the image at `at`, and becomes the command.
    pub(super) fn become_command_at<E: From<ContainerError>>(
        &self,
        at: &Path,
        stage: impl FnOnce() -> Result<Stage, E>,
    ) -> Result<Infallible, E> {
        let mut mounts = vec![Mount::asked(at, What::Image)];
        mounts.extend(self.options.mounts.iter().cloned());
        let mut environment = self.host_environment();
        let directory = self.options.directory.clone().or_else(current_directory);
        let stage = stage()?;
        let seal = self.seal(&stage)?;
        stage.build(&Plan { mounts, writable: false, of_host: true })?;
        if let Some(seal) = seal {
            seal.close()?;
        }
        let root = Path::new("/");
        let entered = match (&self.options.directory, &directory) {
            (Some(asked), _) => enter_directory(&[asked])?,
            (None, Some(current)) => enter_directory(&[current, root])?,
            (None, None) => enter_directory(&[root])?,
        };
        if directory.as_ref().is_some_and(|wanted| *wanted != entered) {
            self.say("the command starts in /, because the current directory can't be entered");
        }
        let entered = if entered.is_absolute() { Ok(entered) } else { std::env::current_dir() };
        environment.set("PWD", entered.unwrap_or_else(|_| root.into()));
        Ok(self.execute(&self.command, &environment)?)
    }

    /// Returns the host's variables, as the command would have them without a container.
    fn host_environment(&self) -> Environment {
        let mut environment = Environment::of_host(self.options.clean);
        let wished = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?.to_vec();
            Some((OsStr::from_bytes(&name).to_owned(), value))
        });
        for (name, value) in wished.chain(self.options.variables.iter().cloned()) {
            environment.insist(name, value);
        }
        environment.set("ESKER_CONTAINER", self.image.clone());
        environment
    }
}

/// Returns the current directory, by the shell's path if that is correct.
fn current_directory() -> Option<PathBuf> {
    let place = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let real = std::env::current_dir().ok()?;
    let of_shell = std::env::var_os("PWD").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(of_shell.filter(|path| place(path).is_some_and(|it| Some(it) == place(&real))).unwrap_or(real))
}
