//! What the tests are done with: objects of their own making, a source that holds answers back, a cache in a
//! temporary folder.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use esker_format::compress::{Compression, compress_zlib};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{
    Cache, CacheOptions, Callback, Cause, Engine, EngineOptions, Fetch, Handle, ObjectRequest, ObjectStore,
    Objects, RetryPolicy, Source, StoreError, Stored,
};
use esker_testkit::cache_index;
use esker_testkit::mirror::Mirror;
use tempfile::TempDir;

/// Small objects, each another one.
pub(crate) fn objects(count: u64) -> Vec<Made> {
    (0..count).map(|seed| zlib(&noise(seed, 2000))).collect()
}

/// Longer than anything in a test should take, on a machine that does other things as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with objects in the repository `repo`, which a server that is another user can read.
pub(crate) fn folder(objects: &[Made]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for object in objects {
        let path = folder.path().join("repo").join(object.wanted.name.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &object.stored).unwrap();
    }
    folder
}

/// A mirror with objects in the repository `repo`.
pub(crate) fn serve(objects: &[Made]) -> (Mirror, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(folder.path());
    for object in objects {
        mirror.put(&format!("/repo/{}", object.wanted.name.path()), object.stored.clone());
    }
    (mirror, folder)
}

/// An engine with short pauses; its deadlines are those of a real one, because a test machine may be slow.
pub(crate) fn engine() -> Engine {
    engine_with(|_| {})
}

/// An engine with short deadlines, for tests that run into them.
pub(crate) fn hasty() -> Engine {
    engine_with(|options| {
        options.http.first_byte = Duration::from_secs(1);
        options.http.low_speed = 4096;
        options.http.low_speed_window = Duration::from_secs(1);
    })
}

pub(crate) fn engine_with(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let retry = RetryPolicy {
        attempts: 2,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(20),
        ..RetryPolicy::default()
    };
    let mut options = EngineOptions { retry, ..EngineOptions::default() };
    // However long a busy machine takes to answer itself.
    options.http.pieces = Duration::MAX;
    change(&mut options);
    Engine::start(options).unwrap()
}

/// A cache in a folder of its own.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) cache: Cache,
    pub(crate) folder: TempDir,
}

/// Options with limits that don't matter, for tests about something else.
pub(crate) fn roomy() -> CacheOptions {
    CacheOptions { patience: Duration::ZERO, ..CacheOptions::with_quota(1 << 40) }
}

/// Returns a cache folder whose index lists this many objects, which have no files.
pub(crate) fn listed_folder(entries: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Cache::open(&engine(), folder.path(), roomy()).unwrap().close().unwrap();
    std::fs::write(folder.path().join("index"), cache_index::of_absent(entries)).unwrap();
    folder
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(engine(), roomy())
    }

    pub(crate) fn with(engine: Engine, options: CacheOptions) -> Self {
        // Many tests at once share the limit of the process, of which each cache would take half.
        esker_testkit::descriptors::allow(4096);
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&engine, &folder.path().join("cache"), options).unwrap();
        Self { engine, cache, folder }
    }

    pub(crate) fn store(&self, source: Arc<dyn Source>) -> Objects {
        Objects::new(&self.cache, source)
    }

    /// The store of the repository at this URL.
    pub(crate) fn open(&self, url: &str) -> Objects {
        self.store(esker_store::connect(&self.engine, url).unwrap())
    }
}

/// Gets an object and waits.
pub(crate) fn get(store: &dyn ObjectStore, wanted: &ObjectRequest) -> Result<Handle, StoreError> {
    Callback::wait(|done| store.get(wanted.clone(), done))
}

/// Gets the bytes of an object and waits.
pub(crate) fn bytes(store: &dyn ObjectStore, wanted: &ObjectRequest) -> Result<Vec<u8>, StoreError> {
    get(store, wanted).map(|handle| handle.read_all().unwrap())
}

/// An object of a test's making.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) plain: Vec<u8>,
    pub(crate) stored: Vec<u8>,
    pub(crate) wanted: ObjectRequest,
}

/// Stores bytes with zlib.
pub(crate) fn zlib(plain: &[u8]) -> Made {
    made(plain, compress_zlib(plain), Compression::Zlib)
}

/// Stores bytes as they are.
pub(crate) fn as_is(plain: &[u8]) -> Made {
    made(plain, plain.to_vec(), Compression::Stored)
}

fn made(plain: &[u8], stored: Vec<u8>, compression: Compression) -> Made {
    let hash = ContentHash::of(HashAlgorithm::Sha1, &stored);
    let name = ObjectName::new(hash, ObjectKind::File);
    let wanted = ObjectRequest::new(name, compression, "/some/file").size(plain.len() as u64);
    Made { plain: plain.to_vec(), stored, wanted }
}

/// Bytes that don't compress, different for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A source in memory that can hold its answers back.
#[derive(Default)]
pub(crate) struct Shelf {
    state: Mutex<ShelfState>,
    changed: Condvar,
}

#[derive(Default)]
struct ShelfState {
    objects: HashMap<String, Vec<u8>>,
    holding: bool,
    held: Vec<(Fetch, Callback<Stored>)>,
    asked: Vec<Fetch>,
}

impl Shelf {
    pub(crate) fn new(objects: &[&Made]) -> Arc<Self> {
        let shelf = Arc::new(Self::default());
        for object in objects {
            shelf.put(object);
        }
        shelf
    }

    pub(crate) fn put(&self, object: &Made) {
        self.state.lock().unwrap().objects.insert(object.wanted.name.path(), object.stored.clone());
    }

    /// From now on requests wait.
    pub(crate) fn hold(&self) {
        self.state.lock().unwrap().holding = true;
    }

    /// Answers what waits, and from now on at once.
    pub(crate) fn let_go(&self) {
        let held = {
            let mut state = self.state.lock().unwrap();
            state.holding = false;
            std::mem::take(&mut state.held)
        };
        for (fetch, done) in held {
            done.give(self.answer(&fetch));
        }
    }

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Fetch> {
        self.state.lock().unwrap().asked.clone()
    }

    /// Waits for so many requests.
    pub(crate) fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let patience = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.asked.len() < count);
        assert!(!waited.unwrap().1.timed_out(), "fewer than {count} requests came");
    }

    fn answer(&self, fetch: &Fetch) -> Result<Stored, StoreError> {
        match self.state.lock().unwrap().objects.get(&fetch.path) {
            Some(stored) => Ok(Stored::in_memory(stored.clone())),
            None => {
                let cause = Cause::Missing { status: "not on the shelf".to_owned() };
                Err(StoreError::new(fetch.what.clone(), cause))
            }
        }
    }
}

impl Source for Shelf {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let mut state = self.state.lock().unwrap();
        state.asked.push(fetch.clone());
        self.changed.notify_all();
        if state.holding {
            state.held.push((fetch, done));
            return;
        }
        drop(state);
        done.give(self.answer(&fetch));
    }

    fn describe(&self) -> String {
        "the shelf".to_owned()
    }
}
