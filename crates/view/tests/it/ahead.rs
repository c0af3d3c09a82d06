//! Tests of prefetching.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_store::{Callback, CancelToken, Handle, ObjectRequest, ObjectStore, Warmed};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_view::{LastLink, PrefetchEvent, View};

use crate::fixtures::read_all;
use crate::support::{Site, digest};
use crate::watched;

const TRIGGER: u64 = 4 | 1 << 17;
/// Maximum number of outstanding prefetches.
const UNDER_WAY: u32 = 256;
/// Time limit for an expected request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a view; returns the paths of prefetched objects once they have arrived.
fn open(site: &Site, prefetch: bool) -> (Arc<View>, Receiver<String>) {
    let (warmed, seen) = channel();
    let warm =
        move |inner: &dyn ObjectStore, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>| {
            let (warmed, what) = (warmed.clone(), wanted.what.clone());
            let tell = Callback::new(move |outcome| {
                done.give(outcome);
                // The test may have dropped the receiver.
                let _ = warmed.send(what);
            });
            inner.warm(wanted, token, tell);
        };
    (watched::open(site, prefetch, warm), seen)
}

fn read(view: &View, path: &str) {
    let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
    read_all(view, &found);
}

/// > A3: Without a bundle or recorded sequence, the small files of its kind near a file that had to be waited for are brought into the cache; listing and looking up bring nothing.
#[test]
fn the_neighbours_of_a_missed_file_are_prefetched() {
    let site = Site::of(FULL);
    let (view, warmed) = open(&site, true);
    read(&view, "/perm/m0644");
    let mut ahead = vec![warmed.recv().unwrap()];
    while !ahead.iter().any(|path| path == "/perm/m0755") {
        ahead.push(warmed.recv().unwrap());
    }
    let misses = view.status().counters.misses;
    read(&view, "/perm/m0755");
    assert_eq!(view.status().counters.misses, misses, "it was there: {ahead:?}");
}

#[test]
fn predicted_folders_are_reported_to_the_listener() {
    let site = Site::of(FULL);
    let (view, _warmed) = open(&site, true);
    let (reported, folders) = channel();
    view.set_prefetch_listener(Box::new(move |what| match what {
        PrefetchEvent::Folder(path) => drop(reported.send(path.to_vec())),
        PrefetchEvent::Bytes(arrival) => panic!("no bundle announced {arrival:?}"),
    }));
    read(&view, "/perm/m0644");
    assert!(folders.iter().any(|folder| folder == b"/perm"));
}

/// The module imports `os` and `a.b` among others; what is imported in a function isn't.
#[test]
fn imports_of_a_compiled_module_are_prefetched() {
    let site = Site::of(FULL);
    let module = include_bytes!("../../../format/src/pyc/compiled/python3.11.pyc");
    let root = Draft::new("");
    for path in ["", "/lib", "/lib/__pycache__", "/lib/a", "/lib/a/__pycache__"] {
        root.add(&Row::directory(path));
    }
    let add = |path: &str, content: &[u8]| site.add_file(&root, path, content);
    add("/lib/__pycache__/first.cpython-311.pyc", module);
    // Each imports the same again. Candidates for other files come from their folders.
    for (path, last) in [
        ("__pycache__/os", 0),
        ("a/__pycache__/__init__", 1),
        ("a/__pycache__/b", 2),
        ("__pycache__/never", 3),
    ] {
        add(&format!("/lib/{path}.cpython-311.pyc"), &[module, &[last][..]].concat());
    }
    site.publish_root(root);
    let (view, warmed) = open(&site, true);
    read(&view, "/lib/__pycache__/first.cpython-311.pyc");
    let imported = ["__pycache__/os", "a/__pycache__/__init__", "a/__pycache__/b"];
    let imported = imported.map(|path| format!("/lib/{path}.cpython-311.pyc"));
    let mut ahead: Vec<String> = Vec::new();
    while !imported.iter().all(|path| ahead.contains(path)) {
        ahead.push(warmed.recv().unwrap());
    }
    let misses = view.status().counters.misses;
    read(&view, "/lib/a/__pycache__/__init__.cpython-311.pyc");
    read(&view, "/lib/a/__pycache__/b.cpython-311.pyc");
    assert_eq!(view.status().counters.misses, misses, "they were there: {ahead:?}");
    view.close();
    ahead.extend(warmed.try_iter());
    assert!(!ahead.iter().any(|path| path.contains("never")), "{ahead:?}");
    let count = |of: &String| ahead.iter().filter(|path| *path == of).count();
    // Once as a candidate, and once to be opened.
    assert!(imported.iter().all(|path| count(path) <= 2), "{ahead:?}");
}

/// Each read of an unavailable file misses again, but raises the budget only once.
#[test]
fn repeated_misses_of_one_object_count_once() {
    let site = Site::of(FULL);
    let root = Draft::new("");
    for path in ["", "/many"] {
        root.add(&Row::directory(path));
    }
    let size = 1 << 20;
    root.add(&Row::file("/damaged.d", size, Some(digest(&site.repository.store(b"short", "")))));
    let trigger = Some(digest(&site.repository.store(b"t", "")));
    root.add(&Row { flags: TRIGGER, ..Row::file("/trigger.t", 1, trigger) });
    site.add_file(&root, "/.cvmfsbundle-trigger.t", b"{}");
    site.add_file(&root, "/many/0.x", b"first");
    for number in 1..=39_u32 {
        let stored = site.repository.store(&number.to_le_bytes(), "");
        root.add(&Row::file(&format!("/many/{number}.x"), size, Some(digest(&stored))));
    }
    site.publish_root(root);
    let (reported, asked) = channel();
    let view = watched::open(&site, true, move |_, wanted, _, done| {
        let _ = reported.send(wanted.what.clone());
        done.ok(Warmed::Fetched(1));
    });
    let damaged = view.find(b"/damaged.d", LastLink::Keep).unwrap();
    for _ in 0..10 {
        view.read_at(&damaged.node, 0, 1).unwrap_err();
    }
    read(&view, "/many/0.x");
    // The initial 32 MiB, and the size of the file once.
    asked.iter().take(33).for_each(drop);
    // A bundle is fetched regardless of the budget for candidates, and after all of them.
    read(&view, "/trigger.t");
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), "/.cvmfsbundle-trigger.t");
}

/// `first` imports `a.b`, which is queued behind candidates that never arrive. A program reads it before its turn.
#[test]
fn a_module_read_while_it_is_queued_is_evaluated() {
    let site = Site::of(FULL);
    let root = Draft::new("");
    for path in ["", "/many", "/__pycache__", "/a", "/a/__pycache__"] {
        root.add(&Row::directory(path));
    }
    let module = include_bytes!("../../../format/src/pyc/compiled/python3.11.pyc");
    let (first, second) = ("/__pycache__/first.cpython-311.pyc", "/a/__pycache__/b.cpython-311.pyc");
    site.add_file(&root, first, module);
    site.add_file(&root, second, &[module, &[0][..]].concat());
    for number in 0..2 * UNDER_WAY {
        site.add_file(&root, &format!("/many/{number}.x"), &number.to_le_bytes());
    }
    site.publish_root(root);
    let (reported, asked) = channel();
    let (got, opened) = channel();
    let get = move |inner: &dyn ObjectStore, wanted: ObjectRequest, done: Callback<Handle>| {
        let (got, what) = (got.clone(), wanted.what.clone());
        let tell = move |outcome| {
            done.give(outcome);
            let _ = got.send(what);
        };
        inner.get(wanted, Callback::new(tell));
    };
    let held: Mutex<Vec<Callback<Warmed>>> = Mutex::default();
    let warm =
        move |inner: &dyn ObjectStore, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>| {
            let what = wanted.what.clone();
            if what.starts_with("/many/") {
                held.lock().unwrap().push(done);
            } else {
                inner.warm(wanted, token, done);
            }
            let _ = reported.send(what);
        };
    let view = watched::between(&site, get, warm);
    read(&view, "/many/0.x");
    asked.iter().take(UNDER_WAY as usize).for_each(drop);
    read(&view, first);
    // For the program, then to evaluate it.
    opened.iter().filter(|what| what == first).take(2).for_each(drop);
    read(&view, second);
    while asked.recv_timeout(PATIENCE).expect("it is asked what it imports") != second {}
}

#[test]
fn listings_and_views_without_prefetch_fetch_nothing_ahead() {
    let site = Site::of(FULL);
    let (view, warmed) = open(&site, true);
    let perm = view.find(b"/perm", LastLink::Keep).unwrap();
    view.names(&perm.node).unwrap();
    view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    view.close();
    drop(view);
    assert!(warmed.recv().is_err(), "the store is gone, and was asked for nothing");
    let (view, warmed) = open(&site, false);
    read(&view, "/perm/m0644");
    drop(view);
    assert!(warmed.recv().is_err());
}
