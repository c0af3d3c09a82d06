//! Publishers without keys and a real repository: what they build on a copy arrives through leases, packs and commits.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_gateway::{
    Database, Gateway, GatewayError, KeyLimits, OpenTarget, PublishFailure, PublishedRepository, Request,
    Signer, Target, Token,
};
use esker_publish::{Filter, Publish, PublishOptions, TagRequest};
use esker_repository::{KeyFolder, NewRepository, Repository};
use esker_testkit::check::check;
use esker_testkit::listing::of_folder;
use tempfile::TempDir;

use crate::publisher::{Time, acquire, keys, options, pack, sign};

pub(crate) const NAME: &str = "r.test";

/// A gateway of a repository, and the folders of a publisher.
pub(crate) struct Workshop {
    folder: TempDir,
    gateway: Gateway,
    one: Signer,
}

pub(crate) fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    UnixTime(i64::try_from(now.as_secs()).unwrap())
}

pub(crate) fn name() -> RepositoryName {
    RepositoryName::parse(NAME).unwrap()
}

pub(crate) fn open_gateway(folder: &Path) -> Gateway {
    let (root, keys_folder) = (folder.join(NAME), folder.join("keys"));
    let open: OpenTarget = Box::new(move |_| {
        let (root, keys) = (root.clone(), KeyFolder::new(keys_folder.clone(), &name()));
        let open = move || Repository::open(&*root, &name(), keys.clone(), now());
        let opened = PublishedRepository::new(Box::new(open), 1);
        opened
            .map(|opened| Arc::new(opened) as Arc<dyn Target>)
            .map_err(|error| PublishFailure::Failed(Box::new(error)))
    });
    let database = Database::open(&folder.join("db")).unwrap();
    Gateway::new(database, keys(KeyLimits::default()), open, options(folder, &Time::default())).unwrap()
}

impl Workshop {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path().join("keys"), &name());
        NewRepository::new(name()).create(&folder.path().join(NAME), &keys, now()).unwrap();
        let gateway = open_gateway(folder.path());
        let one = gateway.signer(Some(&sign("one", b"x")), b"x").unwrap();
        Self { folder, gateway, one }
    }

    fn restart(self) -> Self {
        let Self { folder, gateway, one } = self;
        drop(gateway);
        let gateway = open_gateway(folder.path());
        Self { folder, gateway, one }
    }

    /// Returns the folder of the repository.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    pub(crate) fn keys_folder(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    pub(crate) fn public_key(&self) -> String {
        fs::read_to_string(KeyFolder::new(self.keys_folder(), &name()).public_key_file()).unwrap()
    }

    fn lease(&self, path: &str) -> Token {
        self.gateway.acquire(&self.one, &acquire(path)).unwrap().0
    }

    /// Builds a folder as a directory on a copy of the storage; returns the root catalog, and the objects that are new.
    pub(crate) fn build(&self, source: &Path, target: &str) -> (ContentHash, Vec<(ObjectName, Vec<u8>)>) {
        let copy = tempfile::tempdir().unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([self.folder.path().join(NAME), copy.path().to_owned()])
            .status();
        assert!(copied.unwrap().success());
        let root = copy.path().join(NAME);
        let keys = KeyFolder::new(self.keys_folder(), &name());
        let repository = Repository::open(&*root, &name(), keys, now()).unwrap();
        let (mut quiet, mut confirmed) = (|_| (), |_| true);
        let options = PublishOptions {
            tag: TagRequest::default(),
            threads: 1,
            stop: Arc::default(),
            profiles: Vec::new(),
            filter: Filter::default(),
            progress: &mut quiet,
            confirm_shrink: &mut confirmed,
        };
        let mut publish = Publish { source: source.to_owned(), target: target.as_bytes().to_vec(), options };
        let staged = publish.stage(&repository, now()).unwrap();
        let here = |name: &ObjectName| self.folder.path().join(NAME).join(name.path());
        let new = staged.stored.iter().filter(|name| !here(name).exists());
        let objects = new.map(|name| (*name, fs::read(root.join(name.path())).unwrap())).collect();
        (staged.base.root, objects)
    }

    fn send(&self, token: &Token, objects: &[(ObjectName, Vec<u8>)]) {
        let (payload, body) = pack(objects);
        self.gateway.submit(&self.one, token, &payload, &mut &*body).unwrap();
    }

    fn commit(&self, token: &Token, root: ContentHash) -> Result<u64, GatewayError> {
        let request = Request { new_root: format!("{root}C"), ..Request::default() };
        self.gateway.commit(&self.one, token, &request).map(|published| published.revision)
    }

    /// Leases a directory, builds it, sends it and commits it.
    pub(crate) fn publish(&self, source: &Path, directory: &str) -> u64 {
        let token = self.lease(&format!("{NAME}{directory}"));
        let (root, objects) = self.build(source, directory.trim_end_matches('/'));
        self.send(&token, &objects);
        self.commit(&token, root).unwrap()
    }

    /// Asserts that the repository is in order and shows a folder.
    fn assert_shows(&self, expected: &Path) {
        let findings = check(&self.root(), NAME, &self.public_key());
        findings.assert_clean();
        assert_eq!(of_folder(expected), findings.listing());
    }
}

pub(crate) fn write(path: PathBuf, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn publishers_without_keys_create_change_and_remove() {
    let workshop = Workshop::new();
    let source = tempfile::tempdir().unwrap();
    let at = |path: &str| source.path().join(path);
    write(at("a/one"), "1");
    write(at("a/nested/.cvmfscatalog"), "");
    write(at("a/nested/two"), "2");
    write(at("b/three"), "3");
    assert_eq!(workshop.publish(source.path(), "/"), 1);
    workshop.assert_shows(source.path());
    // After a restart the same goes on, in one directory.
    let workshop = workshop.restart();
    write(at("a/one"), "changed");
    fs::remove_file(at("a/nested/two")).unwrap();
    assert_eq!(workshop.publish(&at("a"), "/a"), 2);
    workshop.assert_shows(source.path());
}

/// Two publishers build on the same revision: the second one is rebased, and neither undoes the other.
#[test]
fn a_publisher_with_an_old_base_keeps_what_others_published() {
    let workshop = Workshop::new();
    let source = tempfile::tempdir().unwrap();
    let at = |path: &str| source.path().join(path);
    write(at("a/one"), "1");
    write(at("b/two"), "2");
    workshop.publish(source.path(), "/");
    let (first, second) = (workshop.lease("r.test/a"), workshop.lease("r.test/b"));
    write(at("a/one"), "changed");
    let of_first = workshop.build(&at("a"), "/a");
    write(at("b/two"), "changed too");
    let of_second = workshop.build(&at("b"), "/b");
    for (token, (root, objects), revision) in [(first, of_first, 2), (second, of_second, 3)] {
        workshop.send(&token, &objects);
        assert_eq!(workshop.commit(&token, root).unwrap(), revision);
        assert_eq!(workshop.commit(&token, root).unwrap(), revision, "the answer is the same again");
    }
    workshop.assert_shows(source.path());
}

#[test]
fn conflicts_and_missing_objects_publish_nothing() {
    let workshop = Workshop::new();
    let (source, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(source.path().join("a/one"), "1");
    workshop.publish(source.path(), "/");
    write(other.path().join("one"), "of the first");
    let first = workshop.build(other.path(), "/a");
    write(source.path().join("a/one"), "of the second");
    assert_eq!(workshop.publish(&source.path().join("a"), "/a"), 2);
    let token = workshop.lease("r.test/a");
    let error = workshop.commit(&token, first.0).unwrap_err();
    assert!(matches!(error, GatewayError::Publish(PublishFailure::Failed(_))), "{error}");
    workshop.send(&token, &first.1);
    let error = workshop.commit(&token, first.0).unwrap_err();
    assert_eq!(error.to_string(), "merge_error: other publishers changed /a/one");
    workshop.assert_shows(source.path());
}
