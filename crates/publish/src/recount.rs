//! Publishes a revision of the same tree with right counters in its catalogs.

use std::sync::atomic::AtomicBool;

use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::time::UnixTime;
use esker_repository::{
    ReadHead, Repository, RepositoryError,
    head::{ATTEMPTS, Next},
    published::Published,
};
use esker_store::Swap;

use crate::catalogs::{Built, CatalogBuilder, outline_all};
use crate::changes::{Changes, NewTree};
use crate::error::PublishError;

/// A catalog whose counters are wrong: its mountpoint and hash.
pub type Miscounted = (Vec<u8>, ContentHash);

/// Catalogs that were written once more.
struct Recounted {
    root: Built,
    revision: u64,
    ttl: u32,
    now: UnixTime,
}

/// Writes those of the catalogs once more that the head has, with all above them, and publishes a revision of them.
/// Returns its number; none if the head has none of them. The lock is held only while the head is replaced.
pub fn recount(
    repository: &Repository,
    miscounted: &[Miscounted],
    now: UnixTime,
    stop: &AtomicBool,
) -> Result<Option<u64>, PublishError> {
    let mut head = repository.read_head()?;
    for _ in 0..ATTEMPTS {
        let Some(written) = write_recounted(repository, miscounted, &head, now)? else { return Ok(None) };
        let lock = repository.lock_head(stop)?;
        if !lock.is_of(&head) {
            head = lock.head().clone();
            continue;
        }
        let mut history = lock.history()?;
        // An undo is to take back what was published before, and not this.
        history.replace_head(&Tag {
            name: String::new(),
            root_catalog: written.root.hash,
            size: Some(written.root.size),
            revision: written.revision,
            timestamp: written.now,
            description: String::new(),
            branch: DEFAULT_BRANCH.to_owned(),
        });
        let next = Next {
            root: (written.root.hash, written.root.size),
            revision: written.revision,
            ttl: written.ttl,
            history: Some(history),
            ..lock.same_revision(written.now)
        };
        if lock.publish(next)? == Swap::Replaced {
            return Ok(Some(written.revision));
        }
        head = repository.read_head()?;
    }
    Err(RepositoryError::Moving.into())
}

fn write_recounted(
    repository: &Repository,
    miscounted: &[Miscounted],
    head: &ReadHead,
    now: UnixTime,
) -> Result<Option<Recounted>, PublishError> {
    let published = Published::new(repository.storage().sink().clone(), &head.verified);
    let mut changes = Changes::default();
    for (mountpoint, hash) in miscounted {
        if published.at(mountpoint)?.is_some_and(|catalog| catalog.hash == *hash) {
            changes.touch(mountpoint);
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let revision = head.verified.revision().saturating_add(1);
    let ttl = published.root()?.catalog.properties().ttl.unwrap_or(head.verified.ttl());
    let now = now.max(head.verified.timestamp());
    let tree = NewTree { published: &published, changes: &changes };
    let builder = CatalogBuilder {
        tree,
        sink: repository.sink(),
        algorithm: head.verified.hash_algorithm(),
        revision,
        replaces: None,
        recount: true,
        now,
        ttl,
        built: Default::default(),
    };
    let root = builder.run(&outline_all(tree)?, 1)?;
    repository.sink().flush()?;
    Ok(Some(Recounted { root, revision, ttl, now }))
}
