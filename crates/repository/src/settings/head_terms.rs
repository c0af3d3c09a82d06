//! Signs the published head again with other terms: its collectability, or the publisher's certificate.

use std::sync::atomic::AtomicBool;

use esker_format::manifest::Manifest;
use esker_format::time::UnixTime;
use esker_store::Swap;

use crate::error::RepositoryError;
use crate::repository::Repository;

/// Signs the head with the publisher's key. Revision and root catalog stay.
pub fn sign_head(
    repository: &Repository,
    now: UnixTime,
    change: impl Fn(&mut Manifest),
) -> Result<(), RepositoryError> {
    let stop = AtomicBool::new(false);
    let mut lock = repository.lock_head(&stop)?;
    loop {
        if lock.publish_changed(lock.same_revision(now), &change)? == Swap::Replaced {
            return Ok(());
        }
        lock.read_again()?;
    }
}
