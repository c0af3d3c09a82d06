use std::fs;
use std::thread;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_testkit::waiting::until;

use super::*;

fn object(number: u32, len: usize) -> (ObjectName, Bytes) {
    let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
    (ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &bytes), ObjectKind::Chunk), bytes.into())
}

fn open(root: &Path, limit: u64) -> DiskCache {
    DiskCache::open(root, limit, Duration::ZERO).expect("a cache")
}

fn put(cache: &DiskCache, number: u32, len: usize) -> ObjectName {
    let (name, bytes) = object(number, len);
    assert!(cache.put(name, Incoming::Bytes(bytes)).expect("writing"));
    name
}

/// Sum of all files below the objects' folder.
fn on_disk(root: &Path) -> u64 {
    let folders = fs::read_dir(root.join("objects")).expect("a folder").flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).expect("a folder").flatten());
    files.filter_map(|file| file.metadata().ok()).map(|facts| facts.len()).sum()
}

#[test]
fn a_clean_stop_keeps_objects_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = open(folder.path(), 1000);
    let name = put(&cache, 1, 100);
    cache.close().expect("closing");
    drop(cache);
    let cache = open(folder.path(), 1000);
    assert_eq!(cache.used(), 100);
    assert!(!cache.is_doubtful());
    assert!(cache.find(name).expect("reading").expect("the object").is_trusted);
    assert!(cache.find(object(2, 5).0).expect("reading").is_none());
}

#[test]
fn objects_are_verified_after_an_unclean_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = open(folder.path(), 1000);
    let (good, bad) = (put(&cache, 1, 100), put(&cache, 2, 50));
    fs::write(cache.path(bad), vec![0; 50]).expect("damage");
    fs::write(folder.path().join("tmp/9"), "unfinished").expect("a file");
    drop(cache);
    let cache = open(folder.path(), 1000);
    assert_eq!((cache.used(), cache.is_doubtful()), (150, true));
    assert!(!folder.path().join("tmp/9").exists());
    let found = |name| cache.find(name).expect("reading").expect("the object");
    assert!(!found(good).is_trusted && !found(bad).is_trusted);
    let is_verified =
        || cache.verify(good, found(good)).expect("reading").is_some() && found(good).is_trusted;
    assert!(until(Duration::from_secs(60), is_verified), "once is enough after the tick of the start");
    assert!(cache.verify(bad, found(bad)).expect("reading").is_none());
    assert!(cache.find(bad).expect("reading").is_none());
    assert_eq!(cache.used(), 100);
    assert!(found(put(&cache, 3, 10)).is_trusted, "a new object is");
}

#[test]
fn the_objects_used_last_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = open(folder.path(), 1000);
    let names: Vec<_> = (0..10).map(|number| put(&cache, number, 100)).collect();
    // The clock of the file system may be coarse, so times are set.
    for (at, name) in names.iter().enumerate() {
        let time = UNIX_EPOCH + Duration::from_secs(1000 + at as u64);
        let file = File::options().write(true).open(cache.path(*name)).expect("a file");
        file.set_modified(time).expect("a time");
    }
    cache.find(names[0]).expect("reading").expect("the object");
    put(&cache, 10, 200);
    let has = |name: &ObjectName| cache.path(*name).exists();
    let there: Vec<bool> = names.iter().map(has).collect();
    assert_eq!(there, [true, false, false, true, true, true, true, true, true, true]);
    assert_eq!((cache.used(), on_disk(folder.path())), (1000, 1000));
    assert!(!cache.put(object(11, 1001).0, Incoming::Bytes(object(11, 1001).1)).expect("no error"));
    cache.close().expect("closing");
    drop(cache);
    assert!(open(folder.path(), 300).used() <= 300, "a smaller limit");
}

#[test]
fn the_limit_holds_while_others_read() {
    const LIMIT: u64 = 20_000;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = open(folder.path(), LIMIT);
    thread::scope(|scope| {
        for worker in 0..4u32 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..150 {
                    let name = put(cache, worker * 1000 + round, 500 + (round as usize * 7) % 900);
                    let other = object((round * 31) % 4000, 500).0;
                    for name in [name, other] {
                        let Some(found) = cache.find(name).expect("reading") else { continue };
                        let mut bytes = Vec::new();
                        (&found.file).read_to_end(&mut bytes).expect("an evicted object is readable");
                        assert_eq!(ContentHash::of(HashAlgorithm::Sha1, &bytes), name.hash);
                    }
                    assert!(cache.used() <= LIMIT);
                }
            });
        }
    });
    assert!(on_disk(folder.path()) <= LIMIT);
    assert_eq!(cache.used(), on_disk(folder.path()));
    assert!(cache.evicted.load(Ordering::Relaxed) > 0);
}

#[test]
fn the_same_object_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = open(folder.path(), 1000);
    (0..5).for_each(|_| {
        put(&cache, 1, 400);
    });
    assert_eq!((cache.used(), on_disk(folder.path())), (400, 400));
}

#[test]
fn a_cache_folder_is_locked_by_one_proxy() {
    let folder = tempfile::tempdir().expect("a folder");
    let _cache = open(folder.path(), 1000);
    let second = DiskCache::open(folder.path(), 1000, Duration::ZERO);
    assert!(matches!(second, Err(CacheError::Busy { .. })));
}

/// As the cache of a mount, and a bare git repository.
#[test]
fn a_folder_of_something_else_is_refused_and_stays_as_it_is() {
    for files in [&["lock", "objects/ab/cdef.z", "txn/17"][..], &["HEAD", "objects/ab/cdef", "tmp/17"]] {
        let folder = tempfile::tempdir().expect("a folder");
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, file).expect("a file");
        }
        let error = DiskCache::open(folder.path(), 1 << 20, Duration::ZERO).expect_err("another folder");
        assert!(matches!(error, CacheError::NotOurs { .. }), "{error}");
        for file in files {
            assert_eq!(fs::read_to_string(folder.path().join(file)).expect("a file"), *file);
        }
        assert_eq!(fs::read_dir(folder.path()).expect("entries").count(), 3);
    }
}
