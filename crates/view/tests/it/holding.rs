//! Eviction of files in use.

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

/// A kernel that releases a file once all its cached names are invalidated, unless it is open.
#[derive(Default)]
struct FakeKernel {
    view: Mutex<Option<Arc<View>>>,
    known: Mutex<HashMap<Name, Node>>,
    open: Mutex<Vec<NodeKey>>,
    reported: Mutex<Vec<Change>>,
}

impl FakeKernel {
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

impl Watcher for FakeKernel {
    fn changed(&self, changes: &[Change]) {
        self.reported.lock().extend_from_slice(changes);
        let mut known = self.known.lock();
        for change in changes {
            let Change::Name { dir, name } = change else { panic!("{change:?}") };
            let Some(node) = known.remove(&(*dir, name.clone())) else { continue };
            let gone = !known.values().any(|other| *other == node);
            if gone && !self.open.lock().contains(&node.key) {
                // The release of a file comes on another thread.
                let view = self.view.lock().clone().unwrap();
                std::thread::spawn(move || view.release(&node));
            }
        }
    }
}

struct Setup {
    view: Arc<View>,
    kernel: Arc<FakeKernel>,
    holder: Arc<dyn Holder>,
    _site: Site,
}

fn setup(model: &Model) -> Setup {
    let site = Site::of(FULL);
    model.publish(&site.repository);
    let gate = Gate::before(Arc::clone(&site.store));
    let view = View::open(gate.clone(), site.heads(), ViewOptions::default()).unwrap();
    let kernel = Arc::new(FakeKernel::default());
    *kernel.view.lock() = Some(Arc::clone(&view));
    view.watch(kernel.clone());
    Setup { holder: gate.holder(), view, kernel, _site: site }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.kernel.view.lock().take();
    }
}

fn object(content: u8) -> CacheKey {
    CacheKey { hash: ContentHash::new(HashAlgorithm::Sha1, [content; 20]), compression: Compression::Zlib }
}

#[test]
fn unused_objects_are_evicted_without_asking_the_kernel() {
    let setup = setup(&Model::default().file("/a", 1));
    assert_eq!(setup.holder.release(&[object(1), object(9)]), [false, false]);
    assert!(setup.kernel.reported.lock().is_empty());
}

#[test]
fn closed_files_are_released_and_open_ones_kept() {
    let setup = setup(&Model::default().directory("/d").file("/d/closed", 1).file("/d/open", 2));
    let (view, kernel) = (&setup.view, &setup.kernel);
    kernel.learn(view, "/d", "closed");
    let open = kernel.learn(view, "/d", "open");
    kernel.open.lock().push(open.key);
    assert_eq!(view.status().counters.held, 2);
    assert_eq!(setup.holder.release(&[object(1), object(2)]), [false, true]);
    assert_eq!(view.status().counters.held, 1);
    let dir = view.find(b"/d", LastLink::Keep).unwrap().node.key;
    let reported = kernel.reported.lock();
    let name = |name: &[u8]| Change::Name { dir, name: name.into() };
    assert_eq!(reported.len(), 2);
    assert!(reported.contains(&name(b"closed")) && reported.contains(&name(b"open")));
}

#[test]
fn all_names_of_all_files_with_the_content_are_invalidated() {
    let link = || Thing::Hardlink { group: 1, content: 1 };
    let setup = setup(
        &Model::default()
            .directory("/d")
            .with("/d/one", link())
            .with("/d/two", link())
            .file("/d/other", 2)
            .file("/same", 1),
    );
    let (view, kernel) = (&setup.view, &setup.kernel);
    let one = kernel.learn(view, "/d", "one");
    let two = kernel.learn(view, "/d", "two");
    assert_eq!(one, two);
    kernel.learn(view, "/", "same");
    kernel.learn(view, "/d", "other");
    assert_eq!(setup.holder.release(&[object(1)]), [false]);
    assert_eq!(kernel.reported.lock().len(), 3);
    assert_eq!(kernel.known.lock().len(), 1);
}

#[test]
fn a_chunked_file_holds_each_of_its_chunks() {
    let setup = setup(&Model::default().with("/big", Thing::Chunked { chunks: vec![1, 2, 3] }));
    let node = setup.kernel.learn(&setup.view, "/", "big");
    setup.kernel.open.lock().push(node.key);
    assert_eq!(setup.holder.release(&[object(2), object(4)]), [true, false]);
    setup.kernel.open.lock().clear();
    setup.kernel.learn(&setup.view, "/", "big");
    setup.view.release(&node);
    assert_eq!(setup.holder.release(&[object(3)]), [false]);
    assert_eq!(setup.view.status().counters.held, 0);
}

#[test]
fn open_files_of_an_earlier_revision_stay_in_use() {
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
    let setup = setup(&Model::default());
    let root = CacheKey { hash: setup.view.status().root_hash, compression: Compression::Zlib };
    assert_eq!(setup.holder.release(&[root]), [true]);
}

/// Uses are counted, from many threads and for files that share their content.
#[test]
fn equally_many_holds_and_releases_leave_no_file_in_use() {
    let model = (0..20).fold(Model::default(), |model, n| model.file(&format!("/{n}"), n % 3));
    let model = model.with("/big", Thing::Chunked { chunks: vec![7, 8] });
    let setup = setup(&model);
    let view = &setup.view;
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
