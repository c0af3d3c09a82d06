//! A repository and a source folder to try things with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_publish::{Progress, Publish, PublishError, PublishOptions, Report, TagRequest};
use esker_repository::{Disks, KeyFolder, NewRepository, Repository, Revisions};
use esker_store::RealDisk;
use esker_testkit::check::{Findings, check};
use esker_testkit::disk::FaultDisk;
use esker_testkit::listing::{Entry, of_folder};

pub(crate) const NAME: &str = "workshop.test";

pub(crate) struct Workshop {
    pub(crate) folder: tempfile::TempDir,
    /// Where the repository is, if not in the same folder.
    storage: Option<PathBuf>,
}

pub(crate) fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    UnixTime(i64::try_from(now.as_secs()).unwrap())
}

/// Keys that all tests share, since making RSA keys takes its time.
pub(crate) fn shared_keys() -> &'static Path {
    static KEYS: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let made = KEYS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
        let keys = KeyFolder::new(folder.path().join("keys"), &new.name);
        new.create(&folder.path().join(NAME), &keys, now()).unwrap();
        folder
    });
    made.path()
}

impl Workshop {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut NewRepository)) -> Self {
        let workshop = Self { folder: tempfile::tempdir().unwrap(), storage: None };
        std::fs::create_dir(workshop.source()).unwrap();
        let mut new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
        change(&mut new);
        new.create(&workshop.root(), &workshop.keys(), now()).unwrap();
        workshop
    }

    /// The same with its repository in another folder.
    pub(crate) fn moved(mut self, folder: &Path) -> Self {
        let copied = std::process::Command::new("cp").arg("-a").arg(self.root()).arg(folder).status();
        assert!(copied.unwrap().success());
        self.storage = Some(folder.to_owned());
        self
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.storage.as_deref().unwrap_or(self.folder.path()).join(NAME)
    }

    pub(crate) fn keys(&self) -> KeyFolder {
        KeyFolder::new(shared_keys().join("keys"), &RepositoryName::parse(NAME).unwrap())
    }

    pub(crate) fn open(&self) -> Repository {
        let name = RepositoryName::parse(NAME).unwrap();
        Repository::open(&self.root(), &name, self.keys(), now()).unwrap()
    }

    pub(crate) fn publish(&self) -> Report {
        self.try_publish(&self.source(), "").unwrap()
    }

    pub(crate) fn try_publish(&self, source: &Path, target: &str) -> Result<Report, PublishError> {
        publish(&self.open(), source, target)
    }

    pub(crate) fn check(&self) -> Findings {
        let public = std::fs::read_to_string(self.keys().public_key_file()).unwrap();
        check(&self.root(), NAME, &public)
    }

    /// The object of a file with this content.
    pub(crate) fn object_of(&self, content: &[u8]) -> PathBuf {
        let is_folder = |path: &PathBuf| path.file_name().unwrap().len() == 2;
        let folders = paths_in(&self.root().join("data")).into_iter().filter(is_folder);
        let is_wanted = |path: &PathBuf| {
            // Whatever is longer than a hash is no file, but a catalog or the like.
            path.file_name().unwrap().len() == 38
                && esker_testkit::object::inflate(&std::fs::read(path).unwrap()) == content
        };
        folders.flat_map(|folder| paths_in(&folder)).find(is_wanted).unwrap()
    }

    /// Asserts that the repository is in order and shows exactly the source.
    pub(crate) fn assert_equal(&self) -> Findings {
        let findings = self.check();
        findings.assert_clean();
        assert_same_trees(&of_folder(&self.source()), &findings.listing());
        findings
    }
}

fn paths_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|found| found.unwrap().path()).collect()
}

/// A folder with these files. All have the same time, so that files with the same content are the same.
pub(crate) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(path, content)| write(&folder.path().join(path), content));
    folder
}

/// Writes a file with that time, and the folders above it.
pub(crate) fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

pub(crate) fn publish(repository: &Repository, source: &Path, target: &str) -> Result<Report, PublishError> {
    publish_at(now(), repository, source, target)
}

/// The same with a clock that shows this time.
pub(crate) fn publish_at(
    now: UnixTime,
    repository: &Repository,
    source: &Path,
    target: &str,
) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let options = options(&mut progress);
    let mut publish = Publish { source: source.to_owned(), target: target.as_bytes().to_vec(), options };
    publish.run(repository, now)
}

pub(crate) fn options(progress: &mut dyn FnMut(Progress)) -> PublishOptions<'_> {
    PublishOptions {
        tag: TagRequest::default(),
        threads: 3,
        stop: Arc::new(AtomicBool::new(false)),
        profiles: Vec::new(),
        filter: Default::default(),
        progress,
        confirm_shrink: Box::leak(Box::new(|_| true)),
    }
}

pub(crate) fn assert_same_trees(expected: &[Entry], found: &[Entry]) {
    let paths = |entries: &[Entry]| -> Vec<String> {
        entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
    };
    assert_eq!(paths(expected), paths(found));
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected, found, "{}", String::from_utf8_lossy(&expected.path));
    }
}

/// All files below `data`, by path.
pub(crate) fn objects(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in fs::read_dir(root.join("data")).unwrap().map(|folder| folder.unwrap().path()) {
        if folder.file_name().unwrap().len() == 2 {
            for file in fs::read_dir(&folder).unwrap() {
                let file = file.unwrap().path();
                found.insert(file.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// Returns the revisions of the repository.
pub(crate) fn revisions(workshop: &Workshop) -> Revisions {
    let name = RepositoryName::parse(NAME).unwrap();
    Revisions::open(&workshop.root(), &name, &workshop.keys().public().unwrap(), now()).unwrap()
}

/// The disks of a publisher, all of whose operations are seen by one.
pub(crate) fn disks(disk: &FaultDisk) -> Disks {
    Disks { served: Arc::new(disk.making(RealDisk::SERVED)), private: Arc::new(disk.clone()) }
}
