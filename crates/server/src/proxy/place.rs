//! State of one folder of the upstream servers: usually a repository.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_store::{Source, StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::files::Files;
use super::flights::SharedTasks;
use super::objects::Object;
use super::target::Folder;

/// Maximum number of folders with state. The least recently used ones are dropped first.
const PLACES_MAX: usize = 1024;
/// Maximum number of missing objects that a place remembers.
const MISSING_MAX: usize = 1000;
/// Maximum number of objects for which servers are left out.
const DOUBTFUL_MAX: usize = 100;
/// Time for which a missing object is not asked for again.
const MISSING_AGE: Duration = Duration::from_secs(10);

/// A folder of the upstream servers.
pub(crate) struct Place {
    pub(crate) folder: Folder,
    /// Name of the repository; `None` for the folder of files about the server.
    pub(crate) name: Option<RepositoryName>,
    /// URLs of the folder in the order of use.
    pub(crate) urls: Vec<String>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) objects: Arc<SharedTasks<ObjectName, Object>>,
    pub(crate) files: Files,
    /// Time of the last comparison of all servers' manifests, which decides where there is no key.
    pub(crate) agreed: Mutex<Option<Instant>>,
    /// Held while a new manifest is accepted.
    pub(crate) accepting: tokio::sync::Mutex<()>,
    /// True while a task polls for new revisions on behalf of listeners.
    pub(crate) is_watched: AtomicBool,
    /// The newest revision that was handed out.
    pub(crate) revision: watch::Sender<Option<Revision>>,
    /// Sources of objects at peers, by the number of the peer.
    peers: Mutex<HashMap<usize, Arc<dyn Source>>>,
    /// Sources at each of the servers alone, opened once they are needed.
    pub(crate) each: OnceLock<Vec<Arc<dyn Source>>>,
    /// Objects that came damaged while they were passed on, and how many servers to leave out for them.
    doubtful: Mutex<HashMap<ObjectName, usize>>,
    missing: Mutex<HashMap<ObjectName, Instant>>,
    last_use: AtomicU64,
}

/// A published revision, as it is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    pub(crate) number: u64,
    pub(crate) root: String,
    pub(crate) signed: i64,
}

impl Place {
    pub(crate) fn new(folder: Folder, urls: Vec<String>, source: Arc<dyn Source>, files: Files) -> Self {
        Self {
            name: folder.repository(),
            folder,
            urls,
            source,
            objects: Arc::default(),
            revision: watch::channel(files.revision()).0,
            files,
            agreed: Mutex::default(),
            accepting: tokio::sync::Mutex::default(),
            is_watched: AtomicBool::new(false),
            peers: Mutex::default(),
            each: OnceLock::new(),
            doubtful: Mutex::default(),
            missing: Mutex::default(),
            last_use: AtomicU64::new(0),
        }
    }

    /// Returns the description of the place for logs.
    pub(crate) fn title(&self) -> &str {
        &self.folder.path
    }

    /// Returns the source at a peer.
    pub(crate) fn peer(
        &self,
        number: usize,
        open: impl FnOnce(&str) -> Result<Arc<dyn Source>, StoreError>,
    ) -> Result<Arc<dyn Source>, StoreError> {
        let mut peers = self.peers.lock();
        if let Some(source) = peers.get(&number) {
            return Ok(source.clone());
        }
        let source = open(&self.folder.path)?;
        peers.insert(number, source.clone());
        Ok(source)
    }

    /// Returns the number of servers to leave out for an object that is passed on.
    pub(crate) fn detour(&self, name: ObjectName) -> usize {
        self.doubtful.lock().get(&name).copied().unwrap_or_default()
    }

    /// Records that an object came damaged while it was passed on: the next request leaves its server out.
    pub(crate) fn doubt(&self, name: ObjectName) {
        let mut doubtful = self.doubtful.lock();
        if doubtful.len() >= DOUBTFUL_MAX && !doubtful.contains_key(&name) {
            doubtful.clear();
        }
        let detour = doubtful.entry(name).or_default();
        *detour = (*detour + 1) % self.urls.len().max(1);
    }

    /// Returns true if the object was missing a short time ago.
    pub(crate) fn is_missing(&self, name: ObjectName) -> bool {
        self.missing.lock().get(&name).is_some_and(|since| since.elapsed() < MISSING_AGE)
    }

    /// Records that the object is missing upstream.
    pub(crate) fn miss(&self, name: ObjectName) {
        let mut missing = self.missing.lock();
        if missing.len() >= MISSING_MAX {
            missing.retain(|_, since| since.elapsed() < MISSING_AGE);
        }
        if missing.len() < MISSING_MAX {
            missing.insert(name, Instant::now());
        }
    }

    /// Forgets which objects are missing, because a new revision may have brought them.
    pub(crate) fn forget_missing(&self) {
        self.missing.lock().clear();
    }
}

/// All places in use.
#[derive(Default)]
pub(crate) struct Places {
    all: Mutex<HashMap<Folder, Arc<Place>>>,
    clock: AtomicU64,
}

impl Places {
    /// Returns the place of a folder, opened if it is new.
    pub(crate) fn get(
        &self,
        folder: &Folder,
        open: impl FnOnce() -> Result<Place, StoreError>,
    ) -> Result<Arc<Place>, StoreError> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut all = self.all.lock();
        if let Some(place) = all.get(folder) {
            place.last_use.store(now, Ordering::Relaxed);
            return Ok(place.clone());
        }
        if all.len() >= PLACES_MAX {
            let idle = all.values().filter(|place| Arc::strong_count(place) == 1);
            let oldest = idle.min_by_key(|place| place.last_use.load(Ordering::Relaxed));
            if let Some(folder) = oldest.map(|place| place.folder.clone()) {
                all.remove(&folder);
            }
        }
        let place = Arc::new(open()?);
        place.last_use.store(now, Ordering::Relaxed);
        all.insert(folder.clone(), place.clone());
        Ok(place)
    }

    /// Returns all places in use.
    pub(crate) fn all(&self) -> Vec<Arc<Place>> {
        self.all.lock().values().cloned().collect()
    }
}
