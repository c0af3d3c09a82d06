//! Removes a repository: its storage, and its keys on this machine.
//!
//! The head goes first, so that clients see a repository that is gone rather than one that is damaged; the state folder
//! goes last, so that an interrupted removal is recognised and can be repeated.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_format::whitelist;
use esker_repository::{KeyFolder, RepositoryError, Storage, signed::SMALL_FILE_MAX, state};
use esker_store::{Disk as _, RealDisk};
use serde::Serialize;

/// Reasons why a repository was not removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A folder is not removed.
    #[error("`{}` is not removed: {reason}", folder.display())]
    NotRemoved {
        /// The folder.
        folder: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
}

/// Files and folders that a removal deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// Name of the repository.
    pub repository: String,
    /// Folder of its storage, or of the publisher's state if that is in object storage.
    pub storage: PathBuf,
    /// Address of the object storage whose files go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<String>,
    /// Published revision, if its head can be read.
    pub revision: Option<u64>,
    /// Entries of the storage folder that go, in the order of their removal.
    pub entries: Vec<PathBuf>,
    /// Entries that stay, since no repository has them.
    pub foreign: Vec<PathBuf>,
    /// Key files that go.
    pub keys: Vec<PathBuf>,
}

/// Entries of a storage folder that belong to a repository, besides those whose name starts with `.cvmfs`.
const ENTRIES: [&str; 2] = ["data", "stats"];

impl Removal {
    /// Plans the removal of storage, keys or both; changes nothing.
    pub fn plan(
        root: &Path,
        name: &RepositoryName,
        keys: Option<&KeyFolder>,
        with_storage: bool,
    ) -> Result<Self, RemoveError> {
        let revision = check(root, name)?;
        let (mut entries, mut foreign) = (Vec::new(), Vec::new());
        let opened = Storage::open(root)?;
        let objects = (with_storage && !opened.is_folder()).then(|| opened.describe());
        if with_storage {
            let mut names = RealDisk::SERVED.list(root).map_err(RepositoryError::file("listing", root))?;
            names.sort();
            let last = state::folder(root);
            let is_ours = |name: &str| name.starts_with(".cvmfs") || ENTRIES.contains(&name);
            let first = [manifest::PATH, whitelist::PATH].map(|path| root.join(path));
            entries.extend(first.iter().filter(|path| path.symlink_metadata().is_ok()).cloned());
            for name in names {
                let path = root.join(&name);
                if first.contains(&path) || path == last {
                    continue;
                }
                let ours = name.to_str().is_some_and(is_ours);
                if ours { entries.push(path) } else { foreign.push(path) }
            }
            entries.push(last);
        }
        let keys = keys.map(KeyFolder::inventory).unwrap_or_default();
        let keys = keys.into_iter().filter(|key| key.present).map(|key| key.path).collect();
        let (repository, storage) = (name.to_string(), root.to_owned());
        Ok(Self { repository, storage, objects, revision, entries, foreign, keys })
    }

    /// Removes what was planned. Links are removed, and never followed.
    pub fn run(&self, stop: &AtomicBool) -> Result<(), RemoveError> {
        let storage = Storage::open(&self.storage)?;
        // Without a data folder no publisher can be at work: a removal was interrupted.
        let is_in_use = !storage.is_folder() || self.storage.join("data").is_dir();
        let lock = if self.entries.is_empty() || !is_in_use { None } else { storage.lock()? };
        if self.objects.is_some() {
            // Publishers that are at work can't replace a head that is gone.
            [manifest::PATH, whitelist::PATH].iter().try_for_each(|path| storage.sink().remove_root(path))?;
            storage.sink().remove_all()?;
        }
        if !self.entries.is_empty() {
            state::make(&storage)?;
        }
        for path in &self.entries {
            if stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted.into());
            }
            remove(path).map_err(RepositoryError::file("removing", path))?;
        }
        drop(lock);
        for path in &self.keys {
            remove(path).map_err(RepositoryError::file("removing", path))?;
        }
        if !self.entries.is_empty() && self.foreign.is_empty() {
            match fs::remove_dir(&self.storage) {
                // A folder that holds other things, or that is a mount point, stays.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => {}
            }
        }
        Ok(())
    }
}

/// Removes a file, a link, or a folder with its content; a missing one is no error.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Checks that a folder is the repository of this name, and returns its revision.
fn check(root: &Path, name: &RepositoryName) -> Result<Option<u64>, RemoveError> {
    let refused =
        |reason: &str| RemoveError::NotRemoved { folder: root.to_owned(), reason: reason.to_owned() };
    let none = || RepositoryError::NoRepository(root.display().to_string()).into();
    let facts = fs::symlink_metadata(root).map_err(|_| none())?;
    if facts.is_symlink() {
        return Err(refused("it is a link, which a removal does not follow"));
    }
    match Storage::open(root)?.sink().read(manifest::PATH, SMALL_FILE_MAX)? {
        Some(bytes) => {
            let head = Manifest::parse(&bytes).ok();
            let claimed = head.as_ref().and_then(|head| head.name.clone()).unwrap_or_default();
            if !claimed.is_empty() && claimed != name.as_str() {
                return Err(refused(&format!("it is the repository `{claimed}`")));
            }
            Ok(head.map(|head| head.revision))
        }
        // A removal was interrupted.
        None if state::folder(root).is_dir() => Ok(None),
        None => Err(none()),
    }
}
