//! Attached catalogs, by hash: each is fetched and opened once, however many calls wait for it.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use esker_format::catalog::{Catalog, PathKey};
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_prefetch::bundles::CatalogRequest;
use esker_store::{
    CacheKey, Callback, CancelToken, Handle, Mapped, ObjectRequest, ObjectStore, Progress, Requester,
    StoreError, Warmed,
};
use esker_vfs::{ErrorKind, TreeError};
use parking_lot::Mutex;

use crate::failure;

/// The largest catalog we attach: far above the 200,000 entries (some 50 MB) that publishers keep to, far
/// below what would exhaust a disk.
pub(crate) const CATALOG_BYTES_MAX: u64 = 8 << 30;

/// A catalog that is mapped and open. Detached when the last user lets go.
pub(crate) struct Attached {
    pub(crate) hash: ContentHash,
    pub(crate) catalog: Catalog<Mapped>,
    registry: Weak<Registry>,
}

type Registry = papaya::HashMap<ContentHash, Weak<Attached>>;

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            // Somebody may have attached it anew in the meantime.
            let _ = registry.pin().remove_if(&self.hash, |_, known| known.strong_count() == 0);
        }
    }
}

/// A catalog to be attached.
#[derive(Clone, Debug)]
pub(crate) struct WantedCatalog {
    pub(crate) hash: ContentHash,
    /// Length of the database, where it is known.
    pub(crate) size: Option<u64>,
    /// Where it is mounted, for messages.
    pub(crate) path: Vec<u8>,
    /// Whether it is to be had under its alternative name only.
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

/// A catalog on its way.
#[derive(Default)]
struct Loading {
    waiters: Vec<Waiter>,
    /// When bytes of it last came.
    progress: Progress,
    /// The users for whom the store was asked.
    users: Vec<Option<u32>>,
}

type Waiter = Box<dyn FnOnce(Result<Arc<Attached>, TreeError>) + Send>;

/// All attached catalogs, and those on their way.
pub(crate) struct Catalogs {
    store: Arc<dyn ObjectStore>,
    attached: Arc<Registry>,
    /// Only calls that miss come here.
    loading: Mutex<HashMap<ContentHash, Loading>>,
    /// Where catalogs were mounted at another path than they were published with: their names don't tell.
    bound: papaya::HashMap<PathKey, Arc<[u8]>>,
}

impl Catalogs {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, attached: Arc::default(), loading: Mutex::default(), bound: papaya::HashMap::new() }
    }

    pub(crate) fn get(&self, hash: &ContentHash) -> Option<Arc<Attached>> {
        self.attached.pin().get(hash).and_then(Weak::upgrade)
    }

    /// Remembers a mountpoint that a catalog's own root path doesn't tell.
    pub(crate) fn remember_bound(&self, key: PathKey, path: &Arc<[u8]>) {
        self.bound.pin().get_or_insert_with(key, || Arc::clone(path));
    }

    /// A mountpoint that was remembered.
    pub(crate) fn bound_path(&self, mount: &PathKey) -> Option<Arc<[u8]>> {
        self.bound.pin().get(mount).cloned()
    }

    /// Whether the cache must keep the object because it is an attached catalog.
    pub(crate) fn holds(&self, key: &CacheKey) -> bool {
        self.get(&key.hash).is_some()
    }

    /// Attaches a catalog and tells `waiter`, at once or from a thread of the store. A failure is told to
    /// those who wait now and not remembered: the next call tries again.
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
            // It is on its way already; this user waits for it, too, so it has this user's share of the server.
            return self.store.get(object, Callback::new(drop));
        }
        let catalogs = Arc::clone(self);
        self.store.get(object, Callback::new(move |answer| catalogs.arrived(&wanted, answer)));
    }

    /// Attaches a catalog that nobody waits for: it comes as far as that delays nothing that is demanded.
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
            // Whoever asked may have given up.
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

/// A catalog that is on its way.
pub(crate) struct Pending(Receiver<Result<Arc<Attached>, TreeError>>);

impl Pending {
    pub(crate) fn wait(self) -> Result<Arc<Attached>, TreeError> {
        self.0.recv().unwrap_or_else(|_| Err(ErrorKind::Internal.into()))
    }
}

/// The object that an attached catalog came from.
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
