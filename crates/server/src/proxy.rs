//! Site cache between clients and the servers of repositories, in place of a general HTTP proxy.
//!
//! ```text
//!   clients ─► respond ─► target: folder and file, or a refusal
//!                ├─► objects ─► disk cache ─► one fetch for all askers ─► peer that owns it ─► upstream servers
//!                ├─► heads: manifests and other changing files ─► upstream servers
//!                │     └─► catalogs: fetched ahead for a new revision
//!                └─► revisions: one stream upstream, many to clients
//! ```
//!
//! Nothing is handed on before it is verified: an object by the hash in its name, a manifest by its own hash and, if the
//! repository's key is known, by its signature (docs/decisions/0124-site-proxy.md).

mod agreement;
mod catalogs;
mod destinations;
mod disk;
mod evict;
mod failure;
mod files;
mod flights;
mod heads;
mod in_use;
mod monitor;
mod objects;
mod older;
mod overview;
mod passing;
mod peers;
mod place;
mod respond;
mod revisions;
mod spool;
mod storage_options;
mod target;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_store::{Authorities, Proxies, StoreError};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub use self::destinations::{AllowedHost, DestinationError, Upstream};
pub use self::disk::CacheError;
pub use self::heads::FindKeys;
pub use self::storage_options::{RepositoryStorage, StorageOptions};

pub(crate) use self::failure::Failure;
pub(crate) use self::monitor::Monitor;
pub(crate) use self::objects::Object;
pub(crate) use self::respond::failed;
pub(crate) use self::target::{Folder as StorageFolder, Wanted};
pub(crate) use self::upstream::ObjectQuery;

use self::catalogs::Catalogs;
use self::destinations::Destinations;
use self::disk::DiskCache;
use self::files::Files;
use self::heads::{HeadCounters, HeadOptions, Heads};
use self::objects::{ObjectCounters, Objects};
use self::passing::Passing;
use self::peers::Peers;
use self::place::{Place, Places};
use self::target::Folder;
use self::upstream::UpstreamOptions;
use crate::batch::Batches;
use crate::counters::Counters;
use crate::options::{Options, ServeError};
use crate::transport::shares::Shares;

/// Age of an object's recorded last use at which a further use is recorded.
const RECORD_USE: Duration = Duration::from_secs(600);

/// Options of a proxy.
#[derive(Clone)]
pub struct ProxyOptions {
    /// Servers of the repositories, in the order of use.
    pub upstreams: Vec<Upstream>,
    /// Further hosts that clients may name.
    pub allowed: Vec<AllowedHost>,
    /// URL of this proxy as its peers write it; needed with peers.
    pub own_url: Option<String>,
    /// URLs of the other proxies of the site.
    pub peers: Vec<String>,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Maximum number of bytes in the cache.
    pub cache_size: u64,
    /// Time for which a manifest is served without asking upstream.
    pub head_age: Duration,
    /// Time for which a manifest is served while upstream is unreachable.
    pub stale_age: Duration,
    /// Age of an object's recorded last use at which a further use is recorded; `None` for the usual.
    pub record_use: Option<Duration>,
    /// Finds the master keys of a repository.
    pub keys: FindKeys,
    /// Trusted certificate authorities of upstream servers.
    pub authorities: Authorities,
    /// Proxies between this one and the servers.
    pub parents: Proxies,
}

impl ProxyOptions {
    /// Returns the usual options for a cache in this folder, without servers.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            upstreams: Vec::new(),
            allowed: Vec::new(),
            own_url: None,
            peers: Vec::new(),
            cache: cache.into(),
            cache_size: 100 << 30,
            head_age: Duration::from_secs(10),
            stale_age: Duration::from_secs(86_400),
            record_use: None,
            keys: Arc::new(|_| None),
            authorities: Authorities::default(),
            parents: Proxies::direct(),
        }
    }
}

/// Failure to start a proxy.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No server and no host is named.
    #[error("no server is named that requests may go to")]
    NoDestination,
    /// There are peers, and no URL of this proxy.
    #[error("peers are named, and not the URL of this proxy, by which each object's owner is chosen")]
    NoOwnUrl,
    /// A URL is malformed.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The cache folder can't be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The threads of the client side could not be started.
    #[error(transparent)]
    Threads(#[from] StoreError),
    /// The server side could not be started.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Counters of requests.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    /// Requests for what the proxy does not serve.
    pub(crate) refused: AtomicU64,
}

/// State that all requests share.
pub(crate) struct ProxyState {
    pub(crate) objects: Arc<Objects>,
    pub(crate) heads: Arc<Heads>,
    pub(crate) counters: RequestCounters,
    pub(crate) passing: Passing,
    pub(crate) batches: Batches,
    pub(crate) listeners: Arc<Semaphore>,
    /// Listeners by client address, and the largest number of one address.
    pub(crate) listener_shares: Arc<Shares>,
    pub(crate) listeners_of_one: usize,
    /// Counters of the server side.
    pub(crate) served: Arc<Counters>,
    places: Places,
}

impl ProxyState {
    pub(crate) fn open(
        options: ProxyOptions,
        serving: &Options,
        served: Arc<Counters>,
    ) -> Result<Self, ProxyError> {
        let destinations = Destinations { upstreams: options.upstreams, allowed: options.allowed };
        if destinations.upstreams.is_empty() && destinations.allowed.is_empty() {
            return Err(ProxyError::NoDestination);
        }
        let peers = match &options.own_url {
            Some(own) => Peers::new(own, &options.peers)?,
            None if options.peers.is_empty() => Peers::default(),
            None => return Err(ProxyError::NoOwnUrl),
        };
        let record_use = options.record_use.unwrap_or(RECORD_USE);
        let cache = Arc::new(DiskCache::open(&options.cache, options.cache_size, record_use)?);
        let upstream = UpstreamOptions {
            destinations,
            authorities: options.authorities,
            parents: options.parents,
            peers,
            ..UpstreamOptions::of(&cache)
        };
        let heads = HeadOptions {
            age: options.head_age,
            stale_age: options.stale_age,
            lifetime: None,
            keys: options.keys,
        };
        Ok(Self::start(cache, upstream, heads, serving, served)?)
    }

    /// Opens repositories in object storage, with a cache in this folder. Their files that change are valid for
    /// `lifetime`, whether or not the storage can be read.
    pub(crate) fn of_storages(
        options: StorageOptions,
        lifetime: Duration,
        serving: &Options,
        served: Arc<Counters>,
    ) -> Result<Self, ServeError> {
        let cache = Arc::new(DiskCache::open(&options.cache, options.cache_size, RECORD_USE)?);
        let upstream = UpstreamOptions { storages: options.repositories, ..UpstreamOptions::of(&cache) };
        let heads = HeadOptions {
            age: options.head_age,
            stale_age: lifetime,
            lifetime: Some(lifetime),
            // Clients verify signatures; a server hands on what was published.
            keys: Arc::new(|_| None),
        };
        Ok(Self::start(cache, upstream, heads, serving, served)?)
    }

    fn start(
        cache: Arc<DiskCache>,
        upstream: UpstreamOptions,
        heads: HeadOptions,
        serving: &Options,
        served: Arc<Counters>,
    ) -> Result<Self, StoreError> {
        let upstream = upstream::Upstream::start(upstream)?;
        let objects =
            Arc::new(Objects { cache, upstream: Arc::new(upstream), counters: ObjectCounters::default() });
        let heads = Heads {
            objects: objects.clone(),
            options: heads,
            counters: HeadCounters::default(),
            catalogs: Arc::new(Catalogs::new()),
        };
        Ok(Self {
            objects,
            heads: Arc::new(heads),
            counters: RequestCounters::default(),
            passing: Passing::new(),
            batches: Batches::new(),
            listeners: Arc::new(Semaphore::new(serving.limits.listeners)),
            listener_shares: Arc::default(),
            // All nodes of a site may have one address; a few are left to others.
            listeners_of_one: (serving.limits.listeners - serving.limits.listeners / 8).max(1),
            served,
            places: Places::default(),
        })
    }

    /// Returns the state of a folder.
    pub(crate) fn place(&self, folder: &Folder) -> Result<Arc<Place>, StoreError> {
        self.places.get(folder, || {
            let (urls, source) = self.objects.upstream.open(folder)?;
            let has_keys = folder.repository().is_some_and(|name| (self.heads.options.keys)(&name).is_some());
            let files = Files::open(&self.objects.cache, folder, has_keys);
            Ok(Place::new(folder.clone(), urls, source, files))
        })
    }

    /// Returns the counters and the state of repositories, for administrators.
    pub(crate) fn status(&self) -> Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (cache, objects, heads) = (&self.objects.cache, &self.objects.counters, &self.heads.counters);
        let mut places = self.places.all();
        places.sort_by(|one, other| one.urls.cmp(&other.urls));
        let repository = |place: &Arc<Place>| {
            let revision = place.revision.borrow().clone()?;
            Some(json!({
                "name": place.title(),
                "server": place.urls.first(),
                "revision": revision.number,
                "root_hash": revision.root,
                "signed": revision.signed,
                "upstream_away": place.files.is_unreachable(),
                "listeners": place.revision.receiver_count(),
            }))
        };
        let peers = self.objects.upstream.peers.status().into_iter();
        json!({
            "cache": {
                "bytes": cache.used(),
                "limit": cache.limit,
                "evicted": read(&cache.evicted),
                "unclean_start": cache.is_doubtful(),
            },
            "objects": {
                "hits": read(&objects.hits),
                "misses": read(&objects.misses),
                "fetched": read(&objects.fetched),
                "fetched_bytes": read(&objects.fetched_bytes),
                "failed": read(&objects.failed),
                "passed_on": read(&objects.passed_on),
                "catalogs_ahead": read(&self.heads.catalogs.fetched),
            },
            "files": {
                "hits": read(&heads.hits),
                "confirmed": read(&heads.confirmed),
                "stale": read(&heads.stale),
                "refused": read(&heads.refused),
            },
            "requests": { "refused": read(&self.counters.refused) },
            "peers": peers.map(|(url, up)| json!({ "url": url, "up": up })).collect::<Vec<_>>(),
            "repositories": places.iter().filter_map(repository).collect::<Vec<_>>(),
        })
    }
}
