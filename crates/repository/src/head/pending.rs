//! The reflog that belongs to a head, noted while a publisher replaces both.
//!
//! Two files can't be replaced in one step. A publisher that is killed between them leaves a reflog that the head does not
//! name, which `cvmfs_server check` and its collect refuse. So the one that the head will name is kept beside, from before
//! the first until after the second is replaced: under the lock, where the reflog goes first, that of the old head;
//! without a lock, where it goes last, that of the new head. The next process that opens the repository for publishing puts
//! it back.

use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;
use esker_format::reflog;
use esker_format::trust::VerifiedHead;
use esker_store::{Disk, Sink, StoredFiles, persist, read_file};

use crate::error::RepositoryError;
use crate::repository::DATABASE_MAX;
use crate::state;

const FILE: &str = "reflog.pending";

/// Returns the path of the file in a publisher's state.
pub fn path(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// Keeps a reflog, durably, until both files are replaced.
pub(super) fn keep(disk: &dyn Disk, folder: &Path, reflog: &[u8]) -> Result<(), RepositoryError> {
    let path = path(folder);
    // Another process removes unfinished files under this lock.
    let _lock = state::lock(folder)?;
    persist(disk, &path, reflog).map_err(RepositoryError::file("writing", &path))
}

/// Removes the reflog that was kept.
pub(super) fn drop_kept(disk: &dyn Disk, folder: &Path) -> Result<(), RepositoryError> {
    state::remove(disk, &path(folder))
}

/// Returns true if the stored reflog is not the one that the head names, and that one was kept.
pub fn is_interrupted(
    disk: &dyn Disk,
    state: &Path,
    files: &dyn StoredFiles,
    named: ContentHash,
) -> Result<bool, RepositoryError> {
    // Others than the publisher may not read it.
    let Ok(Some(kept)) = read_file(disk, &path(state), DATABASE_MAX) else { return Ok(false) };
    let is_named = |bytes: &[u8]| ContentHash::of(named.algorithm(), bytes) == named;
    Ok(is_named(&kept) && !files.read(reflog::PATH, DATABASE_MAX)?.is_some_and(|stored| is_named(&stored)))
}

/// Puts the kept reflog back if the head names it, and removes it. The caller holds the lock of the head, if there is one.
pub fn finish(
    disk: &dyn Disk,
    state: &Path,
    sink: &dyn Sink,
    head: &VerifiedHead,
) -> Result<(), RepositoryError> {
    let path = path(state);
    let kept = read_file(disk, &path, DATABASE_MAX).map_err(RepositoryError::file("reading", &path))?;
    let Some(kept) = kept else { return Ok(()) };
    if head.manifest().reflog == Some(ContentHash::of(head.hash_algorithm(), &kept)) {
        let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
        if stored.as_deref() != Some(&kept) {
            // Without a lock another publisher may be faster, which then wrote a later one.
            let _ = sink.replace_root(reflog::PATH, &kept, stored.as_deref())?;
        }
    }
    drop_kept(disk, state)
}
