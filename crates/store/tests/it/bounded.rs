//! Disk usage of a cache at every moment, for any requests.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::{
    Cache, CacheOptions, Cause, Disk, Engine, FileFacts, Objects, RealDisk, StoreError, UNSTATED_SIZE_LIMIT,
    connect,
};
use esker_testkit::waiting::until;
use tempfile::TempDir;

use crate::rig::{Made, PATIENCE, Shelf, as_is, bytes, engine, engine_with, noise, roomy, serve, zlib};

const MB: u64 = 1 << 20;
const QUOTA: u64 = 20 * MB;
const HARD: u64 = 25 * MB;
const UNKEPT: u64 = 8 * MB;

/// A real disk that measures, after each write, what all files below a folder take, with a name or without.
struct Measured {
    folder: PathBuf,
    peak: Arc<AtomicU64>,
}

/// Bytes on disk of the files below a folder, and of those that this process has open and that have no name any more.
fn taken(folder: &Path) -> u64 {
    let mut files = HashMap::new();
    let mut note = |facts: &fs::Metadata| {
        if facts.is_file() {
            files.insert(facts.ino(), facts.blocks() * 512);
        }
    };
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder))
            && let Ok(facts) = fs::metadata(entry.path())
        {
            note(&facts);
        }
    }
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => folders.push(entry.path()),
                Ok(facts) => note(&facts),
                Err(_) => {}
            }
        }
    }
    files.values().sum()
}

impl Disk for Measured {
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        RealDisk::PRIVATE.write(file, bytes)?;
        self.peak.fetch_max(taken(&self.folder), Ordering::Relaxed);
        Ok(())
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        RealDisk::PRIVATE.create(path)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        RealDisk::PRIVATE.create_spool(path)
    }

    fn create_nameless(&self, folder: &Path) -> io::Result<Option<File>> {
        RealDisk::PRIVATE.create_nameless(folder)
    }

    fn name(&self, file: &File, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.name(file, path)
    }

    fn reopen(&self, file: &File) -> io::Result<File> {
        RealDisk::PRIVATE.reopen(file)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        RealDisk::PRIVATE.sync(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        RealDisk::PRIVATE.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        RealDisk::PRIVATE.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.rename(from, to)
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.link(target, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        RealDisk::PRIVATE.set_mode(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.remove(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        RealDisk::PRIVATE.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        RealDisk::PRIVATE.facts(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.sync_dir(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        RealDisk::PRIVATE.sync_all(path)
    }
}

/// A small cache whose disk is measured.
struct Rig {
    cache: Cache,
    engine: Engine,
    peak: Arc<AtomicU64>,
    folder: TempDir,
}

impl Rig {
    fn new(engine: Engine) -> Self {
        esker_testkit::descriptors::allow(4096);
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cache");
        let peak = Arc::<AtomicU64>::default();
        let disk = Measured { folder: place.clone(), peak: peak.clone() };
        let options = CacheOptions { quota: QUOTA, hard_limit: HARD, unkept_limit: UNKEPT, ..roomy() };
        let cache = Cache::open(&engine, &place, CacheOptions { disk: Arc::new(disk), ..options }).unwrap();
        Self { cache, engine, peak, folder }
    }

    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Reads an object from memory.
    fn read(&self, object: &Made) -> Result<Vec<u8>, StoreError> {
        bytes(&Objects::new(&self.cache, Shelf::new(&[object])), &object.wanted)
    }

    /// Asserts the bound for all that was read, and that nothing is left of what was refused.
    fn check(&self) {
        assert!(self.peak() <= HARD + UNKEPT, "{} bytes were on the disk at once", self.peak());
        self.cache.settle();
        // The caller gets the error before the last file of a failed attempt is closed.
        let now = || (taken(&self.folder.path().join("cache")), self.cache.status().used);
        let is_closed = until(PATIENCE, || {
            let (left, used) = now();
            left <= used + 64 * 1024
        });
        assert!(is_closed, "{:?} bytes are left and in the account", now());
    }
}

fn of_unstated_size(mut object: Made, limit: u64) -> Made {
    (object.wanted.size, object.wanted.limit) = (None, limit);
    object
}

/// An object that was made to fill the disk: a few hundred kilobytes that inflate to as many megabytes.
fn bomb() -> Made {
    zlib(&vec![0; usize::try_from(200 * MB).unwrap()])
}

/// > C26: The objects of a cache, those that are being written or only passed on among them, never take more than its quota and half as much again, or its quota, a quarter and 64 MiB if that is more, whatever a repository, a server or a user of the broker says.
#[test]
fn oversized_decompression_is_refused_before_writing() {
    for quota in [0, 1 << 20, 200 << 20, 1 << 30, 1 << 40] {
        let usual = CacheOptions::with_quota(quota);
        let bound = (quota + quota / 2).max(quota + quota / 4 + (64 << 20));
        assert!(usual.hard_limit + usual.unkept_limit <= bound);
    }
    let bomb = bomb();
    assert!(bomb.stored.len() < 300_000);
    let said =
        [bomb.clone(), of_unstated_size(bomb.clone(), UNSTATED_SIZE_LIMIT), of_unstated_size(bomb, u64::MAX)];
    for object in said {
        let rig = Rig::new(engine());
        let error = rig.read(&object).unwrap_err();
        let refused = matches!(error.cause(), Cause::LargerThanCache { .. } | Cause::Undecodable(_));
        assert!(refused && !error.may_pass(), "{error}");
        rig.check();
        // What fits is served and kept as ever.
        let small = zlib(&noise(1, 100_000));
        assert!(rig.read(&small).unwrap() == small.plain);
        assert_eq!(rig.cache.status().objects, 1);
    }
}

#[test]
fn excessive_sizes_are_refused_without_a_request() {
    for size in [1 << 40, 1 << 63, u64::MAX] {
        let mut object = zlib(&noise(1, 1000));
        (object.wanted.size, object.wanted.limit) = (Some(size), size);
        let rig = Rig::new(engine());
        let shelf = Shelf::new(&[&object]);
        let error = bytes(&Objects::new(&rig.cache, shelf.clone()), &object.wanted).unwrap_err();
        assert!(matches!(error.cause(), Cause::LargerThanCache { .. }), "{error}");
        assert!(shelf.asked().is_empty() && rig.peak() == 0);
    }
}

/// Stored bytes that go through the disk are counted as they come.
#[test]
fn a_response_is_bounded_while_it_arrives() {
    let object = of_unstated_size(as_is(&noise(7, 60_000_000)), u64::MAX);
    let rig = Rig::new(engine_with(|options| options.memory = 0));
    let (mirror, _folder) = serve(std::slice::from_ref(&object));
    let store = Objects::new(&rig.cache, connect(&rig.engine, &mirror.url("repo")).unwrap());
    let error = bytes(&store, &object.wanted).unwrap_err();
    assert!(matches!(error.cause(), Cause::Full { .. }), "{error}");
    assert!(rig.peak() > 0, "it went through the disk");
    rig.check();
}

/// An object that fits beside its stored bytes in no way is kept all the same: the ones make room for the others.
#[test]
fn an_object_as_large_as_the_quota_replaces_its_spooled_bytes() {
    let object = as_is(&noise(7, usize::try_from(QUOTA).unwrap()));
    let rig = Rig::new(engine_with(|options| options.memory = 0));
    let (mirror, _folder) = serve(std::slice::from_ref(&object));
    let store = Objects::new(&rig.cache, connect(&rig.engine, &mirror.url("repo")).unwrap());
    assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    assert_eq!(rig.cache.status().objects, 1);
    assert!(rig.peak() > QUOTA);
    rig.check();
}

/// Many readers of spooled objects, more than fit at once: each gets the right bytes or an error that there is no room.
#[test]
fn many_spooled_objects_stay_within_the_bound() {
    let objects: Vec<_> = (0..12).map(|seed| zlib(&noise(seed, 6_000_000))).collect();
    let rig = Rig::new(engine_with(|options| options.memory = 0));
    let (mirror, _folder) = serve(&objects);
    let store = Objects::new(&rig.cache, connect(&rig.engine, &mirror.url("repo")).unwrap());
    let read = std::thread::scope(|scope| {
        let store = &store;
        let readers: Vec<_> = objects
            .iter()
            .map(|object| {
                scope.spawn(move || match bytes(store, &object.wanted) {
                    Ok(read) => {
                        assert!(read == object.plain);
                        1
                    }
                    Err(error) => {
                        assert!(error.may_pass(), "{error}");
                        0
                    }
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<usize>()
    });
    assert!(read > 0);
    rig.check();
    // One after the other all are read.
    for object in &objects {
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    }
    rig.check();
}
