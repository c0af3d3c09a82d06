//! Catalogs and objects that are unavailable or damaged.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use esker_format::hash::ContentHash;
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_vfs::{ErrorKind, Reply, Tree, TreeError};
use esker_view::{FAILURES_MAX, LastLink, View, ViewOptions};

use crate::fixtures::read_all;
use crate::gate::{Gate, object_hash};
use crate::model::Model;
use crate::support::Site;

struct Setup {
    site: Site,
    gate: Arc<Gate>,
    view: Arc<View>,
}

fn setup() -> Setup {
    let site = Site::of(FULL);
    let gate = Gate::before(Arc::clone(&site.store));
    let view = View::open(gate.clone(), site.heads(), ViewOptions::default()).unwrap();
    Setup { site, gate, view }
}

impl Setup {
    fn nested(&self) -> ContentHash {
        object_hash(&self.site.repository.contents("v3").catalogs["/nested"])
    }
}

#[test]
fn an_unavailable_nested_catalog_is_an_error_not_an_absent_name() {
    let Setup { gate, view, .. } = &setup();
    let scene_nested = setup().nested();
    gate.fail(scene_nested);
    for _ in 0..2 {
        let error = view.find(b"/nested/f0", LastLink::Keep).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.to_string().contains("/nested"), "{error}");
    }
    assert_eq!(gate.asked(scene_nested), 2, "each call tries again");
    view.find(b"/nested", LastLink::Keep).unwrap();
    view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    gate.open(scene_nested);
    view.find(b"/nested/f0", LastLink::Keep).unwrap();
}

#[test]
fn calls_that_wait_for_one_catalog_share_its_fetch_and_block_no_others() {
    let setup = setup();
    let (view, nested) = (&setup.view, setup.nested());
    setup.gate.close(nested);
    let dir = view.find(b"/nested", LastLink::Keep).unwrap().node;
    let (sender, answers) = sync_channel(20);
    for _ in 0..20 {
        let sender = sender.clone();
        view.lookup(&dir, b"f0", Reply::new(move |answer| sender.send(answer.map(drop)).unwrap()));
    }
    setup.gate.wait_for_waiter(nested);
    view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    assert!(answers.try_recv().is_err(), "no request was answered yet");
    setup.gate.open(nested);
    for _ in 0..20 {
        answers.recv().unwrap().unwrap();
    }
    assert_eq!(setup.gate.asked(nested), 1);
}

#[test]
fn a_damaged_object_fails_its_reads_only() {
    let setup = setup();
    let contents = setup.site.repository.contents("v3");
    let (path, chunks) = contents
        .files
        .iter()
        .map(|(path, file)| (path, &file.chunks))
        .find(|(_, chunks)| chunks.len() > 2)
        .unwrap();
    let (offset, object) = &chunks[1];
    let mut bytes = setup.site.repository.read(object);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    setup.site.repository.write(object, &bytes);
    let file = setup.view.find(path, LastLink::Keep).unwrap().node;
    assert_eq!(setup.view.read_at(&file, 0, 10).unwrap().len(), 10);
    // A read that begins in the good chunk fails too: a short read would mean the end of the file.
    let error = setup.view.read_at(&file, offset - 5, 10).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.object.contains(&*String::from_utf8_lossy(path)), "{error}");
    let behind = chunks[2].0;
    assert_eq!(setup.view.read_at(&file, behind, 10).unwrap().len(), 10);
}

#[test]
fn a_missing_object_is_read_once_it_exists() {
    let setup = setup();
    let contents = setup.site.repository.contents("v3");
    let object = contents.whole("/perm/m0644");
    let bytes = setup.site.repository.read(object);
    std::fs::remove_file(setup.site.repository.path().join(object)).unwrap();
    let found = setup.view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    let error = setup.view.read_at(&found.node, 0, 10).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged);
    setup.site.repository.write(object, &bytes);
    assert_eq!(read_all(&setup.view, &found).len() as u64, found.attr.size);
}

#[test]
fn failures_are_remembered_with_path_cause_and_caller() {
    let setup = setup();
    let found = setup.view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    let error = TreeError::on(ErrorKind::Damaged, "an object").because("the disk ate it");
    for _ in 0..FAILURES_MAX + 3 {
        setup.view.failed(&found.node, &error, Some(42));
    }
    let failures = setup.view.status().failures;
    assert_eq!(failures.len(), FAILURES_MAX);
    let last = failures.last().unwrap();
    assert_eq!((last.object.as_str(), last.caller), ("/perm/m0644", Some(42)));
    assert!(last.cause.contains("the disk ate it"));
}

#[test]
fn a_view_does_not_move_to_an_incomplete_revision() {
    let site = Site::of(FULL);
    let model = |content| Model::default().directory("/d").nest("/d").file("/d/f", content);
    model(1).publish(&site.repository);
    let gate = Gate::before(Arc::clone(&site.store));
    let view = View::open(gate.clone(), site.heads(), ViewOptions::default()).unwrap();
    let before = view.find(b"/d/f", LastLink::Keep).unwrap().node;
    let first = view.status().revision;
    let root = model(2).publish(&site.repository);
    let root = ContentHash::parse(&root).unwrap();
    gate.fail(root);
    assert_eq!(view.refresh().unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(view.status().revision, first);
    assert_eq!(view.find(b"/d/f", LastLink::Keep).unwrap().node, before);
    assert!(!view.status().failures.is_empty());
    gate.open(root);
    assert!(view.refresh().unwrap().changed);
    assert_ne!(view.find(b"/d/f", LastLink::Keep).unwrap().node, before);
}

#[test]
fn an_invalid_catalog_is_damaged() {
    let site = Site::of(FULL);
    let mut head = site.repository.manifest();
    let garbage = b"this is no database".repeat(100);
    let root = site.repository.store(&garbage, "C");
    let revision: u64 = head.get('S').unwrap().parse().unwrap();
    head.set('C', root).set('B', garbage.len()).set('S', revision + 1);
    site.repository.publish(&head.sign(&FULL.keys()));
    let error = site.open(ViewOptions::default()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.to_string().contains("root catalog"), "{error}");
}

/// A directory whose catalog is unknown must not look empty, as if everything had been removed.
#[test]
fn a_mountpoint_without_a_valid_reference_is_damaged_not_empty() {
    let site = Site::of(FULL);
    let root = Draft::new("");
    root.add(&Row::directory(""));
    let unknown = format!("{}-sha256", "5".repeat(40));
    for (path, hash) in [("/unpublished", ""), ("/unknown", &*unknown), ("/zeros", &"0".repeat(40))] {
        root.add(&Row { flags: 3, ..Row::directory(path) });
        root.nest(path, hash, 4096);
    }
    root.add(&Row::directory("/plain"));
    site.publish_root(root);
    let view = site.open(ViewOptions::default()).unwrap();
    assert_eq!(view.names(&view.root().node).unwrap().len(), 4);
    for path in ["/unpublished", "/unknown", "/zeros"] {
        let directory = view.find(path.as_bytes(), LastLink::Keep).unwrap().node;
        for error in [
            view.names(&directory).unwrap_err(),
            view.find(format!("{path}/file").as_bytes(), LastLink::Keep).unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Damaged, "{path}: {error}");
            assert!(error.object.contains(path), "{error}");
        }
    }
    let plain = view.find(b"/plain", LastLink::Keep).unwrap().node;
    assert!(view.names(&plain).unwrap().is_empty());
}
