//! Resolved options of a mounted repository.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_cache_share::memory;
use esker_config::{SyslogOptions, SyslogTarget, TalkOptions, Telemetry, Tuning};
use esker_fuse::{SessionOptions, XattrGuard};
use esker_store::{LowerForm, changeable_way};
use esker_view::{Protected, ViewOptions};
use serde::{Deserialize, Serialize};

use crate::push::Push;
use crate::repository::RepositoryOptions;

/// Resolved options of a mounted repository.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositorySpec {
    /// Servers, keys and cache.
    pub options: RepositoryOptions,
    /// Options of the view.
    pub view: ViewOptions,
    /// Attributes that only some groups may read.
    pub protected: Protected,
    /// True if the kernel enforces the access control lists of the repository.
    pub enforce_acls: bool,
    /// Source of push notifications.
    pub push: Push,
    /// Settings of the daemon's process.
    pub tuning: Tuning,
    /// Settings of the system's log, if the log goes there too.
    pub syslog: Option<SyslogOptions>,
    /// Destination of counters.
    pub telemetry: Option<Telemetry>,
    /// Socket for `cvmfs_talk`.
    pub talk: Option<TalkOptions>,
}

impl RepositorySpec {
    /// Returns the folders that the daemon may write to beside its cache: shared caches, and those of its socket and log.
    pub fn writable(&self) -> impl Iterator<Item = &Path> {
        let shared = self.options.lower.iter().filter(|lower| lower.form == LowerForm::Alien);
        let socket = self.talk.as_ref().map(|talk| talk.socket.as_path());
        // A log that grows too long is renamed, which needs its folder.
        let log = self.syslog.as_ref().and_then(|syslog| match &syslog.to {
            SyslogTarget::File(file) => Some(file.as_path()),
            SyslogTarget::Socket(_) => None,
        });
        // What other users can make lead elsewhere is refused when it is opened, too.
        let is_fixed = |folder: &&Path| matches!(changeable_way(folder), Ok(None));
        let around = socket.into_iter().chain(log).filter_map(Path::parent).filter(is_fixed);
        shared.map(|lower| lower.folder.as_path()).chain(around)
    }

    /// Returns the guard of attributes; `None` if all users may read all of them.
    pub fn xattr_guard(&self) -> Option<XattrGuard> {
        let protected = self.protected.clone();
        (!protected.names.is_empty())
            .then(|| Arc::new(move |name: &[u8], group: u32| protected.may_ask(name, group)) as XattrGuard)
    }

    /// Applies the configuration to the options of a session.
    pub fn session(&self, session: SessionOptions) -> SessionOptions {
        SessionOptions { xattr_guard: self.xattr_guard(), enforce_acls: self.enforce_acls, ..session }
    }
}

impl RepositoryOptions {
    /// Makes the memory of a cache in memory, which each process has for itself. A failure is that of the kernel.
    pub fn make_memory(&mut self) -> std::io::Result<()> {
        in_own_memory(&mut self.cache, self.quota)
    }
}

/// Makes the memory of a cache in memory for this process.
pub(super) fn in_own_memory(cache: &mut PathBuf, quota: u64) -> std::io::Result<()> {
    if memory::is_memory(cache) {
        *cache = memory::place(quota, String::new())?.0.path;
    }
    Ok(())
}
