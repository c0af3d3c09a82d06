//! Objects on their way through the disk, when that is full.

use std::sync::Arc;

use esker_store::{Cache, CacheOptions, Engine, Objects, UNSTATED_SIZE_LIMIT};
use esker_testkit::disk::{FaultDisk, Plan, SmallDisk, scratch};
use esker_testkit::mirror::Mirror;
use tempfile::TempDir;

use crate::rig::{Made, Shelf, as_is, bytes, engine, engine_with, get, noise, roomy, serve, zlib};

/// Without a memory budget every body is spooled; a disk that is full at any one operation fails no read.
#[test]
fn a_disk_full_at_any_operation_of_a_spooled_object_is_survived() {
    // Nothing may lie in memory, so everything goes through the disk.
    let engine = engine_with(|options| options.memory = 0);
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(folder.path());
    let objects: Vec<_> = (0..3).map(|seed| zlib(&noise(seed, 30_000))).collect();
    for object in &objects {
        mirror.put(&format!("/repo/{}", object.wanted.name.path()), object.stored.clone());
    }
    for at in 1.. {
        let place = tempfile::tempdir().unwrap();
        let disk = FaultDisk::new(place.path(), Plan::Nothing);
        let cache = {
            let options = CacheOptions { quota: 1 << 20, ..roomy() };
            Cache::open(&engine, place.path(), CacheOptions { disk: Arc::new(disk.clone()), ..options })
                .unwrap()
        };
        disk.fail_after(at, 28);
        let source = esker_store::connect(&engine, &mirror.url("repo")).unwrap();
        let store = Objects::new(&cache, source);
        for object in &objects {
            assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "operation {at}");
        }
        if disk.struck() == 0 {
            assert!(at > 3 * 7, "each object takes a spool file, a file, and their names: {at}");
            return;
        }
        cache.close().unwrap();
    }
}

/// Bytes of a cache file besides those of its object.
const TRAILER: usize = 64;

/// A disk with so much room, all but a part of which is taken by objects of a megabyte.
fn nearly_full(engine: &Engine, room: u64, free: u64) -> (Cache, TempDir) {
    let place = scratch();
    let disk = Arc::new(SmallDisk::new(room));
    let cache = Cache::open(engine, &place.path().join("cache"), CacheOptions { disk, ..roomy() }).unwrap();
    let others: Vec<_> =
        (0..(room - free) >> 20).map(|seed| as_is(&noise(seed, (1 << 20) - TRAILER))).collect();
    let store = Objects::new(&cache, Shelf::new(&others.iter().collect::<Vec<_>>()));
    others.iter().for_each(|other| drop(get(&store, &other.wanted).unwrap()));
    (cache, place)
}

fn of_unstated_size(mut object: Made) -> Made {
    (object.wanted.size, object.wanted.limit) = (None, UNSTATED_SIZE_LIMIT);
    object
}

/// An object that takes more room than it took on its way.
#[test]
fn a_full_disk_evicts_objects_for_a_whole_large_object() {
    let stated = zlib(&vec![7; 70 << 20]);
    let unstated = of_unstated_size(zlib(&vec![8; 40 << 20]));
    for object in [stated, unstated] {
        let (cache, _place) = nearly_full(&engine(), 80 << 20, 4 << 20);
        let store = Objects::new(&cache, Shelf::new(&[&object]));
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
        assert!(cache.status().evicted > 0);
    }
}

/// Its stored bytes find no room, and their number is unknown.
#[test]
fn a_full_disk_is_not_emptied_for_an_object_of_unstated_size() {
    let engine = engine_with(|options| options.memory = 0);
    let object = of_unstated_size(as_is(&noise(1000, 8_000_000)));
    let (mirror, _folder) = serve(std::slice::from_ref(&object));
    let (cache, _place) = nearly_full(&engine, 100 << 20, 4 << 20);
    let others = cache.status().objects;
    let store = Objects::new(&cache, esker_store::connect(&engine, &mirror.url("repo")).unwrap());
    assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    let evicted = cache.status().evicted;
    assert!((1..others - 20).contains(&evicted), "{evicted} of {others}");
}
