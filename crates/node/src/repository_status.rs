//! Status of a mounted repository: that of the mount, its view and its store in one.

use esker_cache_share::ObjectProvider;
use esker_store::StoreStatus;
use esker_view::View;

use crate::repository::Repository;
use crate::status::{self, MountStatus, seconds};

/// Adds the status of a repository and its view.
pub(crate) fn of_repository(
    status: MountStatus,
    repository: &Repository,
    view: &View,
    store: StoreStatus,
) -> MountStatus {
    let view = view.status();
    let head = repository.heads.current();
    let mut errors: Vec<_> = view.failures.into_iter().map(status::Failure::from).collect();
    errors.extend(store.cache.disk_failure.clone().map(status::Failure::of_cache));
    errors.sort_by_key(|error| error.time);
    MountStatus {
        revision: view.revision,
        fixed: view.pinned,
        tag: view.tag,
        root_hash: view.root_hash.to_string(),
        published: view.published,
        ttl: head.as_ref().map(|head| head.ttl().into()),
        whitelist_expires: head.and_then(|head| u64::try_from(head.whitelist_expires().0).ok()),
        since: seconds(view.since),
        checked: seconds(view.checked),
        offline: view
            .offline
            .map(|offline| status::Offline { since: seconds(offline.since), reason: offline.reason }),
        errors,
        view: view.counters,
        fetched: store.traffic,
        network: store.network,
        work: store.work,
        cache: status::Cache {
            directory: repository.store.cache().to_owned(),
            writer: repository.store.is_writer(),
            broker: match repository.store.through() {
                Some(ObjectProvider::Broker(socket)) => Some(socket),
                _ => None,
            },
            broker_refused: repository.store.refusal(),
            state: store.cache,
        },
        ..status
    }
}
