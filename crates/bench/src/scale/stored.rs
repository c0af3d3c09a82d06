//! Measures a view over a cache, and a cache over a source in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{
    Cache, CacheOptions, Callback, Engine, EngineOptions, HeadKeeper, HeadOptions, ObjectRequest,
    ObjectStore, Objects, Source, connect,
};
use esker_testkit::disk::scratch;
use esker_testkit::fixture::{FULL, Repository};
use esker_testkit::object::deflate;
use esker_vfs::{Kind, Node, NodeWithAttr, Reply, Tree};
use esker_view::{View, ViewOptions};
use tempfile::TempDir;

use super::Subject;
use esker_testkit::soak::Random;

/// A view of a fixture that doesn't refresh, and the fixture's files.
struct Site {
    view: Arc<View>,
    names: Vec<(Node, Box<[u8]>)>,
    files: Vec<NodeWithAttr>,
    // Engine of the view; later fields are dropped later.
    _engine: Engine,
    _cache: Cache,
    _folders: (TempDir, Repository),
}

impl Site {
    fn new() -> Result<Self> {
        let (repository, folder) = (FULL.unpack(), scratch());
        let engine = Engine::start(EngineOptions::default())?;
        let cache = cache(&engine, folder.path())?;
        let source = connect(&engine, &repository.file_url())?;
        let store: Arc<dyn ObjectStore> = Arc::new(Objects::new(&cache, Arc::clone(&source)));
        let keys = MasterKeys::parse(&std::fs::read(FULL.public_key())?)?;
        let options = HeadOptions::new(RepositoryName::parse(FULL.name())?, keys);
        let keeper = HeadKeeper::new(&engine, source, Arc::clone(&store), &cache.heads(), options);
        let options = ViewOptions { ttl: Some(Duration::MAX), ..ViewOptions::default() };
        let view = View::open(store, keeper, options)?;
        let (mut names, mut files, mut waiting) = (Vec::new(), Vec::new(), vec![view.root().node]);
        while let Some(dir) = waiting.pop() {
            for entry in view.names(&dir)?.iter() {
                names.push((dir, entry.name.clone()));
                match entry.node.kind {
                    Kind::Directory => waiting.push(entry.node),
                    Kind::File => files.push(NodeWithAttr { node: entry.node, attr: entry.attr }),
                    _ => {}
                }
            }
        }
        Ok(Self { view, names, files, _engine: engine, _cache: cache, _folders: (folder, repository) })
    }
}

fn cache(engine: &Engine, folder: &Path) -> Result<Cache> {
    Ok(Cache::open(engine, folder, CacheOptions::with_quota(1 << 30))?)
}

/// Returns a pseudo-random number below `limit`, so that no two threads are at the same place.
fn scattered(number: usize, limit: usize) -> usize {
    Random(number as u64).below(limit)
}

pub(super) struct Lookups(Site);

impl Lookups {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Site::new()?))
    }
}

impl Subject for Lookups {
    fn prepare(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn operate(&self, number: usize) -> Result<()> {
        let Site { view, names, .. } = &self.0;
        let (dir, name) = &names[scattered(number, names.len())];
        Reply::wait(|reply| view.lookup(dir, name, reply))?;
        Ok(())
    }
}

/// Maximum number of bytes in one read, as for the kernel.
const READ_MAX: usize = 128 << 10;

pub(super) struct Reads(Site);

impl Reads {
    /// Fetches all objects into the cache.
    pub(super) fn new() -> Result<Self> {
        let mut site = Site::new()?;
        site.files.retain(|file| file.attr.size > 0);
        let reads = Self(site);
        for at in 0..reads.0.files.len() {
            reads.read(at)?;
        }
        Ok(reads)
    }

    fn read(&self, at: usize) -> Result<()> {
        let Site { view, files, .. } = &self.0;
        let file = &files[at];
        let data = Reply::wait(|reply| view.read(&file.node, 0, READ_MAX, reply))?;
        let expected = usize::try_from(file.attr.size)?.min(READ_MAX);
        ensure!(data.len() == expected, "{} bytes of {expected}", data.len());
        Ok(())
    }
}

impl Subject for Reads {
    fn prepare(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn operate(&self, number: usize) -> Result<()> {
        self.read(scattered(number, self.0.files.len()))
    }
}

/// Bytes of each object: a small file of source code.
const OBJECT_LEN: usize = 4096;

pub(super) struct Misses {
    objects: Vec<ObjectRequest>,
    // Before the engine that it works for.
    round: Option<Round>,
    source: Arc<dyn Source>,
    engine: Engine,
    published: TempDir,
}

/// Cache of one round, which starts empty.
struct Round {
    store: Objects,
    cache: Cache,
    _folder: TempDir,
}

impl Misses {
    pub(super) fn new() -> Result<Self> {
        let published = scratch();
        let engine = Engine::start(EngineOptions::default())?;
        let source = connect(&engine, &format!("file://{}", published.path().display()))?;
        Ok(Self { objects: Vec::new(), round: None, source, engine, published })
    }

    fn publish(&mut self) -> Result<()> {
        let number = self.objects.len();
        // Half of it compresses, as text does.
        let mut random = Random(number as u64);
        let plain: Vec<u8> = (0..OBJECT_LEN).map(|_| b'a' + (random.draw() % 16) as u8).collect();
        let stored = deflate(&plain);
        let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &stored), ObjectKind::File);
        let path = self.published.path().join(name.path());
        std::fs::create_dir_all(path.parent().context("an object lies in a folder")?)?;
        std::fs::write(path, stored)?;
        self.objects.push(ObjectRequest::new(name, Compression::Zlib, "/an/object").size(OBJECT_LEN as u64));
        Ok(())
    }
}

impl Subject for Misses {
    fn prepare(&mut self, operations: usize) -> Result<()> {
        while self.objects.len() < operations {
            self.publish()?;
        }
        if let Some(round) = self.round.take() {
            let used = round.store.status().traffic.fetched;
            ensure!(used == operations as u64, "{used} of {operations} objects were fetched");
            round.cache.close()?;
        }
        let folder = scratch();
        let cache = cache(&self.engine, folder.path())?;
        let store = Objects::new(&cache, Arc::clone(&self.source));
        self.round = Some(Round { store, cache, _folder: folder });
        Ok(())
    }

    fn operate(&self, number: usize) -> Result<()> {
        let round = self.round.as_ref().context("a round is prepared")?;
        let handle = Callback::wait(|done| round.store.get(self.objects[number].clone(), done))?;
        ensure!(handle.len() == OBJECT_LEN as u64, "{} bytes", handle.len());
        Ok(())
    }
}
