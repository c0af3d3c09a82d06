//! What is fetched ahead of its use.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use esker_store::{Done, Errand, ObjectStore, Wanted, Warmed};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_view::{Foreseen, LastLink, View};

use crate::fixtures::read_all;
use crate::support::Site;
use crate::watched;

/// A view, and what was warmed for it, once it is there.
fn open(site: &Site, prefetch: bool) -> (Arc<View>, Receiver<String>) {
    let (warmed, seen) = channel();
    let warm = move |inner: &dyn ObjectStore, wanted: Wanted, errand: &Errand, done: Done<Warmed>| {
        let (warmed, what) = (warmed.clone(), wanted.what.clone());
        let tell = Done::new(move |outcome| {
            done.give(outcome);
            // The test may have seen enough.
            let _ = warmed.send(what);
        });
        inner.warm(wanted, errand, tell);
    };
    (watched::open(site, prefetch, warm), seen)
}

fn read(view: &View, path: &str) {
    let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
    read_all(view, &found);
}

/// > A3: Without anybody's word, the small files of its kind near a file that had to be waited for are brought into the cache; listing and looking up bring nothing.
#[test]
fn the_neighbours_of_a_missed_file_are_there_when_they_are_read() {
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
fn a_guess_says_where_programs_are_expected() {
    let site = Site::of(FULL);
    let (view, _warmed) = open(&site, true);
    let (told, folders) = channel();
    view.tell_what_is_foreseen(Box::new(move |what| match what {
        Foreseen::Folder(path) => drop(told.send(path.to_vec())),
        Foreseen::Bytes(arrival) => panic!("nobody announced {arrival:?}"),
    }));
    read(&view, "/perm/m0644");
    assert!(folders.iter().any(|folder| folder == b"/perm"));
}

/// The module imports `os` and `a.b` among others; what is imported in a function isn't.
#[test]
fn what_a_compiled_module_imports_comes_without_a_further_read() {
    let site = Site::of(FULL);
    let module = include_bytes!("../../../format/src/pyc/compiled/python3.11.pyc");
    let root = Draft::new("");
    for path in ["", "/lib", "/lib/__pycache__", "/lib/a", "/lib/a/__pycache__"] {
        root.add(&Row::directory(path));
    }
    let add = |path: &str, content: &[u8]| site.add_file(&root, path, content);
    add("/lib/__pycache__/first.cpython-311.pyc", module);
    // Each imports the same again. What is no module would be guessed at by its folder.
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
    // Once as a guess, and once to be opened.
    assert!(imported.iter().all(|path| count(path) <= 2), "{ahead:?}");
}

#[test]
fn a_listing_fetches_nothing_ahead_and_nor_does_a_view_that_was_told_not_to() {
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
