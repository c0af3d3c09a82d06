//! The reference implementation's repositories, continued.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use esker_format::compress::{Compression, decompress};
use esker_format::name::RepositoryName;
use esker_repository::{Deflate, Encoder, KeyFolder, Repository};
use esker_testkit::check::{Findings, check};
use esker_testkit::fixture::{self, Fixture};

use crate::workshop::{now, publish};

fn judge(fixture: &Fixture, root: &Path) -> Findings {
    check(root, fixture.name(), &fs::read_to_string(fixture.public_key()).unwrap())
}

fn open(fixture: &Fixture, root: &Path) -> Repository {
    let name = RepositoryName::parse(fixture.name()).unwrap();
    Repository::open(root, &name, KeyFolder::new(fixture.folder(), &name), now()).unwrap()
}

#[test]
fn the_checker_finds_no_fault_in_fixtures() {
    for fixture in fixture::ALL {
        let unpacked = fixture.unpack();
        let findings = judge(&fixture, &unpacked.path());
        findings.assert_clean();
    }
}

/// Objects of the reference come out of the stock encoder with the same bytes.
#[test]
fn stock_encoding_equals_that_of_the_reference() {
    let unpacked = fixture::FULL.unpack();
    let mut encoder = Encoder::new(Compression::Zlib, Deflate::Stock).unwrap();
    let mut room = Vec::new();
    let mut compared = 0;
    for folder in fs::read_dir(unpacked.path().join("data")).unwrap() {
        for object in fs::read_dir(folder.unwrap().path()).unwrap() {
            let stored = fs::read(object.unwrap().path()).unwrap();
            let plain = decompress(&stored, Compression::Zlib, None, 1 << 30).unwrap();
            assert!(
                encoder.encode(&plain, &mut room).unwrap() == stored,
                "an object of {} bytes",
                plain.len()
            );
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn each_fixture_accepts_a_new_revision() {
    for fixture in fixture::ALL {
        let unpacked = fixture.unpack();
        let before = judge(&fixture, &unpacked.path());
        let added = tempfile::tempdir().unwrap();
        fs::create_dir(added.path().join("sub")).unwrap();
        fs::write(added.path().join("sub/file"), b"added by Esker").unwrap();
        let report = publish(&open(&fixture, &unpacked.path()), added.path(), "/added/here").unwrap();
        assert!(report.published);
        assert_eq!(report.revision, before.revision + 1);
        let after = judge(&fixture, &unpacked.path());
        after.assert_clean();
        assert_eq!(after.tags["trunk"], before.revision + 1);
        assert_eq!(after.tags["v3"], before.tags["v3"]);
        let mut kept: BTreeMap<_, _> = after.tree.clone();
        kept.retain(|path, _| !path.starts_with(b"/added"));
        assert_eq!(kept.len(), before.tree.len());
        for (path, entry) in &before.tree {
            assert_eq!(&kept[path], entry);
        }
        assert!(after.tree.contains_key(&b"/added/here/sub/file"[..]));
    }
}

/// What Esker did not change keeps its bytes, whole catalogs included.
#[test]
fn unchanged_catalogs_are_reused() {
    let unpacked = fixture::FULL.unpack();
    let before: Vec<PathBuf> = catalogs(&unpacked.path());
    let added = tempfile::tempdir().unwrap();
    let report = publish(&open(&fixture::FULL, &unpacked.path()), added.path(), "/added").unwrap();
    assert_eq!(report.catalogs_written, 1);
    let after = catalogs(&unpacked.path());
    assert_eq!(after.len(), before.len() + 1);
}

fn catalogs(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in fs::read_dir(root.join("data")).unwrap() {
        let files = fs::read_dir(folder.unwrap().path()).unwrap().map(|file| file.unwrap().path());
        found.extend(files.filter(|file| file.to_string_lossy().ends_with('C')));
    }
    found
}
