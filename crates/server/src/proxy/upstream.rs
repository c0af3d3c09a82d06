//! Requests to upstream servers and peers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use esker_format::object::ObjectName;
use esker_object_storage::connect_bucket;
use esker_store::{
    Authorities, Callback, Cause, Engine, EngineOptions, Expected, Fetch, HttpOptions, Priority, Proxies,
    Relay, RetryPolicy, Servers, Source, Spool, StoreError, Stored, Urgency, connect, connect_straight,
};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::timeout;

use super::destinations::{Destinations, Group};
use super::disk::DiskCache;
use super::peers::{Peer, Peers};
use super::place::Place;
use super::spool::{CacheSpool, object_max};
use super::storage_options::RepositoryStorage;
use super::target::{Folder, PEER};

/// Largest object that is passed on.
const RELAYED_MAX: u64 = 1 << 40;
/// Memory of objects that are received at the same time; more are received in files.
const RECEIVED_MAX: u64 = 64 << 20;
/// Maximum number of requests to upstream servers in progress.
const AT_ONCE: usize = 512;
/// Time after which the upstream servers are asked, too, while a peer is silent.
const HEDGE: Duration = Duration::from_secs(1);
/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time after which no further attempt begins. Clients give up after 5 to 10 s and ask again.
const TOTAL: Duration = Duration::from_secs(15);

/// Client side of the proxy.
pub(crate) struct Upstream {
    engine: Engine,
    destinations: Destinations,
    authorities: Authorities,
    parents: Proxies,
    pub(crate) peers: Peers,
    /// Repositories in object storage, by their names: their addresses and sources.
    storages: HashMap<String, (String, Arc<dyn Source>)>,
    permits: Semaphore,
    /// Permits of hosts that clients name: a slow one leaves the other half to the configured servers.
    host_permits: Semaphore,
    spool: Arc<dyn Spool>,
    /// Largest object.
    object_max: u64,
    /// Value of `Via`, which shows this proxy its own requests.
    pub(crate) via: String,
}

/// Options of the client side.
pub(crate) struct UpstreamOptions {
    pub(crate) destinations: Destinations,
    pub(crate) authorities: Authorities,
    /// Proxies between this one and the servers.
    pub(crate) parents: Proxies,
    pub(crate) peers: Peers,
    /// Repositories in object storage.
    pub(crate) storages: Vec<RepositoryStorage>,
    pub(crate) spool: Arc<dyn Spool>,
    pub(crate) object_max: u64,
    pub(crate) via: String,
}

impl UpstreamOptions {
    /// Returns options without servers, for a cache.
    pub(crate) fn of(cache: &Arc<DiskCache>) -> Self {
        let id = RandomState::new().hash_one(std::process::id());
        Self {
            destinations: Destinations::default(),
            authorities: Authorities::default(),
            parents: Proxies::direct(),
            peers: Peers::default(),
            storages: Vec::new(),
            spool: Arc::new(CacheSpool(cache.clone())),
            object_max: object_max(cache),
            via: format!("1.1 esker-{id:016x}"),
        }
    }
}

/// Permits of one request.
type Permits<'p> = (Option<SemaphorePermit<'p>>, Option<SemaphorePermit<'p>>);

/// A request for an object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectQuery {
    pub(crate) name: ObjectName,
    /// Path below the repository.
    pub(crate) path: String,
    /// True if the client refuses cached answers.
    pub(crate) fresh: bool,
    /// True if another proxy of the site asks.
    pub(crate) is_peer: bool,
    pub(crate) urgency: Urgency,
}

impl ObjectQuery {
    /// Returns a request of the proxy itself for an object that clients need soon.
    pub(crate) fn ahead(name: ObjectName, path: String) -> Self {
        Self { name, path, fresh: false, is_peer: false, urgency: Urgency::Prefetch }
    }
}

impl Upstream {
    /// Starts the threads of the client side.
    pub(crate) fn start(options: UpstreamOptions) -> Result<Self, StoreError> {
        let http = HttpOptions {
            connections_near: 64,
            connections_far: 128,
            connect: CONNECT,
            ..HttpOptions::default()
        };
        let retry = RetryPolicy {
            attempts: 2,
            total: TOTAL,
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(1),
            ..RetryPolicy::default()
        };
        let engine = Engine::start(EngineOptions { http, retry, memory: RECEIVED_MAX })?;
        let UpstreamOptions { destinations, authorities, parents, peers, storages, spool, object_max, via } =
            options;
        let (permits, host_permits) = (Semaphore::new(AT_ONCE), Semaphore::new(AT_ONCE / 2));
        let connect = |storage: RepositoryStorage| {
            let source = connect_bucket(&engine, &storage.bucket, &storage.settings)?;
            Ok((storage.name.as_str().to_owned(), (storage.bucket.to_string(), source)))
        };
        let storages = storages.into_iter().map(connect).collect::<Result<_, StoreError>>()?;
        Ok(Self {
            engine,
            destinations,
            authorities,
            parents,
            peers,
            storages,
            permits,
            host_permits,
            spool,
            object_max,
            via,
        })
    }

    /// Returns the servers and hosts that clients may reach.
    pub(crate) fn destinations(&self) -> &Destinations {
        &self.destinations
    }

    /// Returns the certificate authorities.
    pub(crate) fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Opens the source of a folder and returns it with its URLs.
    pub(crate) fn open(&self, folder: &Folder) -> Result<(Vec<String>, Arc<dyn Source>), StoreError> {
        if folder.group == Group::Storage
            && let Some((url, source)) = self.storages.get(&folder.path)
        {
            return Ok((vec![url.clone()], source.clone()));
        }
        let urls = self.destinations.urls(&folder.group, &folder.path);
        let servers = Servers {
            urls: urls.clone(),
            authorities: self.authorities.clone(),
            proxies: self.parents.clone(),
            ..Servers::direct(String::new())
        };
        Ok((urls, connect(&self.engine, servers)?))
    }

    /// Returns a source at each server of a folder alone.
    pub(crate) fn each(&self, place: &Place) -> Result<Vec<Arc<dyn Source>>, StoreError> {
        if let Some(each) = place.each.get() {
            return Ok(each.clone());
        }
        let open = |url: &String| {
            let (authorities, proxies) = (self.authorities.clone(), self.parents.clone());
            connect(&self.engine, Servers { authorities, proxies, ..Servers::direct(url.clone()) })
        };
        let each = place.urls.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(place.each.get_or_init(|| each).clone())
    }

    /// Fetches a file that may change from one source.
    pub(crate) async fn file_at(
        &self,
        source: &Arc<dyn Source>,
        mut fetch: Fetch,
    ) -> Result<Stored, StoreError> {
        fetch.http.fields = Some(self.fields(false));
        fetch.spool = Some(self.spool.clone());
        ask(source, fetch).await
    }

    /// Fetches an object of any size for a reader that gets the bytes while they arrive.
    pub(crate) async fn relay(
        &self,
        place: &Place,
        query: &ObjectQuery,
        relay: Arc<Relay>,
    ) -> Result<(), StoreError> {
        let mut fetch = self.fetch(query, false);
        // The relay compares the hash.
        (fetch.expected, fetch.spool, fetch.limit) = (Expected::Any, None, RELAYED_MAX);
        (fetch.relay, fetch.attempt.detour) = (Some(relay), place.detour(query.name));
        ask(&place.source, fetch).await.map(drop)
    }

    /// Fetches a file that may change.
    pub(crate) async fn file(&self, place: &Place, mut fetch: Fetch) -> Result<Stored, StoreError> {
        fetch.http.fields = Some(self.fields(false));
        fetch.spool = Some(self.spool.clone());
        let _permit = self.permit(place).await;
        ask(&place.source, fetch).await
    }

    /// Waits until a request for this folder may be sent.
    async fn permit(&self, place: &Place) -> Permits<'_> {
        // Neither is ever closed.
        let host = match place.folder.group {
            Group::Host(_) => self.host_permits.acquire().await.ok(),
            Group::Upstreams | Group::Storage => None,
        };
        (host, self.permits.acquire().await.ok())
    }

    /// Fetches and verifies an object: from the peer that owns it, or from upstream.
    pub(crate) async fn object(&self, place: &Place, query: &ObjectQuery) -> Result<Stored, StoreError> {
        let _permit = self.permit(place).await;
        let owner = self.peers.owner(query.name).filter(|_| {
            // Peers have the same configured servers, and not the same allowed hosts.
            !query.is_peer && !query.fresh && place.folder.group == Group::Upstreams
        });
        let Some((number, peer)) = owner else { return self.upstream(place, query).await };
        let open = |path: &str| connect_straight(&self.engine, &format!("{}/cvmfs/{path}", peer.url));
        match place.peer(number, open) {
            Ok(source) => self.peer_first(place, query, peer, &source).await,
            Err(_) => self.upstream(place, query).await,
        }
    }

    /// Asks a peer, and the upstream servers if the peer fails or takes long.
    async fn peer_first(
        &self,
        place: &Place,
        query: &ObjectQuery,
        peer: &Peer,
        source: &Arc<dyn Source>,
    ) -> Result<Stored, StoreError> {
        let mut asking = std::pin::pin!(ask(source, self.fetch(query, true)));
        match timeout(HEDGE, &mut asking).await {
            Ok(Ok(stored)) => return Ok(stored),
            Ok(Err(error)) => {
                peer.failed(&error);
                return self.upstream(place, query).await;
            }
            Err(_) => {}
        }
        let mut upstream = std::pin::pin!(self.upstream(place, query));
        tokio::select! {
            stored = &mut upstream => match stored {
                Ok(stored) => Ok(stored),
                Err(error) => asking.await.map_err(|_| error),
            },
            stored = &mut asking => match stored {
                Ok(stored) => Ok(stored),
                Err(error) => {
                    peer.failed(&error);
                    upstream.await
                }
            },
        }
    }

    async fn upstream(&self, place: &Place, query: &ObjectQuery) -> Result<Stored, StoreError> {
        ask(&place.source, self.fetch(query, false)).await
    }

    fn fetch(&self, query: &ObjectQuery, to_peer: bool) -> Fetch {
        let what = format!("object {}", query.name);
        // Peers fetch from either path by the name alone.
        let path = if to_peer { query.name.path() } else { query.path.clone() };
        let mut fetch = Fetch::new(path, what, self.object_max);
        fetch.object = Some(query.name).filter(|name| name.path() == fetch.path);
        fetch.expected = Expected::Hash(query.name.hash);
        fetch.http.fields = Some(self.fields(to_peer));
        fetch.http.fresh = query.fresh;
        fetch.priority = Priority::new(query.urgency);
        fetch.spool = Some(self.spool.clone());
        fetch
    }

    fn fields(&self, to_peer: bool) -> Arc<[(String, String)]> {
        let via = ("via".to_owned(), self.via.clone());
        let peer = to_peer.then(|| (PEER.to_owned(), "1".to_owned()));
        std::iter::once(via).chain(peer).collect()
    }
}

/// Sends a request and waits for its outcome.
async fn ask(source: &Arc<dyn Source>, fetch: Fetch) -> Result<Stored, StoreError> {
    let what = fetch.what.clone();
    let (sender, receiver) = oneshot::channel();
    source.fetch(
        fetch,
        Callback::new(move |outcome| {
            // The request may be gone.
            let _ = sender.send(outcome);
        }),
    );
    receiver.await.unwrap_or_else(|_| Err(StoreError::new(what, Cause::Closed)))
}
