//! Bundles are fetched in their order, and within their budget.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use esker_store::{Callback, CancelToken, Handle, ObjectRequest, ObjectStore, StoreError, Warmed};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_view::{Arrival, LastLink, PrefetchEvent, View, ViewOptions};

use crate::support::{Site, digest};
use crate::watched;

const TRIGGER: u64 = 4 | 1 << 17;
const HIDDEN: u64 = 1 << 15;
const CHUNKED: u64 = 1 << 6;

/// Time limit for an expected request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Callback for a fetched specification, and its result.
type Late = (Callback<Warmed>, Result<Warmed, StoreError>);

/// A repository made by the test.
struct Made {
    site: Site,
    root: Draft,
}

impl Made {
    fn new() -> Self {
        let made = Self { site: Site::of(FULL), root: Draft::new("") };
        for path in ["", "/probe"] {
            made.root.add(&Row::directory(path));
        }
        for name in ["a.probe", "b.probe"] {
            made.add(&made.root, &format!("/probe/{name}"), 4, name.as_bytes());
        }
        made
    }

    fn store(&self, text: &[u8]) -> [u8; 20] {
        digest(&self.site.repository.store(text, ""))
    }

    fn add(&self, catalog: &Draft, path: &str, flags: u64, text: &[u8]) {
        catalog.add(&Row { flags, ..Row::file(path, text.len() as u64, Some(self.store(text))) });
    }

    /// Adds a trigger in the root directory with its specification.
    fn announce(&self, name: &str, dependencies: &str, more: &str) {
        self.add(&self.root, &format!("/{name}"), TRIGGER, name.as_bytes());
        let spec = format!(
            r#"{{"name":"CVMFS_BUNDLE","version":"1.0.0","encoding":"UTF-8","dependencies":[{dependencies}]{more}}}"#
        );
        self.add(&self.root, &format!("/.cvmfsbundle-{name}"), 4 | HIDDEN, spec.as_bytes());
    }

    /// Publishes; returns a view and the requests of its prefetches.
    ///
    /// If `pretend` is set, the store reports all content of the files named so as fetched, and fetches nothing.
    fn publish(self, pretend: bool) -> (Site, Arc<View>, Receiver<String>) {
        self.publish_to(move |inner, wanted, token, done| {
            if pretend && wanted.what.contains("/lie") {
                done.ok(Warmed::Fetched(1));
            } else {
                inner.warm(wanted, token, done);
            }
        })
    }

    /// Does the same with a store that completes the fetch of a specification when the test does.
    fn publish_late(self) -> (Site, Arc<View>, Receiver<String>, Receiver<Late>) {
        let (late, held) = channel();
        let (site, view, asked) = self.publish_to(move |inner, wanted, token, done| {
            if wanted.what.contains("/.cvmfsbundle-") {
                let late = late.clone();
                // The test may have dropped the receiver.
                let hold = move |outcome| drop(late.send((done, outcome)));
                inner.warm(wanted, token, Callback::new(hold));
            } else {
                inner.warm(wanted, token, done);
            }
        });
        (site, view, asked, held)
    }

    fn publish_to(
        self,
        warm: impl Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync + 'static,
    ) -> (Site, Arc<View>, Receiver<String>) {
        let Self { site, root } = self;
        site.publish_root(root);
        let (reported, asked) = channel();
        let warm = move |inner: &dyn ObjectStore,
                         wanted: ObjectRequest,
                         token: &CancelToken,
                         done: Callback<Warmed>| {
            let what = wanted.what.clone();
            warm(inner, wanted, token, done);
            // The test may have dropped the receiver.
            let _ = reported.send(what);
        };
        let view = watched::open(&site, true, warm);
        (site, view, asked)
    }
}

fn read(view: &View, path: &str) {
    let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
    view.read_at(&found.node, 0, 10).unwrap();
}

/// Reads a file whose neighbour is fetched after everything queued before; returns what was queued.
fn until_probed(view: &View, asked: &Receiver<String>) -> Vec<String> {
    read(view, "/probe/a.probe");
    let before = asked.iter().take_while(|path| path != "/probe/b.probe");
    before.filter(|path| path != "/probe/a.probe").collect()
}

#[test]
fn a_bundle_is_fetched_in_its_order_without_further_reads() {
    let made = Made::new();
    for name in ["one.x", "two.y", "three.z"] {
        made.add(&made.root, &format!("/{name}"), 4, name.as_bytes());
    }
    let chunks: Vec<(u64, u64, [u8; 20])> =
        (0..4).map(|at| (at * 3, 3, digest(&made.site.repository.store(&[at as u8; 3], "P")))).collect();
    let large = Row { flags: 4 | CHUNKED, chunks, ..Row::file("/large", 12, None) };
    made.root.add(&large);
    let steps = r#","esker-reads":["2","3:4-8","0","3:0-1"]"#;
    made.announce("trigger", r#""/one.x","two.y","/three.z","./large","/gone","/probe""#, steps);
    let (_site, view, asked) = made.publish(false);
    read(&view, "/trigger");
    let order: Vec<String> = asked.iter().take(7).collect();
    // The middle two chunks, then the first; chunks that no step reads come last.
    let expected = ["/.cvmfsbundle-trigger", "/three.z", "/large", "/large", "/one.x", "/large", "/two.y"];
    assert_eq!(order, expected);
    let misses = view.status().counters.misses;
    for path in ["/one.x", "/two.y", "/three.z"] {
        read(&view, path);
    }
    let joined = view.status().counters.misses - misses;
    assert!(joined <= 3, "each is there or on its way");
}

#[test]
fn bundles_can_be_switched_off() {
    let made = Made::new();
    made.add(&made.root, "/one.x", 4, b"one.x");
    made.announce("trigger", r#""/one.x""#, "");
    let Made { site, root } = made;
    site.publish_root(root);
    let (reported, asked) = channel();
    let options = ViewOptions { prefetch: true, without_bundles: true, ..ViewOptions::default() };
    let view = watched::view_reporting_to(&site, options, &reported);
    read(&view, "/trigger");
    read(&view, "/probe/a.probe");
    let fetched: Vec<_> = asked.iter().take_while(|what| what != "fetch /probe/b.probe").collect();
    assert!(!fetched.iter().any(|path| path.contains("/.cvmfsbundle-")), "{fetched:?}");
}

#[test]
fn arrived_bundle_files_are_reported_to_the_listener() {
    let made = Made::new();
    made.add(&made.root, "/one.x", 4, b"one.x");
    let chunks: Vec<(u64, u64, [u8; 20])> =
        (0..4).map(|at| (at * 3, 3, digest(&made.site.repository.store(&[at as u8; 3], "P")))).collect();
    made.root.add(&Row { flags: 4 | CHUNKED, chunks, ..Row::file("/large", 12, None) });
    made.announce("trigger", r#""/one.x","/large","/gone""#, r#","esker-reads":["1:4-8","0","1:10-99"]"#);
    let (_site, view, _asked) = made.publish(false);
    let (reported, arrivals) = channel();
    view.set_prefetch_listener(Box::new(move |what| {
        if let PrefetchEvent::Bytes(arrival) = what {
            reported.send(arrival.clone()).unwrap();
        }
    }));
    read(&view, "/trigger");
    let mut arrived: Vec<_> = arrivals.iter().take(4).collect();
    arrived.sort_by_key(|arrival| (arrival.path.clone(), arrival.range.start));
    let expected =
        [("/large", 4..6, false), ("/large", 6..8, false), ("/large", 10..12, true), ("/one.x", 0..5, true)];
    let expected = expected.map(|(path, range, ends)| Arrival { path: path.as_bytes().into(), range, ends });
    assert_eq!(arrived, expected);
}

/// Returns the chunks fetched of `/lib.so`, whose second chunk a bundle names, and of a library that no bundle names.
///
/// The specification comes late or not at all; before that no remaining chunk is fetched. The headers come first.
fn rest_of_libraries(spec_comes: bool) -> Vec<String> {
    let made = Made::new();
    for (library, first) in [("/lib.so", 0_u8), ("/other.so", 8)] {
        let of = |at: u8| digest(&made.site.repository.store(&[first + at; 3], "P"));
        let chunks = (0..4).map(|at| (u64::from(at) * 3, 3, of(at))).collect();
        made.root.add(&Row { flags: 4 | CHUNKED, chunks, ..Row::file(library, 12, None) });
    }
    made.announce("trigger", r#""/lib.so""#, r#","esker-reads":["0:4-5"]"#);
    made.announce("other", "", "");
    let (_site, view, asked, held) = made.publish_late();
    read(&view, "/trigger");
    let (spec, outcome) = held.recv().unwrap();
    for library in ["/lib.so", "/other.so"] {
        let found = view.find(library.as_bytes(), LastLink::Keep).unwrap();
        view.read_at(&found.node, 0, 1).unwrap();
    }
    assert_eq!(until_probed(&view, &asked), ["/.cvmfsbundle-trigger"]);
    if spec_comes {
        spec.give(outcome);
    } else {
        drop(spec);
    }
    let libraries = asked.iter().take(if spec_comes { 5 } else { 8 }).collect();
    // A chunk that was not announced: the last one.
    let found = view.find(b"/lib.so", LastLink::Keep).unwrap();
    view.read_at(&found.node, 9, 1).unwrap();
    read(&view, "/other");
    assert_eq!(asked.recv().unwrap(), "/.cvmfsbundle-other", "that was all");
    libraries
}

#[test]
fn remaining_chunks_wait_for_a_bundle_and_are_replaced_by_it() {
    let others = ["/other.so"; 3];
    assert_eq!(rest_of_libraries(true), [&["/other.so", "/lib.so"][..], &others].concat());
}

#[test]
fn remaining_chunks_follow_if_a_bundle_is_unavailable() {
    let heads = ["/lib.so", "/other.so"];
    assert_eq!(rest_of_libraries(false), [&heads[..], &["/lib.so"; 3], &["/other.so"; 3]].concat());
}

#[test]
fn bundle_files_in_nested_catalogs_are_fetched_with_their_catalogs() {
    let made = Made::new();
    let (nested, deep) = (Draft::new("/n"), Draft::new("/n/deep"));
    for (parent, own, path) in [(&made.root, &nested, "/n"), (&nested, &deep, "/n/deep")] {
        parent.add(&Row { flags: 1 | 2, ..Row::directory(path) });
        own.add(&Row { flags: 1 | 32, ..Row::directory(path) });
    }
    made.add(&nested, "/n/file.x", 4, b"nested");
    made.add(&deep, "/n/deep/file.y", 4, b"deep");
    made.site.nest(&nested, "/n/deep", deep);
    made.site.nest(&made.root, "/n", nested);
    made.add(&made.root, "/last.z", 4, b"last");
    made.announce("trigger", r#""/n/deep/file.y","/n/file.x","/last.z","/n/deep/gone""#, "");
    let (_site, view, asked) = made.publish(false);
    read(&view, "/trigger");
    let wanted = BTreeSet::from(["/n/deep/file.y", "/n/file.x", "/last.z"].map(str::to_owned));
    let mut seen = BTreeSet::new();
    for path in &asked {
        seen.insert(path);
        if seen.is_superset(&wanted) {
            break;
        }
    }
    assert_eq!(view.status().counters.catalogs, 3);
}

#[test]
fn a_bundle_may_have_files_in_many_catalogs() {
    let made = Made::new();
    let folders: Vec<String> = (0..40).map(|number| format!("/n{number}")).collect();
    for folder in &folders {
        let nested = Draft::new(folder);
        made.root.add(&Row { flags: 1 | 2, ..Row::directory(folder) });
        nested.add(&Row { flags: 1 | 32, ..Row::directory(folder) });
        made.add(&nested, &format!("{folder}/file.x"), 4, folder.as_bytes());
        made.site.nest(&made.root, folder, nested);
    }
    let files: Vec<String> = folders.iter().map(|folder| format!("{folder}/file.x")).collect();
    let quoted: Vec<String> = files.iter().map(|file| format!("\"{file}\"")).collect();
    made.announce("trigger", &quoted.join(","), "");
    let (_site, view, asked) = made.publish(false);
    read(&view, "/trigger");
    let mut lacking: BTreeSet<String> = files.into_iter().collect();
    while !lacking.is_empty() {
        let came = asked.recv_timeout(PATIENCE);
        assert!(came.is_ok(), "these don't come: {lacking:?}");
        lacking.remove(&came.unwrap());
    }
}

/// Neither the trigger nor its specification is available.
#[test]
fn a_bundle_is_fetched_after_an_outage() {
    let made = Made::new();
    made.add(&made.root, "/wanted.y", 4, b"wanted");
    made.announce("trigger", r#""/wanted.y""#, "");
    let Made { site, root } = made;
    site.publish_root(root);
    let away = Arc::new(AtomicBool::new(false));
    let is_away = Arc::clone(&away);
    let get = move |inner: &dyn ObjectStore, wanted: ObjectRequest, done: Callback<Handle>| {
        if is_away.load(Ordering::SeqCst) { drop(done) } else { inner.get(wanted, done) }
    };
    let (reported, asked) = channel();
    let is_away = Arc::clone(&away);
    let warm =
        move |inner: &dyn ObjectStore, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>| {
            let what = wanted.what.clone();
            if is_away.load(Ordering::SeqCst) {
                drop(done)
            } else {
                inner.warm(wanted, token, done)
            }
            let _ = reported.send(what);
        };
    let view = watched::between(&site, get, warm);
    let found = view.find(b"/trigger", LastLink::Keep).unwrap();
    away.store(true, Ordering::SeqCst);
    view.read_at(&found.node, 0, 1).unwrap_err();
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), "/.cvmfsbundle-trigger");
    away.store(false, Ordering::SeqCst);
    view.read_at(&found.node, 0, 1).unwrap();
    while asked.recv_timeout(PATIENCE).expect("it is asked for") != "/wanted.y" {}
}

#[test]
fn a_trigger_in_a_bundle_fetches_its_own_bundle() {
    let made = Made::new();
    made.add(&made.root, "/wanted.y", 4, b"wanted");
    made.announce("a.one", r#""/b.two""#, "");
    made.announce("b.two", r#""/wanted.y""#, "");
    let (reported, came) = channel();
    let (_site, view, asked) = made.publish_to(move |inner, wanted, token, done| {
        let (reported, what) = (reported.clone(), wanted.what.clone());
        let tell = move |outcome| {
            done.give(outcome);
            let _ = reported.send(what);
        };
        inner.warm(wanted, token, Callback::new(tell));
    });
    read(&view, "/a.one");
    while came.recv_timeout(PATIENCE).expect("it comes") != "/b.two" {}
    read(&view, "/b.two");
    while asked.recv_timeout(PATIENCE).expect("it is asked for") != "/wanted.y" {}
}

#[test]
fn a_false_bundle_fetches_no_more_than_its_budget() {
    let made = Made::new();
    // The cache has 1 GiB, of which unread objects of bundles may take half.
    let size = 200 << 20;
    let lies: Vec<String> = (0..50).map(|number| format!("/lie{number}")).collect();
    for lie in &lies {
        made.root.add(&Row::file(lie, size, Some(made.store(lie.as_bytes()))));
    }
    let quoted: Vec<String> = lies.iter().map(|lie| format!("\"{lie}\"")).collect();
    made.announce("trigger", &quoted[..25].join(","), "");
    made.announce("other", &quoted[25..].join(","), "");
    // Misses of programs do not raise the budget of bundles.
    for number in 0..20 {
        made.root.add(&Row::file(&format!("/demanded.{number}"), size, Some(made.store(&[number]))));
    }
    let (_site, view, asked) = made.publish(true);
    for number in 0..20 {
        let found = view.find(format!("/demanded.{number}").as_bytes(), LastLink::Keep).unwrap();
        view.read_at(&found.node, 0, 1).unwrap_err();
    }
    read(&view, "/trigger");
    let first: Vec<String> = asked.iter().take(3).collect();
    assert_eq!(first, ["/.cvmfsbundle-trigger", "/lie0", "/lie1"]);
    read(&view, "/other");
    assert_eq!(asked.recv().unwrap(), "/.cvmfsbundle-other", "its content is unknown");
    let more = until_probed(&view, &asked);
    assert_eq!(more, [""; 0], "400 MiB are under way or unread, and nothing was read");
}

/// Each read of a folder adds its files as candidates; all together exceed the queue.
#[test]
fn a_bundle_is_fetched_while_candidates_wait_for_their_budget() {
    let made = Made::new();
    for folder in 0..10_u8 {
        made.root.add(&Row::directory(&format!("/d{folder}")));
        for number in 0..8000_u32 {
            let mut hash = [folder + 1; 20];
            hash[..4].copy_from_slice(&number.to_le_bytes());
            made.root.add(&Row::file(&format!("/d{folder}/lie{number}.x{folder}"), 5000, Some(hash)));
        }
        made.add(&made.root, &format!("/d{folder}/real.x{folder}"), 4, &[folder; 10]);
    }
    made.add(&made.root, "/wanted.y", 4, b"wanted");
    made.announce("trigger", r#""/wanted.y""#, "");
    let (_site, view, asked) = made.publish(true);
    let miss = |folder: u8| read(&view, &format!("/d{folder}/real.x{folder}"));
    miss(0);
    // The initial budget of candidates.
    asked.iter().filter(|path| path.contains("/lie")).take((32 << 20) / 5000).for_each(drop);
    (1..10).for_each(miss);
    read(&view, "/trigger");
    while asked.recv_timeout(PATIENCE).expect("it is asked for") != "/wanted.y" {}
}

#[test]
fn a_huge_circular_bundle_ends() {
    let made = Made::new();
    let mut many = String::from("\"/../../etc/passwd\",\"/trigger\",\"/.cvmfsbundle-trigger\",\"/other\"");
    for number in 0..200_000 {
        write!(many, ",\"/n{number}\"").unwrap();
    }
    made.announce("trigger", &many, "");
    made.announce("other", r#""/trigger","/other","/.cvmfsbundle-trigger""#, "");
    made.announce("large", &"\"/probe/b.probe\",".repeat(1 << 18), "");
    made.announce("nonsense", "7", "");
    made.add(&made.root, "/n0", 4, b"n");
    let (_site, view, asked) = made.publish(false);
    read(&view, "/trigger");
    let seen: Vec<String> = asked.iter().take(5).collect();
    let spec = "/.cvmfsbundle-trigger";
    assert_eq!(seen, [spec, "/trigger", spec, "/other", "/n0"]);
    for path in ["/other", "/large", "/nonsense", "/trigger"] {
        read(&view, path);
    }
    let more: BTreeSet<String> = until_probed(&view, &asked).into_iter().collect();
    let known = |path: &String| path.starts_with("/.cvmfsbundle-") || path == "/trigger" || path == "/other";
    assert!(more.iter().all(known), "{more:?}");
}
