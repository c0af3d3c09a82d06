//! Opens caches for writing, on disk or in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_object_storage::connect;
use esker_store::{
    Blame, Cache, CacheOptions, Cause, Engine, Lower, ObjectStore, Objects, Servers, ServersError, StoreError,
};
use parking_lot::Mutex;

use crate::memory::{self, SpareFolder};
use crate::shared_cache::{Opener, Writer};

/// Number of unused repositories whose connections and counters are kept for returning clients.
const STORES_KEPT: usize = 64;

/// Opens the cache of a repository on disk or in memory.
pub struct CacheOpener {
    /// Engine that fetches the objects.
    pub engine: Engine,
    /// Folder of the cache.
    pub folder: PathBuf,
    /// Limits of the cache, and its lower folders.
    pub room: CacheOptions,
}

impl Opener for CacheOpener {
    fn open(&self) -> Result<Arc<dyn Writer>, StoreError> {
        open_writer(&self.engine, &self.folder, self.room.clone())
    }

    fn open_spare(&self) -> Option<Arc<dyn Writer>> {
        let folder = memory::spare().ok()?;
        let room = CacheOptions { streaming: true, ..room(folder.quota, self.room.lower.clone()) };
        let cache = Cache::open(&self.engine, &folder.path, room).ok()?;
        Some(Arc::new(CacheWriter::new(&self.engine, cache, Some(folder))))
    }
}

/// Returns the limits of a cache, and its lower folders.
pub fn room(quota: u64, lower: Vec<Lower>) -> CacheOptions {
    CacheOptions { lower, ..CacheOptions::with_quota(quota) }
}

/// Becomes the writer of a cache.
pub(crate) fn open_writer(
    engine: &Engine,
    folder: &Path,
    room: CacheOptions,
) -> Result<Arc<dyn Writer>, StoreError> {
    let cache = Cache::open(engine, folder, room)?;
    Ok(Arc::new(CacheWriter::new(engine, cache, None)))
}

/// A cache that this process writes, and the repositories that use it.
struct CacheWriter {
    engine: Engine,
    cache: Cache,
    stores: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    /// Folder of a cache in memory.
    _memory: Option<SpareFolder>,
}

impl CacheWriter {
    fn new(engine: &Engine, cache: Cache, memory: Option<SpareFolder>) -> Self {
        Self { engine: engine.clone(), cache, stores: Mutex::default(), _memory: memory }
    }
}

impl Writer for CacheWriter {
    fn store(&self, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        let mut stores = self.stores.lock();
        if let Some(store) = stores.get(servers) {
            return Ok(store.clone());
        }
        let asked = read_servers(servers)?;
        let external = asked.external.as_deref().map(|external| connect(&self.engine, external.clone()));
        let external = external.transpose()?;
        let source = connect(&self.engine, asked)?;
        let store: Arc<dyn ObjectStore> = Arc::new(Objects::with_external(&self.cache, source, external));
        if stores.len() >= STORES_KEPT {
            // Those that a client uses are not ours alone.
            stores.retain(|_, store| Arc::strong_count(store) > 1);
        }
        stores.insert(servers.to_owned(), store.clone());
        Ok(store)
    }

    fn cache(&self) -> Option<Cache> {
        Some(self.cache.clone())
    }

    fn is_lost(&self) -> bool {
        self.cache.is_lost()
    }

    fn close(&self) {
        // The next writer checks the files that could not be made durable.
        let _ = self.cache.close();
    }
}

/// Parses the servers that a client of the shared cache sent.
pub(crate) fn read_servers(servers: &str) -> Result<Servers, StoreError> {
    servers.parse().map_err(|error: ServersError| {
        let text = error.to_string();
        StoreError::new("the repository", Cause::Remote { blame: Blame::Caller, may_pass: false, text })
    })
}
