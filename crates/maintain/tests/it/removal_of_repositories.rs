//! A repository is removed from the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicBool;

use esker_format::name::RepositoryName;
use esker_maintain::{Removal, RemoveError};
use esker_repository::{KeyFolder, RepositoryError};

use crate::workshop::{NAME, Workshop, shared_keys};

fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

/// Copies the shared keys, so that they can be removed.
fn own_keys(workshop: &Workshop) -> KeyFolder {
    let folder = workshop.folder.path().join("own-keys");
    fs::create_dir(&folder).unwrap();
    for key in fs::read_dir(shared_keys().join("keys")).unwrap() {
        let key = key.unwrap();
        fs::copy(key.path(), folder.join(key.file_name())).unwrap();
    }
    fs::write(folder.join("other.test.key"), "of another repository").unwrap();
    for kept in ["old.key", "old.crt"] {
        fs::write(folder.join(format!("{NAME}.{kept}")), "from before a rotation").unwrap();
    }
    KeyFolder::new(folder, &name())
}

#[test]
fn a_removed_repository_leaves_nothing_behind() {
    let workshop = Workshop::new();
    let keys = own_keys(&workshop);
    let plan = Removal::plan(&workshop.root(), &name(), Some(&keys), true).unwrap();
    assert_eq!((plan.revision, plan.keys.len(), plan.foreign.len()), (Some(0), 6, 0));
    assert!(workshop.root().join(".cvmfspublished").exists(), "a plan changes nothing");
    plan.run(&AtomicBool::new(false)).unwrap();
    assert!(!workshop.root().exists());
    let left: Vec<_> = fs::read_dir(workshop.folder.path().join("own-keys")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let again = Removal::plan(&workshop.root(), &name(), None, true).unwrap_err();
    assert!(matches!(again, RemoveError::Repository(RepositoryError::NoRepository(_))), "{again}");
}

#[test]
fn links_are_removed_and_not_followed() {
    let workshop = Workshop::new();
    let outside = workshop.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    fs::remove_dir_all(workshop.root().join("data/aa")).unwrap();
    symlink(&outside, workshop.root().join("data/aa")).unwrap();
    symlink(&outside, workshop.root().join("stats")).unwrap();
    fs::write(workshop.root().join("notes.txt"), "of the administrator").unwrap();
    let plan = Removal::plan(&workshop.root(), &name(), None, true).unwrap();
    assert_eq!(plan.foreign, [workshop.root().join("notes.txt")]);
    plan.run(&AtomicBool::new(false)).unwrap();
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
    let left: Vec<_> = fs::read_dir(workshop.root()).unwrap().map(|left| left.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    assert!(workshop.keys().public_key_file().exists());

    let workshop = Workshop::new();
    let link = workshop.folder.path().join("link.test");
    symlink(workshop.root(), &link).unwrap();
    let refused = Removal::plan(&link, &name(), None, true).unwrap_err();
    assert!(matches!(&refused, RemoveError::NotRemoved { .. }), "{refused}");
}

#[test]
fn an_interrupted_removal_is_repeated() {
    let workshop = Workshop::new();
    let plan = Removal::plan(&workshop.root(), &name(), None, true).unwrap();
    let refused = plan.run(&AtomicBool::new(true)).unwrap_err();
    assert!(matches!(refused, RemoveError::Repository(RepositoryError::Interrupted)), "{refused}");
    fs::remove_file(workshop.root().join(".cvmfspublished")).unwrap();
    fs::remove_dir_all(workshop.root().join("data")).unwrap();
    let again = Removal::plan(&workshop.root(), &name(), None, true).unwrap();
    assert_eq!(again.revision, None);
    again.run(&AtomicBool::new(false)).unwrap();
    assert!(!workshop.root().exists());
}

#[test]
fn another_repository_is_not_removed() {
    let workshop = Workshop::new();
    let other = RepositoryName::parse("other.test").unwrap();
    let refused = Removal::plan(&workshop.root(), &other, None, true).unwrap_err();
    assert!(matches!(&refused, RemoveError::NotRemoved { .. }), "{refused}");
    let plan = Removal::plan(&workshop.root(), &name(), None, true).unwrap();
    let _publishing = esker_store::LocalSink::open(workshop.root()).lock().unwrap();
    let refused = plan.run(&AtomicBool::new(false)).unwrap_err();
    assert!(matches!(refused, RemoveError::Repository(RepositoryError::Locked { .. })), "{refused}");
    assert!(workshop.root().join(".cvmfspublished").exists());
}
