//! A repository, a store over it and a view over that.

use std::sync::Arc;

use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_store::{
    Cache, CacheOptions, Engine, EngineOptions, HeadKeeper, HeadOptions, ObjectStore, Objects, Source,
    connect,
};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::{Fixture, Repository};
use esker_vfs::TreeError;
use esker_view::{Pin, View, ViewOptions};
use tempfile::TempDir;

/// A repository in a folder with a store over it.
pub(crate) struct Site {
    pub(crate) repository: Repository,
    pub(crate) store: Arc<dyn ObjectStore>,
    engine: Engine,
    cache: Cache,
    source: Arc<dyn Source>,
    _folder: TempDir,
}

impl Site {
    pub(crate) fn of(fixture: Fixture) -> Self {
        Self::over(fixture.unpack())
    }

    /// The same repository with an empty cache.
    pub(crate) fn emptied(self) -> Self {
        Self::over(self.repository)
    }

    fn over(repository: Repository) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions::default()).unwrap();
        // Concurrent tests share the limit of the process, of which each cache would take half.
        esker_testkit::descriptors::allow(4096);
        let options = CacheOptions { descriptors: Some(256), ..CacheOptions::with_quota(1 << 30) };
        let cache = Cache::open(&engine, folder.path(), options).unwrap();
        let source = connect(&engine, &repository.file_url()).unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(Objects::new(&cache, Arc::clone(&source)));
        Self { repository, store, engine, cache, source, _folder: folder }
    }

    /// Adds a file that is one object to a catalog.
    pub(crate) fn add_file(&self, catalog: &Draft, path: &str, content: &[u8]) {
        let stored = Some(digest(&self.repository.store(content, "")));
        catalog.add(&Row { flags: 4, ..Row::file(path, content.len() as u64, stored) });
    }

    /// Mounts a catalog below another one.
    pub(crate) fn nest(&self, into: &Draft, path: &str, nested: Draft) {
        let bytes = nested.finish();
        into.nest(path, &self.repository.store(&bytes, "C"), bytes.len());
    }

    /// Makes this the root catalog of a new revision.
    pub(crate) fn publish_root(&self, root: Draft) {
        let (repository, bytes) = (&self.repository, root.finish());
        let mut head = repository.manifest();
        let revision: u64 = head.get('S').unwrap().parse().unwrap();
        head.set('C', repository.store(&bytes, "C")).set('B', bytes.len()).set('S', revision + 1);
        repository.publish(&head.sign(&repository.fixture().keys()));
    }

    pub(crate) fn heads(&self) -> HeadKeeper {
        let fixture = self.repository.fixture();
        let pem = std::fs::read(fixture.public_key()).unwrap();
        let keys = MasterKeys::parse(&pem).unwrap();
        let options = HeadOptions::new(RepositoryName::parse(fixture.name()).unwrap(), keys);
        let (source, store) = (Arc::clone(&self.source), Arc::clone(&self.store));
        HeadKeeper::new(&self.engine, source, store, &self.cache.heads(), options)
    }

    pub(crate) fn open(&self, options: ViewOptions) -> Result<Arc<View>, TreeError> {
        View::open(Arc::clone(&self.store), self.heads(), options)
    }

    /// Opens a view that checks for new heads on request only.
    pub(crate) fn following(&self) -> Arc<View> {
        let ttl = Some(std::time::Duration::MAX);
        self.open(ViewOptions { ttl, ..ViewOptions::default() }).unwrap()
    }

    pub(crate) fn pinned(&self, pin: Pin) -> Result<Arc<View>, TreeError> {
        self.open(ViewOptions { pin: Some(pin), ..ViewOptions::default() })
    }

    /// Moves the published head to a tag.
    pub(crate) fn publish(&self, tag: &str) {
        self.repository.publish(&self.repository.head_at(tag));
    }
}

/// Parses a digest.
pub(crate) fn digest(hex: &str) -> [u8; 20] {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}
