//! Small changes of the head, computed under its lock.

use std::sync::atomic::AtomicBool;

use esker_format::time::UnixTime;
use esker_store::Swap;

use crate::error::RepositoryError;
use crate::repository::Repository;

use super::lock::HeadLock;
use super::publication::Next;

/// Takes the lock, computes the next head and publishes it; again if a program replaced the head without the lock.
/// Without a next head nothing is published.
pub fn exclusively<T, E: From<RepositoryError>>(
    repository: &Repository,
    stop: &AtomicBool,
    mut change: impl FnMut(&mut HeadLock<'_>) -> Result<(Option<Next>, T), E>,
) -> Result<T, E> {
    let mut lock = repository.lock_head(stop)?;
    loop {
        let (next, outcome) = change(&mut lock)?;
        let Some(next) = next else { return Ok(outcome) };
        if lock.publish(next)? == Swap::Replaced {
            return Ok(outcome);
        }
        lock.read_again()?;
    }
}

/// Signs the head with the publisher's key, and with another term if one is given. Revision and root catalog stay.
pub fn sign_head(
    repository: &Repository,
    now: UnixTime,
    garbage_collectable: Option<bool>,
) -> Result<(), RepositoryError> {
    exclusively(repository, &AtomicBool::new(false), |lock| {
        Ok((Some(Next { garbage_collectable, ..lock.same_revision(now) }), ()))
    })
}
