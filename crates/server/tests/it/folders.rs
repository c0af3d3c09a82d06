use std::path::PathBuf;

use esker_server::{Repositories, RootError};
use esker_testkit::fixture::{FULL, RMD, SHAKE};

use crate::client::Running;

#[test]
fn a_folder_is_a_repository_or_contains_some() {
    let (full, rmd) = (FULL.unpack(), RMD.unpack());
    let server = Running::of(&[full.path(), rmd.document_root().to_owned()]);
    for repository in [&full, &rmd] {
        let path = format!("/cvmfs/{}/.cvmfspublished", repository.fixture().name());
        assert_eq!(server.get(&path).body, repository.read(".cvmfspublished"));
    }
    // One that comes later is served too.
    let late = SHAKE.unpack();
    let path = "/cvmfs/shake.test/.cvmfspublished";
    assert_eq!(server.get(path).status, 404);
    std::fs::rename(late.path(), rmd.document_root().join("shake.test")).expect("on the same disk");
    assert_eq!(server.get(path).status, 200);
}

/// As a replica's folder is before the first replication.
#[test]
fn a_repository_that_is_not_published_yet_is_served_once_it_is() {
    let full = FULL.unpack();
    let manifest = full.read(".cvmfspublished");
    std::fs::remove_file(full.path().join(".cvmfspublished")).expect("a file");
    let server = Running::of(&[full.path()]);
    let path = "/cvmfs/full.test/.cvmfspublished";
    assert_eq!(server.get(path).status, 404);
    full.write(".cvmfspublished", &manifest);
    assert_eq!(server.get(path).body, manifest);
}

#[test]
fn a_folder_that_can_not_be_served_is_refused_with_a_reason() {
    let full = FULL.unpack();
    let twice = Repositories::open(&[full.path(), full.document_root().to_owned()]).expect_err("twice");
    assert!(matches!(twice, RootError::Twice { .. }), "{twice}");
    let absent = Repositories::open(&[PathBuf::from("absent")]).expect_err("absent");
    assert!(matches!(absent, RootError::Unreadable { .. }), "{absent}");
    let file = Repositories::open(&[full.path().join(".cvmfswhitelist")]).expect_err("a file");
    assert!(matches!(file, RootError::Unreadable { .. }), "{file}");
    full.write(".cvmfspublished", b"nonsense");
    let nameless = Repositories::open(&[full.path()]).expect_err("nonsense");
    assert!(matches!(nameless, RootError::Nameless { .. }), "{nameless}");
}
