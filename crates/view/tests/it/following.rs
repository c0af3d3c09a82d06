//! A view that is open while the head moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use esker_testkit::contents::Contents;
use esker_testkit::fixture::{ALL, FULL, TAGS};
use esker_testkit::object::sha256;
use esker_testkit::waiting::until;
use esker_vfs::{Change, Cookie, ErrorKind, Kind, NodeWithAttr, Reply, Tree, Watcher};
use esker_view::{LastLink, Pin, Refreshed, View, ViewOptions};

use crate::fixtures::{check_all, read_all, walk};
use crate::gate::{Gate, object_hash};
use crate::kernel::Kernel;
use crate::model::Model;
use crate::support::Site;

/// Passes changes on to a channel.
struct Tell(Mutex<Sender<Vec<Change>>>);

impl Watcher for Tell {
    fn changed(&self, changes: &[Change]) {
        self.0.lock().unwrap().send(changes.to_vec()).unwrap();
    }
}

#[test]
fn each_revision_is_shown_while_files_of_older_ones_are_read() {
    for fixture in ALL {
        let site = Site::of(fixture);
        // The published head is the newest; a client that never saw it accepts the older ones before it.
        site.publish("v1");
        let view = site.following();
        let mut opened: Vec<(NodeWithAttr, String)> = Vec::new();
        for tag in TAGS {
            site.publish(tag);
            view.refresh().unwrap();
            let listing = fixture.listing(tag);
            check_all(&view, &listing);
            for entry in listing.iter().filter(|entry| entry.is_file()) {
                let found = view.find(&entry.path, LastLink::Keep).unwrap();
                view.hold(&found.node);
                opened.push((found, entry.sha256.clone().unwrap()));
            }
        }
        for (found, sum) in &opened {
            assert_eq!(&sha256(&read_all(&view, found)), sum);
            view.release(&found.node);
        }
        assert_eq!(view.status().counters.held, 0);
        assert_eq!(view.status().counters.switches, 2);
    }
}

#[test]
fn a_kernel_that_cached_v1_is_invalidated_for_v2_and_v3() {
    for fixture in ALL {
        let site = Site::of(fixture);
        site.publish("v1");
        let view = site.following();
        let kernel = Kernel::on(&view);
        let mut names = BTreeSet::new();
        for tag in TAGS {
            for entry in fixture.listing(tag) {
                names.insert(entry.path.clone());
            }
        }
        let names: BTreeSet<String> = names
            .iter()
            .filter_map(|path| String::from_utf8(path.rsplit(|byte| *byte == b'/').next()?.to_vec()).ok())
            .filter(|name| !name.is_empty())
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for tag in TAGS {
            site.publish(tag);
            view.refresh().unwrap();
            kernel.check(&view, &names);
            for (path, found) in walk(&view) {
                let Ok(path) = String::from_utf8(path) else { continue };
                let known = kernel.walk_to(&view, &path).unwrap();
                assert_eq!(known, found.node, "{path}");
                if known.kind == Kind::Directory {
                    kernel.list(&view, &known);
                }
            }
        }
    }
}

#[test]
fn the_new_revision_is_visible_before_watchers_are_notified() {
    struct Look {
        view: Arc<View>,
        seen: AtomicU64,
    }
    impl Watcher for Look {
        fn changed(&self, _: &[Change]) {
            self.seen.store(self.view.status().revision, Ordering::SeqCst);
        }
    }
    let site = Site::of(FULL);
    Model::default().file("/a", 1).publish(&site.repository);
    let view = site.following();
    let look = Arc::new(Look { view: Arc::clone(&view), seen: AtomicU64::new(0) });
    view.watch(look.clone());
    Model::default().file("/a", 2).publish(&site.repository);
    let Refreshed { revision, changed, .. } = view.refresh().unwrap();
    assert!(changed);
    assert_eq!(look.seen.load(Ordering::SeqCst), revision);
    assert!(!view.refresh().unwrap().changed);
}

/// Threads look up without a pause while revisions change; each entry they put into the kernel's cache is either valid
/// in the last revision or was invalidated.
#[test]
fn no_answer_from_an_old_revision_arrives_after_its_invalidation() {
    let site = Site::of(FULL);
    let revision = |n: u8| {
        (0..8).fold(Model::default().directory("/d").nest("/d"), |model, file| {
            let path = format!("/d/{file}");
            if (n + file).is_multiple_of(3) { model } else { model.file(&path, n) }
        })
    };
    revision(0).publish(&site.repository);
    let view = site.following();
    let kernel = Kernel::on(&view);
    let done = AtomicBool::new(false);
    let names: Vec<String> = (0..8).map(|file| file.to_string()).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for name in &names {
                        kernel.walk_to(&view, &format!("/d/{name}"));
                    }
                }
            });
        }
        for n in 1..30 {
            revision(n).publish(&site.repository);
            assert!(view.refresh().unwrap().changed);
        }
        done.store(true, Ordering::Relaxed);
    });
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["d"]).collect();
    kernel.check(&view, &names);
}

/// An answer from the old revision is delayed until the new one is visible.
#[test]
fn watchers_are_notified_after_the_last_answer_from_the_old_revision() {
    let site = Site::of(FULL);
    Model::default().file("/a", 1).publish(&site.repository);
    let view = site.following();
    let old = view.status().revision;
    let (told_sender, reported) = channel();
    view.watch(Arc::new(Tell(told_sender.into())));
    let (answering_sender, answering) = channel();
    let (go_on, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let root = view.root().node;
            let slow = Reply::new(move |answer: Result<NodeWithAttr, _>| {
                answering_sender.send(answer.unwrap().node).unwrap();
                wait.recv().unwrap();
            });
            view.lookup(&root, b"a", slow);
        });
        let answered = answering.recv().unwrap();
        Model::default().file("/a", 2).publish(&site.repository);
        let refresh = scope.spawn(|| view.refresh().unwrap());
        assert!(until(std::time::Duration::from_secs(60), || view.status().revision != old));
        assert_ne!(view.find(b"/a", LastLink::Keep).unwrap().node, answered);
        // Long enough to detect a thread that does not wait.
        let early = reported.recv_timeout(std::time::Duration::from_millis(200));
        go_on.send(()).unwrap();
        assert!(early.is_err(), "{early:?}");
        assert!(!reported.recv().unwrap().is_empty());
        assert!(refresh.join().unwrap().changed);
    });
}

/// Every name that both revisions have is returned exactly once, wherever the listing was interrupted.
#[test]
fn a_listing_across_a_switch_returns_every_unchanged_name_once() {
    let site = Site::of(FULL);
    let old = (0..40).fold(Model::default(), |model, n| model.file(&format!("/{n}"), 1));
    let mut new = old.clone();
    for n in (0..40).step_by(3) {
        new.things.remove(&format!("/{n}"));
        new = new.file(&format!("/new{n}"), 1);
    }
    let names = |model: &Model| -> BTreeSet<Vec<u8>> {
        model.things.keys().map(|path| path.as_bytes()[1..].to_vec()).collect()
    };
    let (old_names, new_names) = (names(&old), names(&new));
    for interrupted in (0..=40).step_by(4) {
        old.publish(&site.repository);
        let view = site.following();
        let root = view.root().node;
        let first = Reply::wait(|reply| view.list(&root, Cookie(0), reply)).unwrap();
        let head: Vec<_> = first.entries[first.start..].iter().take(interrupted).cloned().collect();
        new.publish(&site.repository);
        assert!(view.refresh().unwrap().changed);
        let after = head.last().map_or(Cookie(0), |entry| entry.cookie);
        let second = Reply::wait(|reply| view.list(&root, after, reply)).unwrap();
        let rest = second.entries[second.start..].iter();
        let mut counts: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for entry in head.iter().chain(rest) {
            *counts.entry(entry.name.to_vec()).or_default() += 1;
        }
        assert!(counts.values().all(|count| *count == 1));
        assert!(old_names.intersection(&new_names).all(|name| counts.contains_key(name)));
    }
}

#[test]
fn directories_keep_their_numbers_and_files_only_while_their_content_stays() {
    let site = Site::of(FULL);
    let old = Model::default().directory("/d").file("/d/same", 1).file("/d/other", 1);
    old.publish(&site.repository);
    let view = site.following();
    let before = walk(&view);
    let mut new = old.file("/d/other", 2);
    new.things.insert("/d/same".into(), crate::model::Thing::File { content: 1, mode: 0o600 });
    new.things.insert("/d".into(), crate::model::Thing::Directory { mode: 0o700 });
    new.publish(&site.repository);
    view.refresh().unwrap();
    let after = walk(&view);
    let number =
        |found: &BTreeMap<Vec<u8>, NodeWithAttr>, path: &[u8]| (found[path].node.key, found[path].attr.ino);
    for same in [&b"/"[..], b"/d", b"/d/same"] {
        assert_eq!(number(&before, same), number(&after, same));
    }
    assert_ne!(number(&before, b"/d/other"), number(&after, b"/d/other"));
    assert_ne!(
        before[&b"/d/same"[..]].node.ino,
        before[&b"/d/other"[..]].node.ino,
        "equal content, two paths"
    );
    let attributes = |found: &NodeWithAttr| Reply::wait(|reply| view.attributes(&found.node, reply));
    assert_eq!(attributes(&before[&b"/d/same"[..]]).unwrap(), after[&b"/d/same"[..]].attr);
    assert_eq!(attributes(&before[&b"/d"[..]]).unwrap().permissions, 0o700);
    assert_eq!(attributes(&before[&b"/d/other"[..]]).unwrap_err().kind, ErrorKind::Stale);
}

#[test]
fn another_process_returns_the_same_inode_numbers() {
    let numbers = || {
        let site = Site::of(FULL);
        let view = site.pinned(Pin::Tag("v2".into())).unwrap();
        let entries = walk(&view).into_iter();
        entries.map(|(path, found)| (path, found.node.key, found.attr.ino)).collect::<Vec<_>>()
    };
    assert_eq!(numbers(), numbers());
}

#[test]
fn a_pinned_view_stays_at_its_revision() {
    let site = Site::of(FULL);
    let view = site.pinned(Pin::Tag("v1".into())).unwrap();
    assert!(!view.refresh().unwrap().changed);
    let status = view.status();
    assert!(status.pinned);
    assert_eq!(status.tag.as_deref(), Some("v1"));
    assert_eq!(status.revision, site.repository.tag("v1").revision);
    let error = site.pinned(Pin::Tag("v9".into())).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.to_string().contains("v9"), "{error}");
    let hash = esker_format::hash::ContentHash::parse(&site.repository.tag("v2").root).unwrap();
    let by_hash = site.pinned(Pin::Root(hash)).unwrap();
    assert_eq!(by_hash.status().revision, site.repository.tag("v2").revision);
}

#[test]
fn without_a_server_the_view_stays_and_reports_it() {
    let site = Site::of(FULL);
    let view = site.following();
    let before = view.status();
    assert!(before.offline.is_none());
    let manifest = site.repository.read(".cvmfspublished");
    site.repository.write(".cvmfspublished", b"<html>log in first</html>");
    let outcome = view.refresh().unwrap();
    assert!(!outcome.changed && outcome.offline.is_some());
    let offline = view.status().offline.unwrap();
    assert!(!offline.reason.is_empty());
    assert_eq!(view.status().revision, before.revision);
    view.find(b"/", LastLink::Keep).unwrap();
    site.repository.write(".cvmfspublished", &manifest);
    assert_eq!(view.refresh().unwrap().offline, None);
    assert!(view.status().offline.is_none());
}

/// Opens a view that follows by itself, publishes, and waits for the notification.
fn follows_by_itself(options: ViewOptions) {
    let site = Site::of(FULL);
    Model::default().file("/a", 1).publish(&site.repository);
    let view = site.open(options).unwrap();
    let (sender, reported) = channel();
    view.watch(Arc::new(Tell(sender.into())));
    Model::default().file("/b", 1).publish(&site.repository);
    let changes = reported.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    assert!(changes.iter().any(|change| matches!(change, Change::Name { name, .. } if **name == *b"b")));
    view.close();
}

#[test]
fn a_short_ttl_causes_checks_without_a_refresh() {
    let ttl = Some(std::time::Duration::from_millis(5));
    follows_by_itself(ViewOptions { ttl, ..ViewOptions::default() });
}

/// The repository sets minutes; the options set a shorter maximum.
#[test]
fn the_maximum_ttl_of_the_options_is_kept() {
    let ttl_max = Some(std::time::Duration::from_millis(5));
    follows_by_itself(ViewOptions { ttl_max, ..ViewOptions::default() });
}

#[test]
fn too_many_changes_invalidate_everything() {
    let site = Site::of(FULL);
    Model::default().publish(&site.repository);
    let view = site.following();
    let kernel = Kernel::on(&view);
    let many = (0..20_001).fold(Model::default(), |model, n| model.file(&format!("/{n}"), 1));
    many.publish(&site.repository);
    view.refresh().unwrap();
    assert_eq!(kernel.take_reported(), [Change::Everything]);
}

/// A program mounts another catalog of the old revision while those of the new one are being fetched.
#[test]
fn catalogs_mounted_during_the_comparison_are_invalidated_too() {
    for (second, third) in [(2, 2), (1, 2)] {
        let site = Site::of(FULL);
        let revision = |early: u8, late: u8| {
            let dirs = Model::default().directory("/early").nest("/early").directory("/late").nest("/late");
            dirs.file("/early/f", early).file("/late/f", late)
        };
        revision(1, 1).publish(&site.repository);
        let gate = Gate::before(Arc::clone(&site.store));
        let options = ViewOptions { ttl: Some(std::time::Duration::MAX), ..ViewOptions::default() };
        let view = View::open(gate.clone(), site.heads(), options).unwrap();
        let kernel = Kernel::on(&view);
        kernel.walk_to(&view, "/early/f").unwrap();
        let root = revision(2, second).publish(&site.repository);
        let early = Contents::read(&site.repository, &root).catalogs["/early"].clone();
        let early = object_hash(&early);
        gate.close(early);
        std::thread::scope(|scope| {
            let refresh = scope.spawn(|| view.refresh().unwrap());
            gate.wait_for_waiter(early);
            kernel.walk_to(&view, "/late/f").unwrap();
            gate.open(early);
            assert!(refresh.join().unwrap().changed);
        });
        kernel.check(&view, &["early", "late", "f"]);
        revision(2, third).publish(&site.repository);
        view.refresh().unwrap();
        kernel.check(&view, &["early", "late", "f"]);
    }
}
