//! Opens a repository: its objects through the shared cache, and its head.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_cache_share::{BrokerAddress, CacheOpener, ObjectProvider, SharedCache, room};
use esker_format::blacklist::Blacklist;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_object_storage::connect;
use esker_store::{
    CacheOptions, Callback, Cause, Engine, EngineOptions, Fetch, HeadKeeper, HeadOptions, KeptAuthorities,
    Lower, RealDisk, Servers, Source, StoreError, Stored, make_dirs,
};
use esker_threads::watchdog::{self, DiskHangs};
use esker_vfs::TreeError;
use esker_view::{View, ViewOptions};
use serde::{Deserialize, Serialize};

/// Servers, keys and cache of a repository.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryOptions {
    /// Servers and routes.
    #[serde(with = "esker_format::serde_text")]
    pub servers: Servers,
    /// Name of the repository.
    #[serde(with = "esker_format::serde_text")]
    pub name: RepositoryName,
    /// Public keys that may sign the repository.
    pub keys: MasterKeys,
    /// Fingerprints and revisions that are never accepted.
    #[serde(with = "esker_format::serde_text")]
    pub blacklist: Blacklist,
    /// The cache directory.
    #[serde(with = "esker_store::exact_path")]
    pub cache: PathBuf,
    /// True if file contents are served uncached.
    pub streaming: bool,
    /// Maximum size of the cache in bytes. The process that opened the cache first decides for all that share
    /// it.
    pub quota: u64,
    /// Lower cache folders, tried before the network, in order.
    pub lower: Vec<Lower>,
    /// Broker to use, if it runs and serves this repository, in place of the cache above.
    pub broker: Option<BrokerAddress>,
    /// Use the last accepted head and don't ask for a newer one.
    pub offline: bool,
    /// Accept a head that is older than the last accepted one.
    pub forget_history: bool,
    /// Time as of which heads are verified, in place of the clock: before the expiry of a whitelist that doesn't matter. It is
    /// for one process, and no mount has it.
    #[serde(skip)]
    pub valid_at: Option<UnixTime>,
    /// Timeout for a server to begin a reply, in place of the default.
    pub deadline: Option<Duration>,
    /// Texts of certificate authorities that stand in for files that are gone.
    #[serde(default, skip_serializing_if = "KeptAuthorities::is_empty")]
    pub kept_authorities: KeptAuthorities,
}

/// An open repository.
pub struct Repository {
    /// URL of the repository.
    pub url: String,
    /// Servers and routes.
    pub servers: Servers,
    /// Public keys that may sign the repository.
    pub keys: MasterKeys,
    /// Objects of the repository.
    pub store: Arc<SharedCache>,
    /// Head of the repository.
    pub heads: HeadKeeper,
}

/// A repository can't be opened with its view.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk of the cache doesn't answer.
    #[error(transparent)]
    Disk(#[from] DiskHangs),
    /// The cache or the servers can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The head or the root catalog can't be had.
    #[error(transparent)]
    View(#[from] TreeError),
}

/// The folder of saved heads in a cache; every process that uses the cache reads and writes it.
const HEADS: &str = "heads";

impl Repository {
    /// Joins or opens the cache and prepares to fetch the head; sends no request yet.
    pub fn open(options: RepositoryOptions) -> Result<Self, StoreError> {
        let engine = engine(options.deadline, options.kept_authorities)?;
        let mut servers = options.servers;
        options.deadline.into_iter().for_each(|deadline| servers.within(deadline));
        let url = servers.url().to_owned();
        let source: Arc<dyn Source> = connect(&engine, servers.clone())?;
        let room = CacheOptions { streaming: options.streaming, ..room(options.quota, options.lower) };
        let opener = CacheOpener { engine: engine.clone(), folder: options.cache.clone(), room };
        let (cache, text) = (&options.cache, servers.to_string());
        let store = SharedCache::open_through(cache, &text, Box::new(opener), options.broker)?;
        let head_source = if options.offline { Arc::new(DisabledSource(url.clone())) } else { source };
        let keys = options.keys.clone();
        let mut head_options =
            HeadOptions { blacklist: options.blacklist, ..HeadOptions::new(options.name, options.keys) };
        if let Some(time) = options.valid_at {
            head_options.now = Arc::new(move || time);
        }
        let heads_folder = options.cache.join(HEADS);
        if matches!(store.through(), Some(ObjectProvider::Broker(_))) {
            // Objects come from elsewhere, but accepted heads are saved for this user.
            make_dirs(&RealDisk::PRIVATE, &heads_folder).map_err(|source| {
                let path = heads_folder.clone();
                StoreError::new("the saved heads", Cause::Disk { doing: "making the folder", path, source })
            })?;
        }
        let heads = HeadKeeper::new(&engine, head_source, store.clone(), &heads_folder, head_options);
        if options.forget_history {
            heads.forget_history()?;
        }
        Ok(Self { url, servers, keys, store, heads })
    }

    /// Opens a repository and its view: fetches and verifies the head, and fetches the root catalog.
    pub fn open_view(options: RepositoryOptions, view: ViewOptions) -> Result<(Self, Arc<View>), OpenError> {
        let folder = options.cache.clone();
        let opened = watchdog::unless_disk_hangs(&folder, move || -> Result<_, OpenError> {
            let repository = Self::open(options)?;
            let view = ViewOptions { sequences: Some(repository.sequences()), ..view };
            let opened = View::open(repository.store.clone(), repository.heads.clone(), view);
            let view = opened.inspect_err(|_| repository.close())?;
            Ok((repository, view))
        });
        opened?
    }

    /// Returns the file of recorded read sequences, for its view.
    pub fn sequences(&self) -> PathBuf {
        sequences(self.store.cache(), self.heads.name().as_str())
    }

    /// Returns the file of start-up reads that a mount has recorded.
    pub fn starts(&self) -> PathBuf {
        sequences(self.store.cache(), &format!("{}.starts", self.heads.name()))
    }

    /// Closes the cache; uncached data can't be read afterwards.
    pub fn close(&self) {
        self.store.close();
    }
}

/// Returns the path in a cache's folder for recorded read sequences of a tree.
pub fn sequences(cache: &Path, tree: &str) -> PathBuf {
    cache.join("trails").join(tree)
}

/// Starts the fetching engine, with a deadline for servers in place of the defaults, and texts of certificate authorities
/// for files that are gone.
pub fn engine(deadline: Option<Duration>, kept: KeptAuthorities) -> Result<Engine, StoreError> {
    let mut options = EngineOptions::default();
    options.http.kept_authorities = Arc::new(kept);
    if let Some(deadline) = deadline {
        options.http.connect = options.http.connect.min(deadline);
        options.http.first_byte = options.http.first_byte.min(deadline);
    }
    Engine::start(options)
}

/// Reason why a server that the user excluded can't be reached.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no request was sent, because of --offline")]
pub struct NotAsked;

/// Placeholder for a source that the user disabled.
struct DisabledSource(String);

impl Source for DisabledSource {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let cause = Cause::Unreachable(std::io::Error::other(NotAsked));
        done.err(StoreError::new(fetch.what, cause).from_place(self.0.clone()));
    }

    fn describe(&self) -> String {
        self.0.clone()
    }
}
