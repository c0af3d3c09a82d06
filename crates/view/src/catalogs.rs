//! Attaches catalogs by hash: each is fetched and opened once, however many calls wait for it.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock, Weak};

use esker_format::catalog::{Catalog, PathKey};
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_journal::Journal;
use esker_prefetch::CatalogRequest;
use esker_store::{
    CacheKey, Callback, CancelToken, Handle, Mapped, ObjectRequest, ObjectStore, Progress, Requester,
    StoreError, Warmed,
};
use esker_vfs::{ErrorKind, TreeError};
use parking_lot::Mutex;

use crate::{failure, records};

/// Maximum size of an attached catalog in bytes.
///
/// It is far above the 200,000 entries (some 50 MB) that publishers keep to, and far below what would exhaust a disk.
pub(crate) const CATALOG_BYTES_MAX: u64 = 8 << 30;

/// A mapped and open catalog, detached when its last user drops it.
pub(crate) struct Attached {
    pub(crate) hash: ContentHash,
    pub(crate) catalog: Catalog<Mapped>,
    registry: Weak<Registry>,
}

type Registry = papaya::HashMap<ContentHash, Weak<Attached>>;

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            // Another call may have attached it again in the meantime.
            let _ = registry.pin().remove_if(&self.hash, |_, known| known.strong_count() == 0);
        }
    }
}

/// Request for a catalog.
#[derive(Clone, Debug)]
pub(crate) struct WantedCatalog {
    pub(crate) hash: ContentHash,
    /// Length of the database in bytes, if known.
    pub(crate) size: Option<u64>,
    /// Path of the mountpoint, for messages.
    pub(crate) path: Vec<u8>,
    /// True if the catalog is only available under its alternative name.
    pub(crate) alternative_path: bool,
}

impl CatalogRequest for WantedCatalog {
    fn hash(&self) -> ContentHash {
        self.hash
    }

    fn size(&self) -> Option<u64> {
        self.size
    }
}

impl WantedCatalog {
    pub(crate) fn new(hash: ContentHash, size: Option<u64>, path: &[u8]) -> Self {
        Self { hash, size, path: path.to_vec(), alternative_path: false }
    }

    pub(crate) fn describe(&self) -> String {
        if self.path.is_empty() {
            format!("root catalog {}", self.hash)
        } else {
            format!("catalog {} of {}", self.hash, String::from_utf8_lossy(&self.path))
        }
    }
}

/// A catalog that is being fetched.
#[derive(Default)]
struct Loading {
    waiters: Vec<Waiter>,
    /// Time of the last arrival of bytes of the catalog.
    progress: Progress,
    /// Users for whom the catalog was requested from the store.
    users: Vec<Option<u32>>,
}

type Waiter = Box<dyn FnOnce(Result<Arc<Attached>, TreeError>) + Send>;

/// Attached catalogs, and those being fetched.
pub(crate) struct Catalogs {
    store: Arc<dyn ObjectStore>,
    attached: Arc<Registry>,
    /// Catalogs being fetched. Only calls that miss lock it.
    loading: Mutex<HashMap<ContentHash, Loading>>,
    /// Mountpoints of catalogs that are mounted at another path than they were published with.
    bound: papaya::HashMap<PathKey, Arc<[u8]>>,
    /// Record of them for a process that takes over.
    pub(crate) journal: OnceLock<Arc<Journal>>,
}

impl Catalogs {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store,
            attached: Arc::default(),
            loading: Mutex::default(),
            bound: papaya::HashMap::new(),
            journal: OnceLock::new(),
        }
    }

    pub(crate) fn get(&self, hash: &ContentHash) -> Option<Arc<Attached>> {
        self.attached.pin().get(hash).and_then(Weak::upgrade)
    }

    /// Records a mountpoint that differs from the catalog's own root path.
    pub(crate) fn remember_bound(&self, key: PathKey, path: &Arc<[u8]>) {
        let bound = self.bound.pin();
        if bound.contains_key(&key) {
            return;
        }
        bound.insert(key, Arc::clone(path));
        if let Some(journal) = self.journal.get() {
            // A failure makes the journal invalid, and then no other process takes over.
            let _ = journal.append(&records::of_bound(path));
        }
    }

    /// Returns a recorded mountpoint.
    pub(crate) fn bound_path(&self, mount: &PathKey) -> Option<Arc<[u8]>> {
        self.bound.pin().get(mount).cloned()
    }

    /// Returns all recorded mountpoints.
    pub(crate) fn all_bound(&self) -> Vec<Arc<[u8]>> {
        self.bound.pin().values().map(Arc::clone).collect()
    }

    /// Returns true if the cache must keep the object because it is an attached catalog.
    pub(crate) fn holds(&self, key: &CacheKey) -> bool {
        self.get(&key.hash).is_some()
    }

    /// Attaches a catalog and calls `waiter`, at once or from a thread of the store.
    ///
    /// A failure is reported to the current waiters and not cached: the next call tries again.
    pub(crate) fn attach(self: &Arc<Self>, wanted: WantedCatalog, requester: Requester, waiter: Waiter) {
        let mut loading = self.loading.lock();
        if let Some(attached) = self.get(&wanted.hash) {
            drop(loading);
            return waiter(Ok(attached));
        }
        let known = loading.entry(wanted.hash).or_default();
        known.waiters.push(waiter);
        requester.progress.follow(&known.progress);
        let (is_first, progress) = (known.waiters.len() == 1, known.progress.clone());
        if known.users.contains(&requester.user) {
            return;
        }
        known.users.push(requester.user);
        drop(loading);
        let object = object(&wanted).for_requester(Requester { progress, ..requester });
        if !is_first {
            // It is being fetched already. The second request gives this user's share of the server to the fetch.
            return self.store.get(object, Callback::new(drop));
        }
        let catalogs = Arc::clone(self);
        self.store.get(object, Callback::new(move |answer| catalogs.arrived(&wanted, answer)));
    }

    /// Prefetches and attaches a catalog, without delaying any demanded object.
    pub(crate) fn attach_ahead(
        self: &Arc<Self>,
        wanted: WantedCatalog,
        cancel_token: &CancelToken,
        waiter: Waiter,
    ) {
        let (catalogs, ahead) = (Arc::clone(self), object(&wanted));
        let warmed = move |answer: Result<Warmed, StoreError>| match answer {
            Ok(_) => catalogs.attach(wanted, Requester::default(), waiter),
            Err(error) => waiter(Err(failure::of_store(error, wanted.describe()))),
        };
        self.store.warm(ahead, cancel_token, Callback::new(warmed));
    }

    /// Attaches a catalog for a thread that may wait for it.
    pub(crate) fn attach_soon(self: &Arc<Self>, wanted: WantedCatalog) -> Pending {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let deliver = move |answer| {
            // The caller may have dropped the receiver.
            let _ = sender.send(answer);
        };
        self.attach(wanted, Requester::default(), Box::new(deliver));
        Pending(receiver)
    }

    fn arrived(self: &Arc<Self>, wanted: &WantedCatalog, answer: Result<Handle, StoreError>) {
        let result = answer
            .map_err(|error| failure::of_store(error, wanted.describe()))
            .and_then(|handle| self.open(wanted, &handle));
        let loaded = {
            let mut loading = self.loading.lock();
            if let Ok(attached) = &result {
                self.attached.pin().insert(wanted.hash, Arc::downgrade(attached));
            }
            loading.remove(&wanted.hash).unwrap_or_default()
        };
        for waiter in loaded.waiters {
            waiter(result.clone());
        }
    }

    fn open(&self, wanted: &WantedCatalog, handle: &Handle) -> Result<Arc<Attached>, TreeError> {
        let map = handle
            .map()
            .map_err(|error| TreeError::on(ErrorKind::Local, wanted.describe()).because(error))?;
        let catalog = Catalog::open(map).map_err(|error| failure::of_catalog(error, wanted.describe()))?;
        Ok(Arc::new(Attached { hash: wanted.hash, catalog, registry: Arc::downgrade(&self.attached) }))
    }
}

/// A catalog that is being fetched.
pub(crate) struct Pending(Receiver<Result<Arc<Attached>, TreeError>>);

impl Pending {
    pub(crate) fn wait(self) -> Result<Arc<Attached>, TreeError> {
        self.0.recv().unwrap_or_else(|_| Err(ErrorKind::Internal.into()))
    }
}

/// Returns the request for the object of an attached catalog.
pub(crate) fn object_of(attached: &Attached) -> ObjectRequest {
    object(&WantedCatalog::new(attached.hash, Some(attached.catalog.size()), attached.prefix()))
}

fn object(wanted: &WantedCatalog) -> ObjectRequest {
    let name = ObjectName::new(wanted.hash, ObjectKind::Catalog);
    let mut object = ObjectRequest::new(name, Compression::Zlib, wanted.describe()).limit(CATALOG_BYTES_MAX);
    if let Some(size) = wanted.size.filter(|size| *size <= CATALOG_BYTES_MAX) {
        object = object.size(size);
    }
    object.alternative_path = wanted.alternative_path;
    object
}
