//! Work of each operation with few and with a million cached objects.

use std::sync::Arc;

use esker_store::{Cache, CacheKey, CacheOptions, Goal, ObjectRequest, ObjectStore, Objects};
use esker_testkit::cache_index;
use esker_testkit::disk::{FaultDisk, Plan};

use crate::rig::{Shelf, bytes, engine, listed_folder, noise, objects, roomy, zlib};

/// Entries visited and file operations.
type Work = (u64, u64);

/// An operation with its name.
type Operation<'o> = (&'static str, Box<dyn Fn() + 'o>);

/// Returns the work of each operation, by name, in a cache that lists this many objects.
fn work(entries: u64) -> Vec<(&'static str, Work)> {
    let folder = listed_folder(entries);
    let disk = Arc::new(FaultDisk::new(folder.path(), Plan::Nothing));
    let cache =
        Cache::open(&engine(), folder.path(), CacheOptions { disk: disk.clone(), ..roomy() }).unwrap();
    assert_eq!(cache.status().objects, entries);
    let made = objects(8);
    let store = Objects::new(&cache, Shelf::new(&made.iter().collect::<Vec<_>>()));
    let (first, second) = (&made[0], &made[1]);
    let absent = zlib(&noise(99, 100)).wanted;
    let operations: Vec<Operation<'_>> = vec![
        ("status of the cache", Box::new(|| drop(cache.status()))),
        ("status of the store", Box::new(|| drop(store.status()))),
        ("room", Box::new(|| assert!(store.room().used > 0))),
        ("miss", Box::new(|| assert!(store.cached(&absent).is_none()))),
        ("fetch", Box::new(|| drop(bytes(&store, &first.wanted).unwrap()))),
        ("hit", Box::new(|| assert!(store.cached(&first.wanted).is_some()))),
        ("recheck", Box::new(|| store.recheck(&first.wanted))),
        ("checked again", Box::new(|| drop(bytes(&store, &first.wanted).unwrap()))),
        (
            "missing file",
            Box::new(|| assert!(store.cached(&wanted_of(cache_index::key(0), "a listed one")).is_none())),
        ),
        ("pin", Box::new(|| drop(cache.pin("one", vec![(second.wanted.key(), 1)]).unwrap()))),
        ("fetch of a pinned one", Box::new(|| drop(bytes(&store, &second.wanted).unwrap()))),
        ("unpin", Box::new(|| assert!(cache.unpin("one").unwrap()))),
        ("evict one", Box::new(|| assert_eq!(cache.evict_objects(&[first.wanted.key()]).objects, 1))),
    ];
    let now = || (cache.status().walked, disk.operations());
    let measure = |run: &dyn Fn()| {
        let before = now();
        run();
        let after = now();
        (after.0 - before.0, after.1 - before.1)
    };
    let mut done: Vec<_> = operations.iter().map(|(name, run)| (*name, measure(run))).collect();
    // The count itself: a command for the whole cache visits all.
    done.push(("list", measure(&|| drop(cache.objects()))));
    drop(operations);
    assert_eq!(cache.evict(Goal::Bytes(u64::MAX)).unwrap().objects, 0);
    done
}

fn wanted_of(key: CacheKey, what: &str) -> ObjectRequest {
    let name =
        esker_format::object::ObjectName { hash: key.hash, kind: esker_format::object::ObjectKind::File };
    ObjectRequest::new(name, key.compression, what.to_owned())
}

/// > P16: The work of reading, fetching, pinning or evicting one object, and of the cache's status, is the same with a hundred and with a million cached objects.
#[test]
fn the_work_of_an_operation_does_not_grow_with_the_cache() {
    let (small, large) = (work(100), work(1_000_000));
    for ((name, small), (_, large)) in small.into_iter().zip(large) {
        if name == "list" {
            assert!(small.0 >= 100 && large.0 >= 1_000_000, "{name}: {small:?} {large:?}");
            continue;
        }
        assert_eq!(large, small, "entries visited and file operations of `{name}`");
        assert_eq!(large.0, 0, "entries visited by `{name}`");
    }
}

/// The account of pinned objects is that of a count of all objects, whatever came, left or was pinned before.
#[test]
fn the_account_of_pinned_objects_is_that_of_a_count() {
    let made = objects(12);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&engine(), folder.path(), roomy()).unwrap();
    let store = Objects::new(&cache, Shelf::new(&made.iter().collect::<Vec<_>>()));
    let mut random = 1_u64;
    let mut next = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((random >> 33) % limit).unwrap()
    };
    for round in 0..400 {
        let wanted = &made[next(12)].wanted;
        match next(5) {
            0 => drop(bytes(&store, wanted).unwrap()),
            1 => drop(cache.evict_objects(&[wanted.key()])),
            2 => {
                let members = made[..next(12)].iter().map(|made| (made.wanted.key(), 1)).collect();
                drop(cache.pin(["a", "b"][next(2)], members).unwrap());
            }
            3 => drop(cache.unpin(["a", "b"][next(2)]).unwrap()),
            _ => drop(cache.evict(Goal::Everything { even_pinned: next(2) == 0 }).unwrap()),
        }
        let pinned: Vec<_> = cache.objects().into_iter().filter(|object| object.pinned).collect();
        let counted = (pinned.iter().map(|object| object.charge).sum(), pinned.len() as u64);
        let status = cache.status();
        assert_eq!((status.pinned, status.pinned_objects), counted, "round {round}");
    }
}
