//! Defines the permissions of a process, and enforces those that the kernel supports.

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::filter;
use crate::paths::{OpenedPaths, Paths};
use crate::role::Role;

/// Restrictions of a process: its role, and the paths that it was started with.
#[derive(Clone, Debug)]
pub struct Policy {
    role: Role,
    paths: Paths,
    senders: Vec<RawFd>,
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

/// A policy whose paths are open.
#[derive(Debug)]
pub struct Prepared {
    role: Role,
    paths: OpenedPaths,
    senders: Vec<RawFd>,
}

/// State of this process, once it is decided.
static OF_PROCESS: OnceLock<Confinement> = OnceLock::new();

impl Policy {
    /// Makes the policy of a role without any paths but those of all roles.
    pub fn new(role: Role) -> Self {
        Self { role, paths: Paths::default(), senders: Vec::new() }
    }

    /// Lets the process read a file, or everything below a folder. A path that doesn't exist grants nothing.
    pub fn read(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.read.push(path.as_ref().to_owned());
        self
    }

    /// Lets the process read what is at a path, also after it was exchanged: replaced by a rename, or by a link that leads
    /// elsewhere. A rule allows the file that is at the path now, so the folders around it are allowed, except folders of many
    /// programs or homes ([`Self::private`]).
    pub fn reopen(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.reopen.push(path.as_ref().to_owned());
        self
    }

    /// Names a folder that the process may not read as a whole for the sake of something in it, such as a home.
    pub fn private(mut self, folder: impl AsRef<Path>) -> Self {
        self.paths.private.push(folder.as_ref().to_owned());
        self
    }

    /// Lets the process read and change a file, or everything below a folder.
    pub fn write(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.write.push(path.as_ref().to_owned());
        self
    }

    /// Lets the process list a folder and those below it, as it does to make a new entry durable.
    pub fn list(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.list.push(path.as_ref().to_owned());
        self
    }

    /// Names the descriptor of a connected datagram socket, such as that of a log. The process may write to it, and neither
    /// send to another address, connect it, nor copy it. Not for a role that makes pairs of sockets, which copy descriptors.
    pub fn send_only(mut self, socket: RawFd) -> Self {
        self.senders.push(socket);
        self
    }

    /// Opens the paths, which may block on a disk that doesn't answer.
    pub fn prepare(self) -> Prepared {
        let paths = OpenedPaths::open(self.role, &self.paths);
        Prepared { role: self.role, paths, senders: self.senders }
    }
}

/// Returns what this kernel can enforce. Restricts only a thread that ends at once.
pub fn probe() -> Confinement {
    let tried = std::thread::spawn(|| Policy::new(Role::Replayer).prepare().apply());
    tried.join().unwrap_or_default()
}

impl Prepared {
    /// Restricts this thread, and those that it starts, permanently and as far as the kernel supports it. Sets
    /// `no_new_privs`. The outcome is also that of [`Confinement::get`].
    pub fn enforce(self) -> Confinement {
        self.apply().of_this_process()
    }

    fn apply(self) -> Confinement {
        let mut reasons = Vec::new();
        // The filter comes second, because it refuses the calls of Landlock.
        let restricted = if self.role.mounts() { Ok(None) } else { self.paths.restrict(self.role) };
        let landlock = restricted.unwrap_or_else(|error| {
            reasons.push(format!("paths can't be restricted: {error}"));
            None
        });
        if landlock.is_none() && reasons.is_empty() && !self.role.mounts() {
            reasons.push("the kernel has no Landlock".to_owned());
        }
        let filtered = filter::install(self.role, &self.senders);
        if let Err(error) = &filtered {
            reasons.push(format!("system calls can't be filtered: {error}"));
        }
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        Confinement { seccomp: filtered.is_ok(), landlock, reason }
    }
}

impl Confinement {
    /// Records that this process is not confined, and returns that state.
    pub fn off(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::default() }.of_this_process()
    }

    /// Returns the state of this process; `None` if it is not to be confined.
    pub fn get() -> Option<Self> {
        OF_PROCESS.get().cloned()
    }

    fn of_this_process(self) -> Self {
        OF_PROCESS.get_or_init(|| self).clone()
    }
}

impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.seccomp, self.landlock) {
            (true, Some(version)) => write!(f, "system calls (seccomp) and paths (Landlock {version})"),
            (true, None) => f.write_str("system calls (seccomp)"),
            (false, Some(version)) => write!(f, "paths (Landlock {version})"),
            (false, None) => return f.write_str(self.reason.as_deref().unwrap_or("no reason is known")),
        }?;
        self.reason.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}
