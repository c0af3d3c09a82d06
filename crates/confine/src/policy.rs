//! What a process may do, and what the kernel enforces of it.

use std::path::{Path, PathBuf};

use landlock::RulesetError;
use serde::{Deserialize, Serialize};

use crate::role::Role;
use crate::{filter, paths};

/// Restrictions of a process: its role, and the paths that it was started with.
#[derive(Clone, Debug)]
pub struct Policy {
    role: Role,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

/// Restrictions that the kernel enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confinement {
    /// True if system calls are filtered.
    pub seccomp: bool,
    /// Version of Landlock that restricts paths; none if the kernel has none.
    pub landlock: Option<i32>,
    /// Reason why the process is not confined, or not fully.
    pub reason: Option<String>,
}

/// The kernel refused to restrict this process.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The filter can't be built or installed.
    #[error("system calls can't be filtered")]
    Filter(#[source] seccompiler::Error),
    /// The rules for paths can't be enforced.
    #[error("paths can't be restricted")]
    Paths(#[from] RulesetError),
}

impl Policy {
    /// Makes the policy of a role without any paths but those of all roles.
    pub fn new(role: Role) -> Self {
        Self { role, read: Vec::new(), write: Vec::new() }
    }

    /// Lets the process read a file, or everything below a folder. A path that doesn't exist grants nothing.
    pub fn read(mut self, path: impl AsRef<Path>) -> Self {
        self.read.push(path.as_ref().to_owned());
        self
    }

    /// Lets the process read and change a file, or everything below a folder.
    pub fn write(mut self, path: impl AsRef<Path>) -> Self {
        self.write.push(path.as_ref().to_owned());
        self
    }

    /// Restricts this thread and the threads that it starts, for good. Sets `no_new_privs`.
    pub fn enforce(&self) -> Result<Confinement, ConfineError> {
        // The filter comes second, because it refuses the calls of Landlock.
        let landlock = paths::restrict(self.role, &self.read, &self.write)?;
        filter::install(self.role).map_err(ConfineError::Filter)?;
        let reason = landlock.is_none().then(|| "the kernel has no Landlock".to_owned());
        Ok(Confinement { seccomp: true, landlock, reason })
    }
}

impl Confinement {
    /// Returns the state of a process that is not confined.
    pub fn off(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::default() }
    }
}

impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.seccomp, self.landlock) {
            (true, Some(version)) => write!(f, "system calls (seccomp) and paths (Landlock {version})"),
            (true, None) => f.write_str("system calls (seccomp)"),
            (false, _) => f.write_str("nothing"),
        }?;
        self.reason.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}
