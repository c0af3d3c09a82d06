//! The bound on open files is never exceeded, and every waiter gets a descriptor in the end.

use std::fs;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_store::{CacheOptions, Callback, CancelToken, Cause, Handle, ObjectStore, OpenObject};

use crate::rig::{Made, Rig, Shelf, engine, get, noise, roomy, zlib};

fn rig(limit: usize) -> (Rig, Vec<Made>, Arc<Shelf>) {
    let rig = Rig::with(engine(), CacheOptions { descriptors: Some(limit), ..roomy() });
    let objects: Vec<_> = (0..50).map(|seed| zlib(&noise(seed, 1000))).collect();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    (rig, objects, shelf)
}

/// How many descriptors of this process are on files below the cache's objects.
fn really_open(rig: &Rig) -> usize {
    let objects = rig.cache.folder().join("objects");
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(&objects)))
        .count()
}

#[test]
fn idle_files_are_closed_for_new_ones() {
    let (rig, objects, shelf) = rig(4);
    let store = rig.store(shelf);
    for _ in 0..3 {
        for object in &objects {
            assert_eq!(get(&store, &object.wanted).unwrap().read_all().unwrap(), object.plain);
            assert!(really_open(&rig) <= 4);
        }
    }
    assert_eq!(rig.cache.status().descriptors_peak, 4);
    assert_eq!(store.status().traffic.fetched, 50);
}

#[test]
fn requests_wait_for_a_descriptor_and_are_served_in_turn() {
    let (rig, objects, shelf) = rig(3);
    let store = rig.store(shelf.clone());
    let busy: Vec<_> = objects[..3].iter().map(|object| get(&store, &object.wanted).unwrap()).collect();
    let (sender, answers) = mpsc::channel();
    for object in &objects[3..] {
        let sender = sender.clone();
        store.get(object.wanted.clone(), Callback::new(move |got| sender.send(got.unwrap()).unwrap()));
        assert!(store.cached(&object.wanted).is_none());
    }
    drop(sender);
    // All are fetched and kept; none can be opened.
    shelf.wait_for(50);
    assert_eq!(really_open(&rig), 3);
    assert!(answers.try_recv().is_err());
    drop(busy);
    let mut served = 0;
    for handle in &answers {
        assert_eq!(handle.len(), 1000);
        assert!(really_open(&rig) <= 3);
        served += 1;
    }
    assert_eq!(served, 47);
    assert_eq!(rig.cache.status().descriptors_peak, 3);
}

/// A file taken from a handle counts while it is open, even after the handle is dropped.
#[test]
fn a_file_in_a_reply_keeps_its_descriptor() {
    let (rig, objects, shelf) = rig(1);
    let store = rig.store(shelf);
    let file: Arc<OpenObject> = get(&store, &objects[0].wanted).unwrap().file();
    let (sender, answer) = mpsc::channel();
    store.get(
        objects[1].wanted.clone(),
        Callback::new(move |got: Result<Handle, _>| sender.send(got.unwrap().len()).unwrap()),
    );
    assert!(store.cached(&objects[1].wanted).is_none());
    assert!(answer.try_recv().is_err());
    drop(file);
    assert_eq!(answer.recv().unwrap(), 1000);
}

/// A mapping needs no descriptor.
#[test]
fn mapped_objects_close_their_descriptors() {
    let (rig, objects, shelf) = rig(2);
    let store = rig.store(shelf);
    let maps: Vec<_> =
        objects.iter().map(|object| get(&store, &object.wanted).unwrap().map().unwrap()).collect();
    for (map, object) in maps.iter().zip(&objects) {
        assert_eq!(map.as_ref(), object.plain);
    }
    assert_eq!(rig.cache.status().descriptors_peak, 2);
}

/// A file in use may stay open without a limit in time.
#[test]
fn waiters_for_a_descriptor_wake_when_the_cache_closes() {
    let (rig, objects, shelf) = rig(1);
    let store = rig.store(shelf.clone());
    let _busy = get(&store, &objects[0].wanted).unwrap();
    shelf.hold();
    let (told, answer) = mpsc::channel();
    let also_told = told.clone();
    store.get(objects[1].wanted.clone(), Callback::new(move |got| told.send(got.map(|_| ())).unwrap()));
    let done = Callback::new(move |got| also_told.send(got.map(|_| ())).unwrap());
    store.warm(objects[2].wanted.clone(), &CancelToken::new(), done);
    shelf.let_go();
    rig.cache.close().unwrap();
    let wait = || answer.recv_timeout(Duration::from_secs(60)).expect("an answer");
    let closed = [wait(), wait()].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(closed.iter().all(|error| matches!(error.cause(), Cause::Closed)), "{closed:?}");
    assert!(!closed.is_empty(), "one was opened beside the other");
    assert_eq!(store.status().traffic.warming, 0, "a prefetch is still under way");
}

/// Many threads, few descriptors: no wait is endless, the bound holds.
#[test]
fn many_threads_share_two_descriptors() {
    let (rig, objects, shelf) = rig(2);
    let store = Arc::new(rig.store(shelf));
    let objects = Arc::new(objects);
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            let (store, objects) = (store.clone(), objects.clone());
            std::thread::spawn(move || {
                for pick in noise(thread, 300) {
                    let object = &objects[usize::from(pick) % 50];
                    assert_eq!(get(&*store, &object.wanted).unwrap().read_all().unwrap(), object.plain);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(rig.cache.status().descriptors_peak, 2);
}
