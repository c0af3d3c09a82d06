//! Free space of the file system of a replica.

use std::path::Path;

use esker_repository::AdminError;

/// Fails if less than `reserve` bytes are free, or would be after `more` further bytes.
pub(super) fn check(folder: &Path, more: u64, reserve: u64) -> Result<(), AdminError> {
    let facts = rustix::fs::statvfs(folder)
        .map_err(|errno| AdminError::file("looking for free space on", folder)(errno.into()))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free >= reserve.saturating_add(more) {
        return Ok(());
    }
    Err(AdminError::Full { place: folder.display().to_string(), free, reserve })
}
