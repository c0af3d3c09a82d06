//! Where things live, resolved once from the environment; nothing below the command line reads it.
//!
//! Without root everything is in the XDG folders. With root: the cache where CernVM-FS has its own below
//! `/var/lib`, sockets below `/run`. Public keys are looked for in `/etc/cvmfs/keys`. Root of a user namespace
//! (`unshare -r`, a rootless container) is an ordinary user here.

use std::path::{Path, PathBuf};

use esker_format::name::RepositoryName;

use crate::exit::Failure;

/// The folders of this user.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whether mounts are made with mount(2) and show owners as published.
    pub(crate) root: bool,
    /// The cache, unless a command names another.
    cache: Option<PathBuf>,
    /// Sockets, the registry of mounts, logs of running daemons: gone with the mounts.
    pub(crate) runtime: PathBuf,
    /// Master keys, unless a command names others.
    pub(crate) keys: PathBuf,
    /// The folder of the repositories that are published here.
    storage: Option<PathBuf>,
    /// The folder of the keys they are published with.
    publisher_keys: Option<PathBuf>,
}

/// The cache of root; CernVM-FS has `/var/lib/cvmfs`.
const ROOT_CACHE: &str = "/var/lib/esker";
const ROOT_RUNTIME: &str = "/run/esker";
const KEYS: &str = "/etc/cvmfs/keys";
/// Where CernVM-FS has its repositories.
const ROOT_STORAGE: &str = "/srv/cvmfs";
const ROOT_SPOOL: &str = "/var/spool/cvmfs";

impl Settings {
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let folder = |name: &str| -> Option<PathBuf> {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let root = uid == 0 && is_initial_namespace();
        let cache = if root {
            Some(PathBuf::from(ROOT_CACHE))
        } else {
            folder("XDG_CACHE_HOME")
                .or_else(|| folder("HOME").map(|home| home.join(".cache")))
                .map(|base| base.join("esker"))
        };
        let runtime = match folder("XDG_RUNTIME_DIR") {
            _ if root => PathBuf::from(ROOT_RUNTIME),
            Some(base) => base.join("esker"),
            None => PathBuf::from(format!("/tmp/esker-{uid}")),
        };
        let home = |variable: &str, otherwise: &str| {
            folder(variable).or_else(|| folder("HOME").map(|home| home.join(otherwise)))
        };
        let (storage, publisher_keys) = if root {
            (Some(PathBuf::from(ROOT_STORAGE)), Some(PathBuf::from(KEYS)))
        } else {
            (
                home("XDG_DATA_HOME", ".local/share").map(|base| base.join("esker/repositories")),
                home("XDG_CONFIG_HOME", ".config").map(|base| base.join("esker/keys")),
            )
        };
        Ok(Self { root, cache, runtime, keys: PathBuf::from(KEYS), storage, publisher_keys })
    }

    /// The folder of the repositories that are published here, `named` on the command line or the default.
    pub(crate) fn storage(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.storage.as_ref(), "--storage")
    }

    /// The spool folder of CernVM-FS for a repository that lies where CernVM-FS has its own.
    pub(crate) fn spool(&self, name: &RepositoryName, storage: &Path) -> Option<PathBuf> {
        let own = storage == Path::new(ROOT_STORAGE).join(name.as_str());
        (self.root && own).then(|| Path::new(ROOT_SPOOL).join(name.as_str()))
    }

    /// The folder of the publisher's keys, `named` on the command line or the default.
    pub(crate) fn publisher_keys(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.publisher_keys.as_ref(), "--keys")
    }

    /// The cache folder to use, `named` on the command line or the default.
    pub(crate) fn cache(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        let path = match (named, &self.cache) {
            (Some(path), _) => path.to_owned(),
            (None, Some(path)) => path.clone(),
            (None, None) => {
                return Err(Failure::usage(
                    "there is no folder for the cache: neither HOME nor XDG_CACHE_HOME is set",
                )
                .hint("name one with --cache DIR"));
            }
        };
        std::path::absolute(&path)
            .map_err(|error| Failure::usage(format!("--cache {}: {error}", path.display())))
    }
}

fn folder_or_default(
    named: Option<&Path>,
    default: Option<&PathBuf>,
    option: &str,
) -> Result<PathBuf, Failure> {
    let path = named.or(default.map(PathBuf::as_path)).ok_or_else(|| {
        Failure::usage(format!("there is no default for {option}: HOME is not set"))
            .hint(format!("name a folder with {option} DIR"))
    })?;
    std::path::absolute(path).map_err(|error| Failure::usage(format!("{option} {}: {error}", path.display())))
}

/// Whether user ids mean what they mean to the kernel.
fn is_initial_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
impl Settings {
    /// Everything below one folder.
    pub(crate) fn for_tests(base: &Path) -> Self {
        Self {
            root: false,
            cache: Some(base.join("cache")),
            runtime: base.join("run"),
            keys: base.join("no-keys"),
            storage: Some(base.join("storage")),
            publisher_keys: Some(base.join("publisher-keys")),
        }
    }
}
