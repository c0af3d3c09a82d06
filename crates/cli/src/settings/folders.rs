//! Resolves the user's folders once from the environment.
//!
//! Without root everything but the cache is in the XDG folders, and the cache on a disk of this node. With root: the
//! cache where CernVM-FS has its own below `/var/lib`, sockets below `/run`. Public keys are searched in
//! `/etc/cvmfs/keys`. Root of a user namespace (`unshare -r`, a rootless container) is an ordinary user here.

use std::path::{Path, PathBuf};

use esker_cache_share::location::{self, CacheLocation, Candidate, LocationRules};
use esker_format::name::RepositoryName;
use esker_node::runtime::{RuntimeDir, SHARED};
use rustix::fs::{Access, access};

use super::environment::Environment;
use crate::error::Failure;

/// Folders of this user.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Environment variables.
    pub(crate) environment: Environment,
    /// True if mounts are made with mount(2) and show owners as published.
    pub(crate) root: bool,
    /// Candidates for the cache, unless a command names a folder.
    caches: Vec<Candidate>,
    /// Folder for sockets, the registry of mounts and logs of running daemons: gone with the mounts.
    pub(crate) runtime: PathBuf,
    /// Folder of master keys, unless a command names others.
    pub(crate) keys: PathBuf,
    /// Folder of the repositories that this user publishes.
    storage: Option<PathBuf>,
    /// Folder of the publisher's keys.
    publisher_keys: Option<PathBuf>,
    /// Folder of open transactions.
    transactions: Option<PathBuf>,
    /// Folder of a gateway's database.
    gateway: Option<PathBuf>,
    /// Folder that stands for `/` when configuration is read.
    pub(crate) config_root: PathBuf,
    /// The user's own configuration folder, which takes precedence over that of the machine.
    pub(crate) own_config: Option<PathBuf>,
    /// Record of `esker setup` for this user.
    pub(crate) own_record: Option<PathBuf>,
    /// File with the passphrase of encrypted keys: named in the environment, or a credential of systemd.
    pub(crate) passphrase_file: Option<PathBuf>,
}

/// Name of the credential that systemd passes with `LoadCredential=`.
const PASSPHRASE_CREDENTIAL: &str = "esker-key-passphrase";
/// Socket of the broker for all users of the node.
pub(crate) const BROKER_SOCKET: &str = "/run/esker-broker/socket";
/// Environment variable that names the cache folder.
const CACHE: &str = "ESKER_CACHE";
/// Environment variable that names the folder of published repositories.
const STORAGE: &str = "ESKER_STORAGE";
/// Name of a cache in memory, in place of a folder.
pub(crate) const MEMORY: &str = "ram";
/// Minimum free bytes of a disk for a new cache, if another folder is available.
const CACHE_LEAST: u64 = 1 << 30;
/// The cache of root; CernVM-FS has `/var/lib/cvmfs`.
const ROOT_CACHE: &str = "/var/lib/esker";
const ROOT_RUNTIME: &str = "/run/esker";
const KEYS: &str = "/etc/cvmfs/keys";
/// Storage of CernVM-FS's repositories.
const ROOT_STORAGE: &str = "/srv/cvmfs";
const ROOT_TRANSACTIONS: &str = "/var/spool/esker/transactions";
const ROOT_GATEWAY: &str = "/var/lib/esker-gateway";
const ROOT_SPOOL: &str = "/var/spool/cvmfs";

/// Environment variable with the time of reproducible builds, in seconds since 1970.
const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";

impl Settings {
    /// Returns the latest time stamp for built files, if it is set.
    pub(crate) fn source_date_epoch(&self) -> Result<Option<u32>, Failure> {
        let Some(text) = self.environment.get(SOURCE_DATE_EPOCH) else { return Ok(None) };
        let seconds = text.to_str().and_then(|text| text.parse().ok());
        seconds.map(Some).ok_or_else(|| {
            let text = text.to_string_lossy();
            Failure::usage(format!("${SOURCE_DATE_EPOCH} is {text:?}, which is not a number of seconds"))
        })
    }

    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let environment = Environment::of_process();
        let uid = rustix::process::geteuid().as_raw();
        let folder = |name: &str| environment.path(name);
        let root = uid == 0 && is_initial_namespace();
        let named = folder(CACHE).map(|path| Candidate { from: format!("${CACHE}"), path, is_cache: true });
        let base = |from: String, path: PathBuf| Candidate { from, path, is_cache: false };
        let caches = if root {
            let from = "the cache of root".to_owned();
            let usual = Candidate { from, path: PathBuf::from(ROOT_CACHE), is_cache: true };
            named.into_iter().chain([usual]).collect()
        } else {
            let variables = ["SLURM_TMPDIR", "TMPDIR"];
            let bases = variables.iter().filter_map(|name| Some(base(format!("${name}"), folder(name)?)));
            let usual = ["/var/tmp", "/tmp"].map(|path| base(path.to_owned(), PathBuf::from(path)));
            named.into_iter().chain(bases).chain(usual).collect()
        };
        let runtime = match folder("XDG_RUNTIME_DIR").filter(|base| is_usable(base)) {
            _ if root => PathBuf::from(ROOT_RUNTIME),
            Some(base) => base.join("esker"),
            None => runtime_without_session(uid, folder("XDG_STATE_HOME").or(folder("HOME"))),
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
        let storage = folder(STORAGE).or(storage);
        let config_root = folder("ESKER_CONFIG_ROOT").unwrap_or_else(|| PathBuf::from("/"));
        let own_config = (!root && config_root == Path::new("/"))
            .then(|| home("XDG_CONFIG_HOME", ".config").map(|base| base.join("esker")))
            .flatten();
        let own_record = (!root)
            .then(|| home("XDG_STATE_HOME", ".local/state").map(|base| base.join("esker/setup.json")))
            .flatten();
        let state = |of_root: &str, below: &str| match root {
            true => Some(PathBuf::from(of_root)),
            false => home("XDG_STATE_HOME", ".local/state").map(|base| base.join(below)),
        };
        let transactions = state(ROOT_TRANSACTIONS, "esker/transactions");
        let gateway = state(ROOT_GATEWAY, "esker/gateway");
        let keys = PathBuf::from(KEYS);
        let credential = folder("CREDENTIALS_DIRECTORY").map(|folder| folder.join(PASSPHRASE_CREDENTIAL));
        let passphrase_file =
            folder("ESKER_KEY_PASSPHRASE_FILE").or(credential.filter(|credential| credential.exists()));
        Ok(Self {
            environment,
            passphrase_file,
            transactions,
            gateway,
            root,
            caches,
            runtime,
            keys,
            storage,
            publisher_keys,
            config_root,
            own_config,
            own_record,
        })
    }

    /// Returns the folder of published repositories, `named` on the command line or the default.
    pub(crate) fn storage(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.storage.as_ref(), "--storage")
    }

    /// Returns the file that remembers how far a check of all bytes was: in the publisher's state if it may be written.
    pub(crate) fn check_resume(&self, name: &RepositoryName, root: &Path) -> Option<PathBuf> {
        let own = root.join(".esker");
        let is_ours = rustix::fs::access(&own, rustix::fs::Access::WRITE_OK).is_ok();
        let folder = if is_ours { Some(own) } else { self.storage.clone().filter(|folder| folder.is_dir()) };
        folder.map(|folder| folder.join(format!("check-{name}.json")))
    }

    /// Returns the folder of open transactions, `named` on the command line or the default.
    pub(crate) fn transactions(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.transactions.as_ref(), "--transactions")
    }

    /// Returns the folder of a gateway's database, `named` on the command line or the default.
    pub(crate) fn gateway(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.gateway.as_ref(), "--state")
    }

    /// Returns the spool folder of CernVM-FS for a repository in CernVM-FS's own storage.
    pub(crate) fn spool(&self, name: &RepositoryName, storage: &Path) -> Option<PathBuf> {
        let own = storage == Path::new(ROOT_STORAGE).join(name.as_str());
        (self.root && own).then(|| Path::new(ROOT_SPOOL).join(name.as_str()))
    }

    /// Returns the folder of the publisher's keys, `named` on the command line or the default.
    pub(crate) fn publisher_keys(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        folder_or_default(named, self.publisher_keys.as_ref(), "--keys")
    }

    /// Returns the user id of root as this user namespace maps it.
    #[expect(clippy::unused_self, reason = "it belongs to what is resolved once")]
    pub(crate) fn root_uid(&self) -> u32 {
        if is_initial_namespace() { 0 } else { overflow_uid() }
    }

    /// True if the environment names the cache.
    pub(crate) fn names_cache(&self) -> bool {
        self.caches.first().is_some_and(|first| first.from == format!("${CACHE}"))
    }

    /// Returns the cache folder, `named` on the command line or the first suitable one.
    pub(crate) fn cache(&self, named: Option<&Path>, on_network: bool) -> Result<CacheLocation, Failure> {
        let uid = rustix::process::geteuid().as_raw();
        let wish = LocationRules { uid, root: self.root_uid(), least: CACHE_LEAST, on_network };
        let insist = "name one with --cache DIR; --cache-on-network accepts a network file system";
        let Some(named) = named else {
            return location::choose(&self.caches, &wish)
                .map_err(|none| Failure::usage(none.to_string()).hint(insist));
        };
        let failed = |why: String| Failure::usage(format!("--cache {}: {why}", named.display()));
        let path = std::path::absolute(named).map_err(|error| failed(error.to_string()))?;
        match location::network_of(&path) {
            Ok(Some(kind)) if !on_network => {
                let why = format!("it is on a network file system ({kind}), which may hang and is slow");
                Err(failed(why).hint("name a folder on a disk of this node, or use --cache-on-network"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                Err(failed(error.to_string()).hint("check the disk, or name another folder"))
            }
            // Opening it reports any error.
            _ => {
                let total = location::disk_size(&path).unwrap_or_default();
                Ok(CacheLocation { path, from: "--cache".to_owned(), total, passed_over: Vec::new() })
            }
        }
    }
}

/// Returns the runtime directory without a session: never one that another user has made in a shared folder.
fn runtime_without_session(uid: u32, own: Option<PathBuf>) -> PathBuf {
    let session = PathBuf::from(format!("/run/user/{uid}/esker"));
    let shared = SHARED.map(|base| Path::new(base).join(format!("esker-{uid}")));
    // The path of a home folder may be too long for a socket, or on a file system without them.
    let own = own.map(|folder| folder.join(".esker-run"));
    let choices: Vec<PathBuf> = std::iter::once(session).chain(shared.clone()).chain(own).collect();
    let [first, ..] = shared;
    // An unusable first choice is reported when it is used.
    RuntimeDir::choose(&choices).map_or(first, Path::to_owned)
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

/// Returns the user id of unmapped users in a user namespace.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65_534)
}

/// True if user ids are the kernel's own.
fn is_initial_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// True if files can be made in a folder. A job takes over the environment of a login on another node, and `su` that
/// of another user: its folders may be missing or another user's.
fn is_usable(folder: &Path) -> bool {
    folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
impl Settings {
    /// Creates settings with all folders below one folder.
    pub(crate) fn for_tests(base: &Path) -> Self {
        Self {
            environment: Environment::default(),
            root: false,
            caches: vec![Candidate { from: "a test".to_owned(), path: base.join("cache"), is_cache: true }],
            runtime: base.join("run"),
            keys: base.join("no-keys"),
            storage: Some(base.join("storage")),
            publisher_keys: Some(base.join("publisher-keys")),
            transactions: Some(base.join("transactions")),
            gateway: Some(base.join("gateway")),
            config_root: base.join("root"),
            own_config: None,
            own_record: None,
            passphrase_file: None,
        }
    }
}
