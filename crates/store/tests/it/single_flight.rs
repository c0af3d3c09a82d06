//! One miss, one fetch.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};

use esker_store::{Callback, CancelToken, Cause, ObjectStore, Urgency};

use crate::rig::{Rig, Shelf, bytes, noise, zlib};

#[test]
fn a_thousand_misses_of_one_object_are_one_fetch() {
    let object = zlib(&noise(1, 5000));
    let shelf = Shelf::new(&[&object]);
    shelf.hold();
    let rig = Rig::new();
    let store = Arc::new(rig.store(shelf.clone()));
    let (sender, answers) = mpsc::channel();
    let barrier = Arc::new(Barrier::new(10));
    let threads: Vec<_> = (0..10)
        .map(|_| {
            let (store, sender, barrier, wanted) =
                (store.clone(), sender.clone(), barrier.clone(), object.wanted.clone());
            std::thread::spawn(move || {
                barrier.wait();
                for _ in 0..100 {
                    let sender = sender.clone();
                    store.get(wanted.clone(), Callback::new(move |got| sender.send(got).unwrap()));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    drop(sender);
    assert_eq!(shelf.asked().len(), 1);
    shelf.let_go();
    let handles: Vec<_> = answers.iter().map(Result::unwrap).collect();
    assert_eq!(handles.len(), 1000);
    assert!(handles.iter().all(|handle| handle.read_all().unwrap() == object.plain));
    assert_eq!(store.status().cache.descriptors, 1, "one descriptor, however many use it");
    assert_eq!(store.status().traffic.joined, 999);
}

#[test]
fn a_demand_raises_the_prefetch_it_joins() {
    let object = zlib(b"x");
    let shelf = Shelf::new(&[&object]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    store.warm(object.wanted.clone(), &CancelToken::new(), Callback::new(drop));
    shelf.wait_for(1);
    let priority = shelf.asked()[0].priority.clone();
    assert_eq!(priority.urgency(), Urgency::Prefetch);
    let (sender, told) = mpsc::channel();
    priority.on_raise(move || sender.send(()).unwrap());
    store.get(object.wanted.clone(), Callback::new(drop));
    told.recv().unwrap();
    assert_eq!(priority.urgency(), Urgency::Demand);
    shelf.let_go();
}

/// Two repositories share a cache; one lacks the object. Who joined its fetch is not failed with it.
#[test]
fn a_failure_of_one_repository_does_not_affect_another() {
    let object = zlib(&noise(2, 5000));
    let (without, with) = (Shelf::new(&[]), Shelf::new(&[&object]));
    without.hold();
    let rig = Rig::new();
    let (first, second) = (rig.store(without.clone()), rig.store(with.clone()));
    let (sender, answers) = mpsc::channel();
    let from_first = sender.clone();
    first.get(object.wanted.clone(), Callback::new(move |got| from_first.send(("first", got)).unwrap()));
    without.wait_for(1);
    second.get(object.wanted.clone(), Callback::new(move |got| sender.send(("second", got)).unwrap()));
    assert_eq!(with.asked().len(), 0, "it joined");
    without.let_go();
    for (who, got) in answers {
        match who {
            "first" => assert!(matches!(got.unwrap_err().cause(), Cause::Missing { .. })),
            _ => assert_eq!(got.unwrap().read_all().unwrap(), object.plain),
        }
    }
    // From now on the first has it too, because the cache is shared.
    assert_eq!(bytes(&first, &object.wanted).unwrap(), object.plain);
}

/// A request with the true size does not fail because another one names a wrong size.
#[test]
fn a_wrong_size_in_the_first_request_fails_only_that_request() {
    let object = zlib(&noise(2, 5000));
    let shelf = Shelf::new(&[&object]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let (sender, answers) = mpsc::channel();
    for size in [4000, 5000] {
        let sender = sender.clone();
        let wanted = object.wanted.clone().size(size);
        store.get(wanted, Callback::new(move |got| sender.send((size, got)).unwrap()));
    }
    drop(sender);
    shelf.wait_for(1);
    shelf.let_go();
    for (size, got) in answers {
        assert_eq!(got.is_ok(), size == 5000, "{size}");
    }
}

#[test]
fn each_waiter_gets_the_failure_with_its_own_object_name() {
    let object = zlib(b"nowhere");
    let shelf = Shelf::new(&[]);
    shelf.hold();
    let rig = Rig::new();
    let store = rig.store(shelf.clone());
    let (sender, answers) = mpsc::channel();
    for path in ["/one", "/two"] {
        let sender = sender.clone();
        let mut wanted = object.wanted.clone();
        wanted.what = path.to_owned();
        store.get(wanted, Callback::new(move |got| sender.send(got.unwrap_err().to_string()).unwrap()));
    }
    drop(sender);
    shelf.wait_for(1);
    shelf.let_go();
    let mut texts: Vec<_> = answers.iter().collect();
    texts.sort();
    assert!(texts[0].starts_with("/one (file ") && texts[1].starts_with("/two (file "), "{texts:?}");
}
