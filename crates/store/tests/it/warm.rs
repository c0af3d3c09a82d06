//! Fetching objects into the cache before a read needs them.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use esker_store::{CacheOptions, Callback, CancelToken, Cause, ObjectStore, StoreError, Warmed};
use esker_testkit::mirror::Fault;

use crate::rig::{Made, Rig, Shelf, bytes, engine, engine_with, get, noise, objects, roomy, serve, zlib};

fn warm(store: &dyn ObjectStore, object: &Made, token: &CancelToken) -> Receiver<Result<Warmed, StoreError>> {
    let (sender, receiver) = channel();
    let done = Callback::new(move |outcome| {
        let _ = sender.send(outcome);
    });
    store.warm(object.wanted.clone(), token, done);
    receiver
}

#[test]
fn a_prefetched_object_is_cached_and_closed() {
    let objects = objects(2);
    let shelf = Shelf::new(&[&objects[0], &objects[1]]);
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let token = CancelToken::new();
    let stored = objects[0].stored.len() as u64;
    let outcome = |object| warm(&store, object, &token).recv().unwrap().unwrap();
    assert_eq!(outcome(&objects[0]), Warmed::Fetched(stored));
    assert_eq!(outcome(&objects[0]), Warmed::Here);
    assert_eq!(store.status().cache.descriptors, 0);
    let traffic = || store.status().traffic;
    assert_eq!((traffic().fetched, traffic().prefetched, traffic().prefetched_used), (1, 1, 0));

    assert_eq!(store.cached(&objects[0].wanted).unwrap().read_all().unwrap(), objects[0].plain);
    bytes(&store, &objects[0].wanted).unwrap();
    bytes(&store, &objects[1].wanted).unwrap();
    assert_eq!((traffic().fetched, traffic().prefetched), (2, 1));
    assert_eq!(traffic().prefetched_bytes, stored);
    assert_eq!((traffic().prefetched_used, traffic().prefetched_used_bytes), (1, stored), "counted once");
    assert_eq!(shelf.asked().len(), 2);
}

/// A demand gets the object open, a prefetch only its outcome; one request serves both.
#[test]
fn demands_and_prefetches_share_one_flight() {
    let object = zlib(&noise(3, 5000));
    let shelf = Shelf::new(&[&object]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let first = warm(&store, &object, &CancelToken::new());
    shelf.wait_for(1);
    let (sender, demanded) = channel();
    store.get(object.wanted.clone(), Callback::new(move |got| sender.send(got).unwrap()));
    let second = warm(&store, &object, &CancelToken::new());
    shelf.let_go();
    assert_eq!(demanded.recv().unwrap().unwrap().read_all().unwrap(), object.plain);
    assert_eq!(first.recv().unwrap().unwrap(), Warmed::Fetched(object.stored.len() as u64));
    assert_eq!(second.recv().unwrap().unwrap(), Warmed::Here);
    assert_eq!(shelf.asked().len(), 1);
    assert_eq!(store.status().traffic.prefetched_used, 1);
}

#[test]
fn a_prefetch_with_a_wrong_size_fails_alone() {
    let object = zlib(&noise(3, 5000));
    let shelf = Shelf::new(&[&object]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let mut wrong = object.clone();
    wrong.wanted = wrong.wanted.size(4000);
    let failed = warm(&store, &wrong, &CancelToken::new());
    let (sender, demanded) = channel();
    store.get(object.wanted.clone(), Callback::new(move |got| sender.send(got).unwrap()));
    shelf.let_go();
    assert!(failed.recv().unwrap().is_err());
    assert_eq!(demanded.recv().unwrap().unwrap().read_all().unwrap(), object.plain);
    assert_eq!(store.status().traffic.failed, 0);
}

/// A queued prefetch whose token is cancelled is never requested, unless another token or a demand needs it.
#[test]
fn a_cancelled_prefetch_is_dropped_from_the_queue() {
    let objects = objects(60);
    let (mirror, _folder) = serve(&objects);
    let holding = mirror.fault(|_| true, Fault::Delay(Duration::from_secs(600)));
    let engine = engine_with(|options| options.http.first_byte = Duration::from_secs(600));
    let rig = Rig::with(engine, roomy());
    let store = rig.open(&mirror.url("repo"));
    let (pointless, other) = (CancelToken::new(), CancelToken::new());
    let blocking: Vec<_> = objects[..50].iter().map(|object| warm(&store, object, &other)).collect();
    let dropped: Vec<_> = objects[50..58].iter().map(|object| warm(&store, object, &pointless)).collect();
    let wanted_twice = [warm(&store, &objects[58], &pointless), warm(&store, &objects[58], &other)];
    let demanded = warm(&store, &objects[59], &pointless);
    holding.wait_for_hits(1);
    pointless.cancel();
    holding.lift();
    assert_eq!(bytes(&store, &objects[59].wanted).unwrap(), objects[59].plain);
    demanded.recv().unwrap().unwrap();
    for outcome in dropped {
        assert!(matches!(outcome.recv().unwrap().unwrap_err().cause(), Cause::Cancelled));
    }
    for outcome in blocking.into_iter().chain(wanted_twice) {
        outcome.recv().unwrap().unwrap();
    }
    let unwanted: Vec<String> =
        objects[50..58].iter().map(|object| format!("/repo/{}", object.wanted.name.path())).collect();
    assert_eq!(mirror.count(|path| unwanted.iter().any(|unwanted| unwanted == path)), 0);
    assert_eq!(store.status().traffic.prefetches_failed, 0);
    assert_eq!(store.status().traffic.warming, 0);
}

/// A failing server is not asked again for a prefetch without waiters, and no error is reported.
#[test]
fn a_failed_prefetch_is_not_repeated() {
    let objects = objects(1);
    let (mirror, _folder) = serve(&objects);
    let rule = mirror.fault_times(1, |_| true, Fault::Status(503));
    let rig = Rig::with(engine(), roomy());
    let store = rig.open(&mirror.url("repo"));
    let outcome = warm(&store, &objects[0], &CancelToken::new()).recv().unwrap();
    assert!(matches!(outcome.unwrap_err().cause(), Cause::Status(503)));
    rule.assert_hit();
    assert_eq!(mirror.requests().len(), 1);
    let status = store.status();
    assert_eq!((status.traffic.prefetches_failed, status.traffic.failed), (1, 0));
    assert!(status.errors.is_empty(), "{:?}", status.errors);
    assert_eq!(bytes(&store, &objects[0].wanted).unwrap(), objects[0].plain);
}

/// A full cache serves demanded objects without keeping them, and drops prefetches.
#[test]
fn a_prefetch_without_room_in_the_cache_is_dropped() {
    let objects = objects(2);
    let shelf = Shelf::new(&[&objects[0], &objects[1]]);
    let options =
        CacheOptions { hard_limit: 5000, patience: Duration::ZERO, ..CacheOptions::with_quota(4096) };
    let rig = Rig::with(engine(), options);
    let store = rig.store(shelf);
    let held = get(&store, &objects[0].wanted).unwrap();
    let outcome = warm(&store, &objects[1], &CancelToken::new()).recv().unwrap();
    assert!(matches!(outcome.unwrap_err().cause(), Cause::Full { .. }));
    assert_eq!(store.status().cache.unkept, 0);
    assert_eq!(bytes(&store, &objects[1].wanted).unwrap(), objects[1].plain);
    drop(held);
}

#[test]
fn the_queue_is_bounded() {
    const MOST: usize = 16_384;
    let shelf = Shelf::new(&[]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let token = CancelToken::new();
    let mut object = zlib(b"x");
    let mut outcomes = Vec::new();
    for number in 0..=MOST {
        object.wanted.name.hash = zlib(&number.to_le_bytes()).wanted.name.hash;
        outcomes.push(warm(&store, &object, &token));
    }
    let refused = outcomes.pop().unwrap().recv().unwrap().unwrap_err();
    assert!(matches!(refused.cause(), Cause::QueueFull { limit: MOST }), "{refused}");
    assert_eq!(store.status().traffic.warming, MOST as u64);
    shelf.let_go();
    assert!(outcomes.iter().all(|outcome| outcome.recv().unwrap().is_err()));
    assert_eq!(store.status().traffic.warming, 0);
}
