//! The virtual directory `/.cvmfs/snapshots`.

use std::fs;
use std::sync::atomic::AtomicBool;

use esker_format::catalog::{Catalog, Flags, PathKey};
use esker_format::object::{ObjectKind, ObjectName};
use esker_publish::{Rollback, TagChange};
use esker_testkit::object::inflate;

use crate::workshop::{Workshop, now, revisions};

fn workshop(virtual_snapshots: bool) -> Workshop {
    Workshop::with(|new| {
        new.settings.automatic_tags = false;
        new.settings.virtual_snapshots = virtual_snapshots;
    })
}

fn catalog(workshop: &Workshop, name: ObjectName) -> Catalog<Vec<u8>> {
    Catalog::open(inflate(&fs::read(workshop.root().join(name.path())).unwrap())).unwrap()
}

/// The snapshots that are shown: name of the tag and hash of the root catalog.
fn shown(workshop: &Workshop) -> Option<Vec<(String, String)>> {
    let root = catalog(workshop, workshop.open().head().root_catalog());
    let nested = root.nested_at(b"/.cvmfs").unwrap()?;
    let hidden = root.find(PathKey::of(b"/.cvmfs")).unwrap().unwrap();
    assert!(hidden.flags().has(Flags::HIDDEN | Flags::NESTED_MOUNTPOINT));
    assert_eq!((hidden.mode(), hidden.size()), (0o040_555, 97));
    let nested = catalog(workshop, ObjectName::new(nested.hash.unwrap(), ObjectKind::Catalog));
    let top = nested.find(PathKey::of(b"/.cvmfs")).unwrap().unwrap();
    assert!(top.flags().has(Flags::HIDDEN | Flags::NESTED_ROOT));
    let marker = nested.find(PathKey::of(b"/.cvmfs/.cvmfscatalog")).unwrap().unwrap();
    assert_eq!(marker.mode(), 0o100_444);
    let mut found = Vec::new();
    for bound in nested.nested().unwrap() {
        assert!(bound.bind && bound.size.is_some());
        let row = nested.find(PathKey::of(&bound.path)).unwrap().unwrap();
        assert!(row.flags().has(Flags::BIND_MOUNTPOINT | Flags::DIRECTORY));
        let name = String::from_utf8_lossy(row.name()).into_owned();
        assert_eq!(bound.path, format!("/.cvmfs/snapshots/{name}").into_bytes());
        found.push((name, bound.hash.unwrap().to_string()));
    }
    let rows = nested.children(PathKey::of(b"/.cvmfs/snapshots")).unwrap().count();
    assert_eq!(rows, found.len(), "each directory shows a revision");
    found.sort();
    Some(found)
}

fn change(workshop: &Workshop, change: &TagChange) -> Option<u64> {
    change.run(&workshop.open(), now(), &AtomicBool::new(false)).unwrap().snapshots
}

fn add(workshop: &Workshop, name: &str, revision: Option<&str>) -> Option<u64> {
    let revision = revision.map(str::to_owned);
    let (name, description) = (name.to_owned(), String::new());
    change(workshop, &TagChange::Add { name, revision, description, force: false })
}

#[test]
fn snapshots_follow_the_tags() {
    let workshop = workshop(true);
    fs::write(workshop.source().join("file"), "1").unwrap();
    let first = workshop.publish();
    assert_eq!(first.revision, 2, "the second revision has the directory");
    assert_eq!(shown(&workshop), Some(Vec::new()), "reserved tags are not shown");
    assert_eq!(add(&workshop, "v1", Some("1")), Some(3));
    let root = |number: &str| revisions(&workshop).find(number).unwrap().root.to_string();
    assert_eq!(shown(&workshop).unwrap(), [("v1".to_owned(), root("1"))]);
    assert_eq!(add(&workshop, "v3", None), Some(4));
    fs::write(workshop.source().join("file"), "2").unwrap();
    let second = workshop.publish();
    assert_eq!(second.revision, 5, "no tag changed, so the directory stays as it is");
    assert_eq!(shown(&workshop).unwrap(), [("v1".to_owned(), root("1")), ("v3".to_owned(), root("3"))]);
    workshop.check().assert_clean();
    let moved = TagChange::Move { name: "v1".to_owned(), revision: None, description: String::new() };
    assert_eq!(change(&workshop, &moved), Some(6));
    assert_eq!(shown(&workshop).unwrap()[0], ("v1".to_owned(), root("5")));
    assert_eq!(change(&workshop, &TagChange::Remove { names: vec!["v3".to_owned()] }), Some(7));
    assert_eq!(shown(&workshop).unwrap().len(), 1);
    workshop.check().assert_clean();
}

#[test]
fn an_undo_takes_back_the_publish_and_not_the_snapshots() {
    let workshop = workshop(true);
    fs::write(workshop.source().join("file"), "1").unwrap();
    workshop.publish();
    add(&workshop, "v1", None);
    let before = workshop.check().listing();
    fs::write(workshop.source().join("file"), "2").unwrap();
    workshop.publish();
    add(&workshop, "v2", None);
    let report = Rollback::default().run(&workshop.open(), now(), &AtomicBool::new(false)).unwrap();
    assert_eq!(report.tags_removed, ["v2"]);
    let findings = workshop.check();
    findings.assert_clean();
    crate::workshop::assert_same_trees(&before, &findings.listing());
    let names: Vec<_> = shown(&workshop).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["v1"]);
}

#[test]
fn snapshots_are_removed_when_they_are_switched_off() {
    let workshop = workshop(true);
    fs::write(workshop.source().join("file"), "1").unwrap();
    workshop.publish();
    add(&workshop, "v1", None);
    let mut repository = workshop.open();
    repository.settings_mut().virtual_snapshots = false;
    fs::write(workshop.source().join("file"), "2").unwrap();
    crate::workshop::publish(&repository, &workshop.source(), "").unwrap();
    drop(repository);
    assert_eq!(shown(&workshop), None);
    workshop.assert_equal();
}

#[test]
fn snapshots_of_another_program_are_kept_up_to_date() {
    let workshop = workshop(true);
    fs::write(workshop.source().join("file"), "1").unwrap();
    workshop.publish();
    fs::remove_file(workshop.root().join(".esker/settings.json")).unwrap();
    add(&workshop, "v1", None);
    assert_eq!(shown(&workshop).unwrap().len(), 1);
    let plain = self::workshop(false);
    fs::remove_file(plain.root().join(".esker/settings.json")).unwrap();
    fs::write(plain.source().join("file"), "1").unwrap();
    assert_eq!(plain.publish().revision, 1);
    assert_eq!(add(&plain, "v1", None), None);
    assert_eq!(shown(&plain), None);
}
