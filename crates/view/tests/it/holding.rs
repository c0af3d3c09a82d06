//! Files in use, and the cache's wish to evict them.

use std::collections::HashMap;
use std::sync::Arc;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_store::{CacheKey, Holder};
use esker_testkit::fixture::FULL;
use esker_vfs::{Change, Node, NodeKey, Tree, Watcher};
use esker_view::{LastLink, View, ViewOptions};
use parking_lot::Mutex;

use crate::gate::Gate;
use crate::model::{Model, Thing};
use crate::support::Site;

/// A name in a directory.
type Name = (NodeKey, Box<[u8]>);

/// A kernel that lets go of a file when it was told to forget all names it knows of it, unless it is open.
#[derive(Default)]
struct NeededNames {
    view: Mutex<Option<Arc<View>>>,
    known: Mutex<HashMap<Name, Node>>,
    open: Mutex<Vec<NodeKey>>,
    findings: Mutex<Vec<Change>>,
}

impl NeededNames {
    fn learn(&self, view: &View, dir: &str, name: &str) -> Node {
        let dir = view.find(dir.as_bytes(), LastLink::Keep).unwrap().node;
        let path_found = view.names(&dir).unwrap();
        let entry = path_found.iter().find(|entry| *entry.name == *name.as_bytes()).unwrap();
        let mut known = self.known.lock();
        if !known.values().any(|node| *node == entry.node) {
            view.hold(&entry.node);
        }
        known.insert((dir.key, entry.name.clone()), entry.node);
        entry.node
    }
}

impl Watcher for NeededNames {
    fn changed(&self, changes: &[Change]) {
        self.findings.lock().extend_from_slice(changes);
        let mut known = self.known.lock();
        for change in changes {
            let Change::Name { dir, name } = change else { panic!("{change:?}") };
            let Some(node) = known.remove(&(*dir, name.clone())) else { continue };
            let gone = !known.values().any(|other| *other == node);
            if gone && !self.open.lock().contains(&node.key) {
                // The word that a file is forgotten comes on another thread.
                let view = self.view.lock().clone().unwrap();
                std::thread::spawn(move || view.release(&node));
            }
        }
    }
}

struct Snapshot {
    view: Arc<View>,
    kernel: Arc<NeededNames>,
    holder: Arc<dyn Holder>,
    _site: Site,
}

fn snapshot(model: &Model) -> Snapshot {
    let site = Site::of(FULL);
    model.publish(&site.repository);
    let gate = Gate::before(Arc::clone(&site.store));
    let view = View::open(gate.clone(), site.heads(), ViewOptions::default()).unwrap();
    let kernel = Arc::new(NeededNames::default());
    *kernel.view.lock() = Some(Arc::clone(&view));
    view.watch(kernel.clone());
    Snapshot { holder: gate.holder(), view, kernel, _site: site }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.kernel.view.lock().take();
    }
}

fn object(content: u8) -> CacheKey {
    CacheKey { hash: ContentHash::new(HashAlgorithm::Sha1, [content; 20]), compression: Compression::Zlib }
}

#[test]
fn what_nobody_has_is_free_and_nobody_is_asked() {
    let snapshot = snapshot(&Model::default().file("/a", 1));
    assert_eq!(snapshot.holder.release(&[object(1), object(9)]), [false, false]);
    assert!(snapshot.kernel.findings.lock().is_empty());
}

#[test]
fn closed_files_are_let_go_and_open_ones_kept() {
    let snapshot = snapshot(&Model::default().directory("/d").file("/d/closed", 1).file("/d/open", 2));
    let (view, kernel) = (&snapshot.view, &snapshot.kernel);
    kernel.learn(view, "/d", "closed");
    let open = kernel.learn(view, "/d", "open");
    kernel.open.lock().push(open.key);
    assert_eq!(view.status().counters.held, 2);
    assert_eq!(snapshot.holder.release(&[object(1), object(2)]), [false, true]);
    assert_eq!(view.status().counters.held, 1);
    let dir = view.find(b"/d", LastLink::Keep).unwrap().node.key;
    let findings = kernel.findings.lock();
    let name = |name: &[u8]| Change::Name { dir, name: name.into() };
    assert_eq!(findings.len(), 2);
    assert!(findings.contains(&name(b"closed")) && findings.contains(&name(b"open")));
}

#[test]
fn every_name_of_a_hardlink_and_every_file_with_the_content_is_forgotten() {
    let link = || Thing::Hardlink { group: 1, content: 1 };
    let snapshot = snapshot(
        &Model::default()
            .directory("/d")
            .with("/d/one", link())
            .with("/d/two", link())
            .file("/d/other", 2)
            .file("/same", 1),
    );
    let (view, kernel) = (&snapshot.view, &snapshot.kernel);
    let one = kernel.learn(view, "/d", "one");
    let two = kernel.learn(view, "/d", "two");
    assert_eq!(one, two);
    kernel.learn(view, "/", "same");
    kernel.learn(view, "/d", "other");
    assert_eq!(snapshot.holder.release(&[object(1)]), [false]);
    assert_eq!(kernel.findings.lock().len(), 3);
    assert_eq!(kernel.known.lock().len(), 1);
}

#[test]
fn a_chunked_file_holds_each_of_its_chunks() {
    let snapshot = snapshot(&Model::default().with("/big", Thing::Chunked { chunks: vec![1, 2, 3] }));
    let node = snapshot.kernel.learn(&snapshot.view, "/", "big");
    snapshot.kernel.open.lock().push(node.key);
    assert_eq!(snapshot.holder.release(&[object(2), object(4)]), [true, false]);
    snapshot.kernel.open.lock().clear();
    snapshot.kernel.learn(&snapshot.view, "/", "big");
    snapshot.view.release(&node);
    assert_eq!(snapshot.holder.release(&[object(3)]), [false]);
    assert_eq!(snapshot.view.status().counters.held, 0);
}

#[test]
fn files_of_an_earlier_revision_stay_held_while_they_are_open() {
    let site = Site::of(FULL);
    Model::default().file("/a", 1).publish(&site.repository);
    let gate = Gate::before(Arc::clone(&site.store));
    let view = View::open(gate.clone(), site.heads(), ViewOptions::default()).unwrap();
    let old = view.find(b"/a", LastLink::Keep).unwrap().node;
    view.hold(&old);
    Model::default().file("/b", 2).publish(&site.repository);
    assert!(view.refresh().unwrap().changed);
    assert_eq!(gate.holder().release(&[object(1)]), [true]);
    view.release(&old);
    assert_eq!(gate.holder().release(&[object(1)]), [false]);
}

#[test]
fn attached_catalogs_are_held() {
    let snapshot = snapshot(&Model::default());
    let root = CacheKey { hash: snapshot.view.status().root_hash, compression: Compression::Zlib };
    assert_eq!(snapshot.holder.release(&[root]), [true]);
}

/// Uses are counted, from many threads and for files that share their content.
#[test]
fn as_many_releases_as_holds_leave_nothing() {
    let model = (0..20).fold(Model::default(), |model, n| model.file(&format!("/{n}"), n % 3));
    let model = model.with("/big", Thing::Chunked { chunks: vec![7, 8] });
    let snapshot = snapshot(&model);
    let view = &snapshot.view;
    let nodes: Vec<Node> = view.names(&view.root().node).unwrap().iter().map(|entry| entry.node).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    nodes.iter().for_each(|node| view.hold(node));
                    nodes.iter().for_each(|node| view.hold(node));
                    nodes.iter().for_each(|node| view.release(node));
                    nodes.iter().rev().for_each(|node| view.release(node));
                }
            });
        }
    });
    assert_eq!(view.status().counters.held, 0);
    nodes.iter().for_each(|node| view.hold(node));
    assert_eq!(view.status().counters.held, 21);
}
