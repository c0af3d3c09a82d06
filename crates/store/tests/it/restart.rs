//! State of a cache after its process ended or was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Blame, Cache, CacheOptions, Cause, Lower, LowerForm, ObjectStore, Objects};
use esker_testkit::disk::{FaultDisk, Plan};

use crate::crash::Begun;
use crate::rig::{Made, Rig, Shelf, bytes, engine, get, listed_folder, noise, roomy, zlib};

fn objects() -> Vec<Made> {
    (0..20).map(|seed| zlib(&noise(seed, 1000 * usize::try_from(seed).unwrap()))).collect()
}

/// A cache folder with all objects; closed cleanly, or left as a crash would.
fn filled(objects: &[Made], clean: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let store = Objects::new(&cache, shelf);
    for object in objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    cache.close().unwrap();
    assert!(folder.path().join("index").exists());
    if !clean {
        fs::remove_file(folder.path().join("index")).unwrap();
    }
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for inner in fs::read_dir(folder.join("objects")).unwrap() {
        for file in fs::read_dir(inner.unwrap().path()).unwrap() {
            found.push(file.unwrap().path());
        }
    }
    found
}

#[test]
fn a_clean_restart_reads_all_objects_from_the_index() {
    let objects = objects();
    let folder = filled(&objects, true);
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    assert!(!folder.path().join("index").exists(), "from now on a stop is unclean");
    let shelf = Shelf::new(&[]);
    let store = Objects::new(&cache, shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    let status = cache.status();
    assert!(!status.opened_unclean);
    assert_eq!((status.objects, status.unchecked, shelf.asked().len()), (20, 0, 0), "all were compared");
}

#[test]
fn an_unclean_restart_checks_before_the_first_use() {
    let objects = objects();
    let folder = filled(&objects, false);
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    let shelf = Shelf::new(&[]);
    let store = Objects::new(&cache, shelf.clone());
    assert!(cache.status().opened_unclean);
    assert_eq!(cache.status().unchecked, 20);
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
        assert!(store.cached(&object.wanted).is_some());
    }
    assert_eq!((cache.status().unchecked, shelf.asked().len()), (0, 0));
}

/// A restart reads the objects of a large cache from its index, and opens no object.
#[test]
fn a_clean_restart_opens_no_object() {
    const ENTRIES: u64 = 100_000;
    let folder = listed_folder(ENTRIES);
    let disk = Arc::new(FaultDisk::new(folder.path(), Plan::Nothing));
    let cache =
        Cache::open(&engine(), folder.path(), CacheOptions { disk: disk.clone(), ..roomy() }).unwrap();
    let status = cache.status();
    assert_eq!((status.objects, status.unchecked, status.opened_unclean), (ENTRIES, ENTRIES, false));
    assert!(disk.operations() < 20, "{} operations", disk.operations());
}

/// Any content that a crash leaves in a file is detected, dropped and fetched again.
#[test]
fn damaged_files_are_fetched_again_after_an_unclean_stop() {
    let objects = objects();
    let folder = filled(&objects, false);
    let files = files(folder.path());
    for (number, file) in files.iter().enumerate() {
        let content = fs::read(file).unwrap();
        let len = content.len();
        let damaged: Vec<u8> = match number % 6 {
            0 => vec![0; len],
            1 => content[..len / 2].to_vec(),
            2 => [&content[..len / 2], &vec![0; len - len / 2][..]].concat(),
            3 => vec![],
            4 => content
                .iter()
                .enumerate()
                .map(|(at, byte)| if at == len - 65 { !byte } else { *byte })
                .collect(),
            // Another object's whole content.
            _ => fs::read(&files[(number + 1) % files.len()]).unwrap(),
        };
        fs::write(file, damaged).unwrap();
    }
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let store = Objects::new(&cache, shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    let status = cache.status();
    assert_eq!(shelf.asked().len(), 20, "every one was damaged");
    assert_eq!(status.objects, 20);
    assert!(status.damaged > 10, "the others were too short to be listed");
}

/// The folder is emptied while the cache is closed, or while it is open.
#[test]
fn vanished_files_are_fetched_again() {
    let objects = objects();
    let folder = filled(&objects, true);
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    fs::remove_dir_all(folder.path().join("objects")).unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let store = Objects::new(&cache, shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    assert_eq!(shelf.asked().len(), 20);
    assert_eq!(cache.status().unkept, 20, "without the folder nothing can be kept, but all is served");
    let status = cache.status();
    assert!(status.disk_errors > 0);
    let (_, failure) = status.disk_failure.expect("what was wrong");
    assert!(failure.contains("objects/") && failure.contains("No such file"), "{failure}");
}

/// A file that is not in the index has the name of an object.
#[test]
fn a_wrong_file_under_an_object_name_is_replaced() {
    let objects = objects();
    let full = filled(&objects, true);
    for begun in Begun::BOTH {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(begun.disk(folder.path(), Plan::Nothing));
        let cache = Cache::open(&engine(), folder.path(), CacheOptions { disk, ..roomy() }).unwrap();
        let in_the_way = files(full.path()).into_iter().map(|path| {
            let place = folder.path().join(path.strip_prefix(full.path()).unwrap());
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, b"in the way").unwrap();
            place
        });
        let in_the_way: Vec<_> = in_the_way.collect();
        let store = Objects::new(&cache, Shelf::new(&objects.iter().collect::<Vec<_>>()));
        for object in &objects {
            assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
        }
        assert_eq!((cache.status().objects, cache.status().disk_errors), (20, 0), "{begun:?}");
        for place in &in_the_way {
            assert!(fs::read(place).unwrap() != b"in the way", "{begun:?}");
        }
        assert_eq!(fs::read_dir(folder.path().join("txn")).unwrap().count(), 0);
    }
}

#[test]
fn unfinished_files_are_removed_at_start() {
    let folder = filled(&objects(), false);
    fs::write(folder.path().join("txn/17"), b"half").unwrap();
    fs::write(folder.path().join("heads/.new-1-x.head"), b"half").unwrap();
    fs::write(folder.path().join("heads/x.head"), b"whole").unwrap();
    fs::write(folder.path().join("objects/ab-no-object"), b"?").unwrap();
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    assert_eq!(cache.status().leftovers, 2);
    assert_eq!(fs::read_dir(folder.path().join("txn")).unwrap().count(), 0);
    assert!(folder.path().join("heads/x.head").exists());
    // The cache never gives such a name: whatever it is, it is not the cache's to remove.
    assert!(folder.path().join("objects/ab-no-object").exists());
}

/// As `--cache DIR` with the folder of a bare git repository.
///
/// > C28: A folder that is not empty and has no mark of a cache is refused as the cache of a mount, broker, server or proxy, as a cache of images, and as an alien cache, and nothing in it is changed.
#[test]
fn a_folder_of_something_else_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["HEAD", "objects/ab/0123456789abcdef0123456789abcdef012345", "objects/pack/a.pack", "txn/17"]
    {
        fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
        fs::write(folder.path().join(path), path).unwrap();
    }
    let all = || {
        let mut paths = vec![folder.path().to_owned()];
        let mut files = Vec::new();
        while let Some(path) = paths.pop() {
            match fs::read_dir(&path) {
                Ok(entries) => paths.extend(entries.map(|entry| entry.unwrap().path())),
                Err(_) => files.push((path.clone(), fs::read(&path).unwrap())),
            }
        }
        files.sort();
        files
    };
    let before = all();
    let error = Cache::open(&engine(), folder.path(), roomy()).err().unwrap();
    assert!(matches!(error.cause(), Cause::NotOurs { entry, .. } if entry == "HEAD"), "{error}");
    let error = esker_store::BlockCache::open(folder.path(), 1 << 20).err().unwrap();
    assert!(matches!(error.cause(), Cause::NotOurs { .. }), "{error}");
    let lower = Lower { folder: folder.path().to_owned(), form: LowerForm::Alien, root: 0 };
    let own = tempfile::tempdir().unwrap();
    let options = CacheOptions { lower: vec![lower], ..roomy() };
    let error = Cache::open(&engine(), own.path(), options).err().unwrap();
    assert!(matches!(error.cause(), Cause::NotOurs { .. }), "{error}");
    assert!(all() == before, "{before:?} became {:?}", all());
}

#[test]
fn a_cache_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let first = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    let error = Cache::open(&engine(), folder.path(), roomy()).err().unwrap();
    let me = std::process::id();
    assert!(matches!(error.cause(), Cause::Busy { pid: Some(pid), .. } if *pid == me), "{error}");
    drop(first);
    Cache::open(&engine(), folder.path(), roomy()).unwrap();
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o770)).unwrap();
    let error = Cache::open(&engine(), folder.path(), roomy()).err().unwrap();
    assert!(matches!(error.cause(), Cause::NotPrivate { .. }), "{error}");
    assert_eq!(error.blame(), Blame::Disk);
}

#[test]
fn a_place_that_can_not_be_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Cache::open(&engine(), &file.join("cache"), roomy()).err().unwrap();
    assert_eq!(error.blame(), Blame::Disk);
    assert!(error.full_text().contains("file/cache"), "{}", error.full_text());
}

/// After closing, what was given out reads on, and misses are served without being kept.
#[test]
fn a_closed_cache_still_serves() {
    let object = zlib(&noise(1, 3000));
    let other = zlib(&noise(2, 3000));
    let rig = Rig::new();
    let store = rig.store(Shelf::new(&[&object, &other]));
    let handle = get(&store, &object.wanted).unwrap();
    rig.cache.close().unwrap();
    assert_eq!(handle.read_all().unwrap(), object.plain);
    assert_eq!(bytes(&store, &other.wanted).unwrap(), other.plain);
    assert_eq!(rig.cache.status().objects, 1);
    drop(rig.folder);
}
