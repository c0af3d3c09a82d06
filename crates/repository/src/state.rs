//! The folder of the publisher's state, `.esker` below the root of the repository, and the lock for writing to it.
//!
//! Any number of processes publish at once, so each file in the folder is replaced in one step under the lock, which is
//! held for that step only. A process that holds the lock may remove unfinished files.

use std::io;
use std::path::{Path, PathBuf};

use esker_store::{Disk, FileLock, Locking, persist, read_file, refuse_link_of_others, remove_unfinished};

use crate::condemned;
use crate::error::RepositoryError;
use crate::random;
use crate::reserve;
use crate::storage::{self, Storage};

/// Folder of the index of published source files.
pub const KNOWN_FILES: &str = "known";
/// Folder of the index of stored contents.
pub const CONTENTS: &str = "content";
/// Folder of the profiles from which bundles are made.
pub const PROFILES: &str = "profiles";
/// Folder of the records of open work.
pub(crate) const OPEN: &str = "open";
const LOCK: &str = "lock";
const ID: &str = "id";
/// Longest file with a random number, in bytes.
pub(crate) const NUMBER_MAX: u64 = 64;

/// Returns the folder of a repository, which may not exist.
pub fn folder(root: &Path) -> PathBuf {
    storage::state_folder(root)
}

/// Makes the folder, removes unfinished files of an interrupted publish, and sets space aside for a collect.
///
/// Web servers run as other users and need no access to it.
pub fn make(storage: &Storage) -> Result<PathBuf, RepositoryError> {
    let state = folder(storage.place());
    let disk = &*storage.disks().private;
    disk.make_dir(&state).map_err(RepositoryError::file("making folder", &state))?;
    let path = state.join(LOCK);
    let locking = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
    // Another process writes now; the next start removes leftovers.
    let Locking::Taken(_lock) = locking else { return Ok(state) };
    let below = [KNOWN_FILES, CONTENTS, PROFILES, condemned::FOLDER, OPEN];
    for folder in [state.clone()].into_iter().chain(below.map(|folder| state.join(folder))) {
        refuse_link_of_others(&folder).map_err(RepositoryError::file("using folder", &folder))?;
        match remove_unfinished(disk, &folder, |_| true) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RepositoryError::file("removing leftovers in", &folder)(error));
            }
            _ => {}
        }
    }
    if storage.is_folder() {
        reserve::keep(disk, &state);
    }
    Ok(state)
}

/// Returns the name of this state folder among those of other machines; it is made once.
pub fn id(disk: &dyn Disk, state: &Path) -> Result<String, RepositoryError> {
    let path = state.join(ID);
    match known_number(disk, &path)? {
        Some(known) => Ok(known),
        None => {
            let _lock = lock(state)?;
            number(disk, &path)
        }
    }
}

/// Returns the random number in a file, which is made once.
pub fn number(disk: &dyn Disk, path: &Path) -> Result<String, RepositoryError> {
    if let Some(known) = known_number(disk, path)? {
        return Ok(known);
    }
    let made = format!("{:016x}{:016x}", random::number(), random::number());
    persist(disk, path, made.as_bytes()).map_err(RepositoryError::file("writing", path))?;
    Ok(made)
}

fn known_number(disk: &dyn Disk, path: &Path) -> Result<Option<String>, RepositoryError> {
    let known = read_file(disk, path, NUMBER_MAX).map_err(RepositoryError::file("reading", path))?;
    Ok(known.and_then(|text| String::from_utf8(text).ok()))
}

/// Removes a file, unless it is gone.
pub fn remove(disk: &dyn Disk, path: &Path) -> Result<(), RepositoryError> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RepositoryError::file("removing", path)(error))
        }
        _ => Ok(()),
    }
}

/// Takes the lock for writing a file in the folder; other processes hold it for one file only.
pub fn lock(state: &Path) -> Result<FileLock, RepositoryError> {
    let path = state.join(LOCK);
    FileLock::wait(&path).map_err(RepositoryError::file("locking", &path))
}
