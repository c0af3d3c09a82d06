//! Publishes through a session and a service, to a repository that is read from its web server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_gateway::Session;
use esker_publish::{Filter, Publish, PublishError, PublishOptions, Report, TagChange, TagRequest};
use esker_repository::{
    GatewaySession, KeyFolder, NewRepository, RememberedGateway, Repository, RepositoryError,
    head::read_history,
};
use esker_server::Limits;
use esker_testkit::check::check;
use esker_testkit::listing::of_folder;
use esker_testkit::mirror::Mirror;
use tempfile::TempDir;

use crate::client::{address, wish};
use crate::http::Serving;
use crate::repository::{NAME, name, now, open_gateway};

/// A repository with its gateway and web server, and a publisher without keys.
pub(crate) struct Site {
    folder: TempDir,
    url: String,
    web: Mirror,
    _serving: Serving,
}

impl Site {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path().join("keys"), &name());
        NewRepository::new(name()).create(&folder.path().join(NAME), &keys, now()).unwrap();
        let (address, serving) = Serving::start(Arc::new(open_gateway(folder.path())), Limits::default());
        let web = Mirror::serve(folder.path());
        Self { url: format!("http://{address}"), web, _serving: serving, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, files: &[(&str, &str)]) {
        write_all(&self.path("source"), files);
    }

    /// Opens the repository with a new lease of a directory, or without any.
    fn open(&self, directory: Option<&str>) -> Repository {
        let session = directory.map(|directory| {
            let begun = Session::begin(address(&self.url, "one"), wish(&format!("{NAME}{directory}")));
            Arc::new(begun.unwrap()) as _
        });
        self.open_with(session)
    }

    /// Opens the repository with a session.
    pub(crate) fn open_with(&self, session: Option<Arc<dyn GatewaySession>>) -> Repository {
        let gateway = RememberedGateway {
            gateway: self.url.clone(),
            key: PathBuf::new(),
            server: self.web.url(NAME),
            public_keys: vec![self.path(&format!("keys/{NAME}.pub"))],
            authorities: Vec::new(),
        };
        Repository::open_at_gateway(&self.path("state"), &name(), &gateway, session, now()).unwrap()
    }

    pub(crate) fn publish(&self, repository: &Repository, tag: TagRequest) -> Result<Report, PublishError> {
        publish(repository, &self.path("source"), tag)
    }

    /// Asserts that the repository is in order and shows the source.
    fn shows_source(&self) {
        let key = fs::read_to_string(self.path(&format!("keys/{NAME}.pub"))).unwrap();
        let findings = check(&self.path(NAME), NAME, &key);
        findings.assert_clean();
        assert_eq!(of_folder(&self.path("source")), findings.listing());
    }
}

/// Makes a folder with some files.
pub(crate) fn write_all(folder: &Path, files: &[(&str, &str)]) {
    let _ = fs::remove_dir_all(folder);
    for (name, text) in files {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

pub(crate) fn publish(
    repository: &Repository,
    source: &Path,
    tag: TagRequest,
) -> Result<Report, PublishError> {
    let (mut quiet, mut confirmed) = (|_| (), |_| true);
    let options = PublishOptions {
        tag,
        threads: 2,
        stop: Arc::default(),
        profiles: Vec::new(),
        filter: Filter::default(),
        progress: &mut quiet,
        confirm_shrink: &mut confirmed,
    };
    Publish { source: source.to_owned(), target: Vec::new(), options }.run(repository, now())
}

/// The index of contents says that an object is stored, and a collect has deleted it since.
#[test]
fn a_collected_object_is_sent_again() {
    let site = Site::new();
    let numbers = (0..2000_u32).map(|number| format!("{:x}", number.wrapping_mul(2_654_435_761)));
    let large: String = numbers.collect();
    let publish = |files: &[(&str, &str)]| {
        site.write(files);
        site.publish(&site.open(Some("/")), TagRequest::default()).unwrap()
    };
    let first = publish(&[("kept", "kept"), ("large", &large)]);
    assert_eq!((first.revision, first.published, first.objects_stored), (1, true, 2));
    publish(&[("kept", "kept")]);
    let deleted = largest_object(&site.path(NAME));
    fs::remove_file(&deleted).unwrap();
    let third = publish(&[("kept", "kept"), ("large", &large)]);
    assert_eq!((third.revision, third.published), (3, true));
    assert!(deleted.exists());
    site.shows_source();
}

fn largest_object(repository: &Path) -> PathBuf {
    let folders = fs::read_dir(repository.join("data")).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
    files.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// Another publisher changes the same file after this one has begun.
#[test]
fn a_conflict_names_the_path_and_publishes_nothing() {
    let site = Site::new();
    site.write(&[("file", "1")]);
    site.publish(&site.open(Some("/")), TagRequest::default()).unwrap();
    let begun = site.open(Some("/"));
    site.write(&[("file", "theirs")]);
    let keys = KeyFolder::new(site.path("keys"), &name());
    let owner = Repository::open(&*site.path(NAME), &name(), keys, now()).unwrap();
    site.publish(&owner, TagRequest::default()).unwrap();
    site.write(&[("file", "ours, and longer")]);
    let conflict = site.publish(&begun, TagRequest::default()).unwrap_err();
    assert!(matches!(&conflict, PublishError::Conflict { paths, .. } if *paths == ["/file"]), "{conflict}");
    assert_eq!(site.open(None).head().revision(), 2);
}

#[test]
fn tags_of_the_newest_revision_change_without_a_new_one() {
    let site = Site::new();
    site.write(&[("file", "1")]);
    site.publish(&site.open(Some("/")), TagRequest::default()).unwrap();
    let change = |change: TagChange| change.run(&site.open(Some("/")), now(), &AtomicBool::new(false));
    let add = |revision: Option<&str>| TagChange::Add {
        name: "v1".to_owned(),
        revision: revision.map(str::to_owned),
        description: "first".to_owned(),
        force: false,
    };
    let refused = change(add(Some("0"))).unwrap_err();
    assert!(matches!(refused, PublishError::Repository(RepositoryError::NotThroughGateway(_))), "{refused}");
    change(add(None)).unwrap();
    let tagged = |name: &str| {
        let repository = site.open(None);
        let history = read_history(&repository, repository.head().history()).unwrap();
        assert_eq!(repository.head().revision(), 1);
        history.find(name).map(|tag| (tag.revision, tag.description.clone()))
    };
    assert_eq!(tagged("v1"), Some((1, "first".to_owned())));
    // A tag for a publish that changes nothing.
    let tag = TagRequest { name: Some("v2".to_owned()), ..TagRequest::default() };
    let report = site.publish(&site.open(Some("/")), tag).unwrap();
    assert_eq!((report.published, report.tag.as_deref()), (false, Some("v2")));
    change(TagChange::Remove { names: vec!["v1".to_owned()] }).unwrap();
    assert_eq!((tagged("v1"), tagged("v2")), (None, Some((1, String::new()))));
    site.shows_source();
}

/// Without a lease, everything can be read, and nothing changed.
#[test]
fn what_needs_keys_or_a_lease_is_refused() {
    let site = Site::new();
    site.write(&[("file", "1")]);
    let reading = site.open(None);
    let refused = site.publish(&reading, TagRequest::default()).unwrap_err();
    assert!(refused.to_string().contains("only the owner of the repository"), "{refused}");
    let locked = reading.lock_head(&AtomicBool::new(false)).err().unwrap();
    assert!(matches!(locked, RepositoryError::NotThroughGateway(_)), "{locked}");
    assert!(matches!(reading.publisher(), Err(RepositoryError::NotThroughGateway(_))));
    assert!(!reading.is_replica());
}
