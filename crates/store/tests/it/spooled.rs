//! Objects on their way through the disk, when that is full.

use std::sync::Arc;

use esker_store::{Cache, CacheOptions, Objects};
use esker_testkit::disk::{FaultDisk, Plan};
use esker_testkit::mirror::Mirror;

use crate::rig::{bytes, engine_with, noise, roomy, zlib};

/// Without any memory budget every body is spooled; a disk that is full at one operation, whichever, costs no
/// read.
#[test]
fn a_full_disk_once_at_every_operation_of_spooled_objects() {
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
            Cache::open_on(Arc::new(disk.clone()), &engine, place.path(), options).unwrap()
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
