//! Pinning, evicting, checking and wiping on request.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use esker_store::{Cache, CacheKey, CacheOptions, CheckProgress, DamagedObject, Freed, Goal};
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use crate::rig::{Made, Rig, Shelf, as_is, bytes, engine, noise, roomy};

const UNIT: u64 = 64 << 10;

fn object(seed: u64) -> Made {
    as_is(&noise(seed, usize::try_from(UNIT).unwrap() - 64))
}

fn pair(object: &Made) -> (CacheKey, u64) {
    (object.wanted.key(), object.plain.len() as u64)
}

/// > C1: What is pinned is not evicted, whatever else is read, also after a restart.
#[test]
fn pinned_objects_outlast_eviction_and_restart() {
    let objects: Vec<_> = (0..64).map(object).collect();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let options = CacheOptions { quota: 16 * UNIT, ..roomy() };
    let Rig { engine, cache, folder } = Rig::with(engine(), options.clone());
    let wanted: Vec<_> = objects[..4].iter().map(pair).collect();
    let set = cache.pin("a.test:/lib", wanted).unwrap();
    assert_eq!((set.objects, set.bytes), (4, 4 * (UNIT - 64)));
    let store = esker_store::Objects::new(&cache, shelf.clone());
    for object in &objects {
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    }
    cache.settle();
    let status = cache.status();
    assert!(status.evicted > 0 && status.used <= status.quota);
    assert_eq!((status.pinned_objects, status.pinned), (4, 4 * UNIT));
    drop(store);
    cache.close().unwrap();

    let cache = Cache::open(&engine, &folder.path().join("cache"), options).unwrap();
    let labels: Vec<_> = cache.pins().into_iter().map(|set| set.label).collect();
    assert_eq!(labels, ["a.test:/lib"]);
    let freed = cache.evict(Goal::Everything { even_pinned: false }).unwrap();
    assert_eq!(freed.pinned, 4);
    let left: Vec<_> = cache.objects();
    assert!(left.len() == 4 && left.iter().all(|object| object.pinned));
    assert!(cache.unpin("a.test:/lib").unwrap());
    assert!(!cache.unpin("a.test:/lib").unwrap());
    assert_eq!(cache.evict_objects(&[left[0].key]), Freed { objects: 1, bytes: UNIT, in_use: 0, pinned: 0 });
    assert_eq!(cache.status().objects, 3);
}

#[test]
fn a_pin_change_waiting_for_the_disk_blocks_nothing() {
    let folder = scratch();
    let disk = FaultDisk::new(folder.path(), Plan::Nothing);
    let cache =
        Cache::open(&engine(), folder.path(), CacheOptions { disk: Arc::new(disk.clone()), ..roomy() })
            .unwrap();
    let ((stuck, met), (go_on, hanging)) = (sync_channel(1), channel::<()>());
    disk.before_each_change(move |_| {
        let _ = stuck.try_send(());
        let _ = hanging.recv();
    });
    let wanted = pair(&object(1));
    let changed = cache.clone();
    let pinning = std::thread::spawn(move || changed.pin("a.test:/lib", vec![wanted]).map(drop));
    met.recv().unwrap();
    let (told, known) = channel();
    let asked = cache.clone();
    std::thread::spawn(move || {
        told.send((asked.status().pinned_objects, asked.pins().len(), asked.is_pinned(&wanted.0)))
    });
    let known = known.recv_timeout(Duration::from_secs(30)).expect("it waits for the disk");
    assert_eq!(known, (0, 0, false));
    drop(go_on);
    pinning.join().unwrap().unwrap();
    assert!(cache.is_pinned(&wanted.0) && cache.pins().len() == 1);
}

#[test]
fn pins_leave_room_for_other_objects() {
    let rig = Rig::with(engine(), CacheOptions { quota: 16 * UNIT, ..roomy() });
    let objects: Vec<_> = (0..16).map(object).map(|object| pair(&object)).collect();
    rig.cache.pin("first", objects[..8].to_vec()).unwrap();
    // The same objects again cost nothing.
    rig.cache.pin("second", objects[..8].to_vec()).unwrap();
    let refused = rig.cache.pin("third", objects.clone()).unwrap_err();
    assert!(refused.full_text().contains("75 % of the quota"), "{refused}");
    assert_eq!(rig.cache.pins().len(), 2);
}

#[test]
fn a_damaged_list_of_pins_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    cache.pin("a", vec![pair(&object(1))]).unwrap();
    cache.close().unwrap();
    let path = folder.path().join("pins");
    let text = fs::read_to_string(&path).unwrap().replace("pin a", "pin b");
    fs::write(&path, text).unwrap();
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    assert_eq!((cache.pins().len(), cache.status().disk_errors), (0, 1));
    assert!(folder.path().join("pins.damaged").exists());
    cache.pin("c", vec![]).unwrap();
}

#[test]
fn objects_in_use_are_not_evicted_on_request() {
    let rig = Rig::new();
    let kept = object(1);
    let store = rig.store(Shelf::new(&[&kept]));
    let handle = crate::rig::get(&store, &kept.wanted).unwrap();
    let freed = rig.cache.evict(Goal::Everything { even_pinned: true }).unwrap();
    assert_eq!(freed, Freed { objects: 0, bytes: 0, in_use: 1, pinned: 0 });
    drop(handle);
    assert_eq!(rig.cache.evict(Goal::Bytes(0)).unwrap().objects, 1);
}

#[test]
fn a_check_reports_all_damage_and_damaged_objects_are_not_served() {
    let objects: Vec<_> = (0..5).map(object).collect();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    for object in &objects {
        bytes(&store, &object.wanted).unwrap();
    }
    let path = |object: &Made| {
        let name = object.wanted.key().to_string();
        rig.cache.folder().join("objects").join(&name[..2]).join(&name[2..])
    };
    let open = |object: &Made| fs::File::options().write(true).open(path(object)).unwrap();
    open(&objects[0]).write_all_at(b"!", 100).unwrap();
    open(&objects[1]).set_len(77).unwrap();
    fs::remove_file(path(&objects[2])).unwrap();
    // The end of the file says what the content is.
    open(&objects[3]).write_all_at(b"!", UNIT - 20).unwrap();

    let check = |remove: bool| {
        let mut damaged: Vec<DamagedObject> = Vec::new();
        let done = rig.cache.check(remove, |_, found| {
            damaged.extend(found.cloned());
            true
        });
        (done, damaged)
    };
    let (done, damaged) = check(false);
    let bytes_total = 5 * (UNIT - 64);
    let all = CheckProgress { objects: 5, objects_total: 5, bytes: bytes_total, bytes_total };
    assert_eq!((done, damaged.len()), (all, 4));
    assert_eq!(rig.cache.status().objects, 5, "a check that only looks removes nothing");
    let before = shelf.asked().len();
    assert!(bytes(&store, &objects[0].wanted).unwrap() == objects[0].plain);
    assert_eq!(shelf.asked().len(), before + 1, "a damaged object was given out");

    let (_, damaged) = check(true);
    assert!(damaged.len() == 3 && damaged.iter().all(|one| one.removed), "{damaged:?}");
    assert_eq!(check(true).1, []);
    assert_eq!(rig.cache.status().objects, 2);
    let stopped = rig.cache.check(false, |_, _| false);
    assert_eq!(stopped.objects, 1);
}
