//! A gateway that compares no revisions, as that of the reference: a publisher tells what was overwritten.

use std::path::PathBuf;
use std::sync::Arc;

use esker_format::object::{ObjectKind, ObjectName};
use esker_publish::{PublishError, TagRequest};
use esker_repository::{BuiltRevision, GatewayCommit, GatewayFailure, GatewaySession, KeyFolder, Repository};
use esker_store::{LocalSink, Put, Sink as _, StoreError};
use parking_lot::Mutex;

use crate::publishing::{Site, publish, write_all};
use crate::repository::{NAME, name, now};

type Files = &'static [(&'static str, &'static str)];

/// A gateway whose storage is a folder. Each commit publishes folders, the last of which has the submitted changes.
struct Blind {
    sink: LocalSink,
    root: PathBuf,
    keys: PathBuf,
    source: PathBuf,
    folders: &'static [Files],
    /// True if the answer to a commit is lost.
    is_mute: bool,
    /// What another publisher publishes when the first catalog is sent.
    at_catalog: Mutex<Option<Files>>,
}

impl Blind {
    fn of(site: &Site, folders: &'static [Files]) -> Self {
        let root = site.path(NAME);
        let (sink, source) = (LocalSink::open(&root), site.path("merged"));
        Self {
            sink,
            root,
            keys: site.path("keys"),
            source,
            folders,
            is_mute: false,
            at_catalog: Mutex::default(),
        }
    }

    fn publish(&self, files: Files) -> u64 {
        write_all(&self.source, files);
        let keys = KeyFolder::new(self.keys.clone(), &name());
        let owner = Repository::open(&*self.root, &name(), keys, now()).unwrap();
        publish(&owner, &self.source, TagRequest::default()).unwrap().revision
    }
}

impl GatewaySession for Blind {
    fn describe(&self) -> String {
        "a gateway".to_owned()
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        let others = if name.kind == ObjectKind::Catalog { self.at_catalog.lock().take() } else { None };
        if let Some(files) = others {
            self.publish(files);
        }
        self.sink.put(name, stored)
    }

    fn has(&self, _name: &ObjectName) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.sink.flush()
    }

    fn compares_revisions(&self) -> bool {
        false
    }

    fn commit(&self, _built: &BuiltRevision<'_>) -> Result<GatewayCommit, GatewayFailure> {
        let published = self.folders.iter().map(|files| self.publish(files)).last();
        let revision = published.filter(|_| !self.is_mute);
        Ok(GatewayCommit { revision, left_out: Vec::new() })
    }
}

const FIRST: Files = &[("a/.cvmfscatalog", ""), ("a/one", "1"), ("a/two", "1"), ("b", "1")];
const OURS: Files = &[("a/.cvmfscatalog", ""), ("a/one", "ours"), ("a/two", "1"), ("b", "1")];
const THEIRS: Files = &[("a/.cvmfscatalog", ""), ("a/one", "theirs"), ("a/two", "1"), ("b", "1")];

/// Publishes a change of `a/one` through a gateway that publishes these folders.
fn published(folders: &'static [Files], is_mute: bool) -> Result<esker_publish::Report, PublishError> {
    let site = Site::new();
    Blind::of(&site, &[]).publish(FIRST);
    let gateway = Blind { is_mute, ..Blind::of(&site, folders) };
    let repository = site.open_with(Some(Arc::new(gateway)));
    site.write(OURS);
    site.publish(&repository, TagRequest::default())
}

/// Asserts that a publish failed because these paths of revision 2 were overwritten.
#[track_caller]
fn overwrote(folders: &'static [Files], expected: &[&str]) {
    match published(folders, false) {
        Err(PublishError::Overwrote { paths, count, revision: 3, before: 2 }) => {
            assert_eq!(paths, expected);
            assert_eq!(count, expected.len() as u64);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_overwritten_change_of_another_publisher_is_an_error() {
    overwrote(&[THEIRS, OURS], &["/a/one"]);
}

/// The reference takes over nested catalogs as a whole.
#[test]
fn a_path_that_is_lost_with_its_catalog_is_an_error() {
    const THEIRS: Files = &[("a/.cvmfscatalog", ""), ("a/one", "1"), ("a/two", "theirs"), ("b", "theirs")];
    const MERGED: Files = &[("a/.cvmfscatalog", ""), ("a/one", "ours"), ("a/two", "1"), ("b", "theirs")];
    overwrote(&[THEIRS, MERGED], &["/a/two"]);
}

#[test]
fn changes_of_other_paths_and_the_same_changes_are_none() {
    const THEIRS: Files = &[("a/.cvmfscatalog", ""), ("a/one", "ours"), ("a/two", "1"), ("b", "theirs")];
    let report = published(&[OURS], false).unwrap();
    assert_eq!((report.revision, report.warnings), (2, Vec::new()));
    const MERGED: Files =
        &[("a/.cvmfscatalog", ""), ("a/one", "ours"), ("a/two", "1"), ("b", "theirs"), ("c", "1")];
    let report = published(&[THEIRS, MERGED], false).unwrap();
    assert_eq!((report.revision, report.warnings), (3, Vec::new()));
}

/// The reference leaves out what it doesn't know.
#[test]
fn what_the_gateway_leaves_out_of_a_change_is_named() {
    let warned = published(&[FIRST], false).unwrap().warnings;
    assert!(warned.iter().any(|text| text.ends_with("/a/one")), "{warned:?}");
    const MORE: Files = &[("a/.cvmfscatalog", ""), ("a/one", "1"), ("a/two", "1"), ("b", "theirs")];
    let warned = published(&[MORE, MORE], false).unwrap().warnings;
    assert!(warned.iter().any(|text| text.ends_with("/a/one")), "{warned:?}");
}

#[test]
fn a_lost_answer_is_no_reason_to_be_silent_about_others() {
    const THEIRS: Files = &[("b", "theirs")];
    let warned = published(&[THEIRS, OURS], true).unwrap().warnings;
    assert!(warned.iter().any(|text| text.contains("can't be found out")), "{warned:?}");
    assert!(published(&[OURS], true).unwrap().warnings.is_empty());
}

/// A conflict that shows before the commit publishes nothing.
#[test]
fn a_head_that_moves_while_catalogs_are_sent_is_compared_again() {
    let site = Site::new();
    Blind::of(&site, &[]).publish(FIRST);
    let gateway = Blind { at_catalog: Mutex::new(Some(THEIRS)), ..Blind::of(&site, &[OURS]) };
    let repository = site.open_with(Some(Arc::new(gateway)));
    site.write(OURS);
    let refused = site.publish(&repository, TagRequest::default()).unwrap_err();
    let is_named = |paths: &[String]| paths.iter().any(|path| path == "/a/one");
    assert!(matches!(&refused, PublishError::Conflict { paths, .. } if is_named(paths)), "{refused}");
    assert_eq!(site.open_with(None).head().revision(), 2);
}
