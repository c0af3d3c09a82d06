//! A repository and a source folder to try things with.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_admin::{
    AdminError, How, KeyFolder, NewRepository, Progress, Publish, Report, Repository, TagRequest,
};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_testkit::check::{Findings, check};
use esker_testkit::listing::Entry;
use esker_testkit::object::sha256;

pub(crate) const NAME: &str = "workshop.test";

pub(crate) struct Workshop {
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    UnixTime(i64::try_from(now.as_secs()).unwrap())
}

/// Keys that all tests share, since making RSA keys takes its time.
fn shared_keys() -> &'static Path {
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
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(workshop.source()).unwrap();
        let mut new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
        change(&mut new);
        new.create(&workshop.root(), &workshop.keys(), now()).unwrap();
        workshop
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join(NAME)
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

    pub(crate) fn try_publish(&self, source: &Path, target: &str) -> Result<Report, AdminError> {
        publish(&self.open(), source, target)
    }

    pub(crate) fn check(&self) -> Findings {
        let public = std::fs::read_to_string(self.keys().public_key_file()).unwrap();
        check(&self.root(), NAME, &public)
    }

    /// Asserts that the repository is in order and shows exactly the source.
    pub(crate) fn assert_equal(&self) -> Findings {
        let findings = self.check();
        findings.assert_clean();
        assert_same_trees(&listing(&self.source()), &findings.listing());
        findings
    }
}

pub(crate) fn publish(repository: &Repository, source: &Path, target: &str) -> Result<Report, AdminError> {
    let mut progress = |_| ();
    let how = how(&mut progress);
    let mut publish = Publish { source: source.to_owned(), target: target.as_bytes().to_vec(), how };
    publish.run(repository, now())
}

pub(crate) fn how(progress: &mut dyn FnMut(Progress)) -> How<'_> {
    How { tag: TagRequest::default(), threads: 3, stop: Arc::new(AtomicBool::new(false)), progress }
}

/// What a folder shows, read by descriptors so that no path is too long.
pub(crate) fn listing(folder: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut waiting = vec![(folder.to_owned(), b"/".to_vec())];
    while let Some((place, path)) = waiting.pop() {
        found.push(entry(&place, &path));
        if !found.last().is_some_and(Entry::is_dir) {
            continue;
        }
        for child in fs::read_dir(&place).unwrap() {
            let name = child.unwrap().file_name();
            let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
            waiting.push((place.join(&name), [&path, separator, name.as_bytes()].concat()));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn entry(place: &Path, path: &[u8]) -> Entry {
    let meta = fs::symlink_metadata(place).unwrap();
    let kind = meta.file_type();
    let is_device = kind.is_char_device() || kind.is_block_device();
    Entry {
        path: path.to_vec(),
        mode: meta.mode(),
        mtime_ns: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: (!kind.is_dir()).then_some(meta.size()),
        nlink: (!kind.is_dir()).then_some(meta.nlink()),
        rdev: is_device.then_some(meta.rdev()),
        target: kind.is_symlink().then(|| fs::read_link(place).unwrap().into_os_string().into_vec()),
        sha256: kind.is_file().then(|| sha256(&fs::read(place).unwrap())),
        xattrs: xattrs(place),
    }
}

fn xattrs(place: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(place, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let len = rustix::fs::lgetxattr(place, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
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
