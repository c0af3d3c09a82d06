//! Free space of the file system of a replica.

use std::path::Path;

use super::error::ReplicateError;
use esker_repository::RepositoryError;

/// Fails if less than `reserve` bytes are free, or would be after `more` further bytes.
pub(super) fn check(folder: &Path, more: u64, reserve: u64) -> Result<(), ReplicateError> {
    let facts = rustix::fs::statvfs(folder)
        .map_err(|errno| RepositoryError::file("looking for free space on", folder)(errno.into()))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free >= reserve.saturating_add(more) {
        return Ok(());
    }
    Err(ReplicateError::Full { place: folder.display().to_string(), free, reserve })
}
