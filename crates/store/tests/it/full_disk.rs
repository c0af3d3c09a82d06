//! A disk that other programs filled: objects pass through memory, and one wait is not paid for each of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_store::{Cache, CacheKey, CacheOptions, Engine, Holder, Objects};
use esker_testkit::disk::{SmallDisk, scratch};
use tempfile::TempDir;

use crate::rig::{Made, Shelf, as_is, bytes, engine, engine_with, get, noise, serve, zlib};

/// Bytes of an object's file besides its content.
const TRAILER: usize = 64;
/// Size of an object's file.
const UNIT: usize = 64 << 10;

/// A kernel that has everything in use, and is waited for at each question.
#[derive(Default)]
struct Busy {
    asked: AtomicUsize,
}

impl Holder for Busy {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        vec![true; victims.len()]
    }
}

/// Opens a cache on a disk with so much room. An eviction that was of no use is not tried again during the test.
fn on_disk_with(engine: &Engine, room: usize) -> (Cache, TempDir) {
    let place = scratch();
    let disk = Arc::new(SmallDisk::new(room as u64));
    let options = CacheOptions { patience: Duration::from_secs(3600), ..CacheOptions::with_quota(1 << 40) };
    let cache = Cache::open(engine, &place.path().join("cache"), CacheOptions { disk, ..options }).unwrap();
    (cache, place)
}

fn objects(seeds: std::ops::Range<u64>) -> Vec<Made> {
    seeds.map(|seed| as_is(&noise(seed, UNIT - TRAILER))).collect()
}

/// > C27: A full disk of the cache delays no read by more than one attempt to make room every few seconds: unused objects of the cache make room for others, and while none can, objects pass through memory, up to 256 MiB of them at once.
#[test]
fn a_full_disk_in_use_is_asked_about_once_and_not_for_each_object() {
    let (cache, _place) = on_disk_with(&engine(), 20 * UNIT);
    let busy = Arc::new(Busy::default());
    let holder: Weak<dyn Holder> = Arc::downgrade(&(busy.clone() as Arc<dyn Holder>));
    cache.add_holder(holder);
    let objects = objects(0..300);
    let store = Objects::new(&cache, Shelf::new(&objects.iter().collect::<Vec<_>>()));
    for object in &objects {
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    }
    let status = cache.status();
    assert_eq!((status.objects, status.unkept, status.evicted), (20, 280, 0), "{status:?}");
    // The oldest, then the others together.
    let asked = busy.asked.load(Ordering::SeqCst);
    assert!((1..=2).contains(&asked), "the kernel was waited for {asked} times");
}

/// > C27: A full disk of the cache delays no read by more than one attempt to make room every few seconds: unused objects of the cache make room for others, and while none can, objects pass through memory, up to 256 MiB of them at once.
#[test]
fn own_objects_make_room_on_a_full_disk() {
    let (cache, _place) = on_disk_with(&engine(), 64 * UNIT);
    let objects = objects(0..300);
    let store = Objects::new(&cache, Shelf::new(&objects.iter().collect::<Vec<_>>()));
    for object in &objects {
        drop(get(&store, &object.wanted).unwrap());
    }
    let status = cache.status();
    assert_eq!((status.unkept, status.objects + status.evicted), (0, 300), "{status:?}");
    assert!(status.evicted >= 236 && status.objects >= 60, "{status:?}");
}

/// Larger than what is inflated in memory, and with stored bytes that are spooled.
#[test]
fn large_objects_pass_through_memory_on_a_full_disk() {
    let inflated = zlib(&vec![7; 70 << 20]);
    let (cache, _place) = on_disk_with(&engine(), 1 << 20);
    let store = Objects::new(&cache, Shelf::new(&[&inflated]));
    assert!(bytes(&store, &inflated.wanted).unwrap() == inflated.plain);
    assert_eq!((cache.status().objects, cache.status().unkept), (0, 1));

    let engine = engine_with(|options| options.memory = 0);
    let spooled = as_is(&noise(1000, 8_000_000));
    let (mirror, _folder) = serve(std::slice::from_ref(&spooled));
    let (cache, _place) = on_disk_with(&engine, 3 << 20);
    let store = Objects::new(&cache, esker_store::connect(&engine, &mirror.url("repo")).unwrap());
    for _ in 0..3 {
        assert!(bytes(&store, &spooled.wanted).unwrap() == spooled.plain);
    }
    assert_eq!((cache.status().objects, cache.status().unkept), (0, 3));
    assert_eq!(mirror.count(|path| path.contains("/data/")), 3, "nothing was fetched in vain");
}
