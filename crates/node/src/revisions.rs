//! Collects the revisions of a repository for `esker revision --json`: mounted, newest, and tagged ones.

use std::sync::Arc;
use std::time::Duration;

use esker_format::history::Tag;
use esker_store::ObjectStore;
use esker_threads::watchdog;
use esker_vfs::TreeError;
use esker_view::{Published, ViewStatus};
use serde::{Deserialize, Serialize};

use crate::repository::Repository;
use crate::status::{Offline, seconds};

/// Maximum number of concurrent checks that wait for a server, each on its own thread. Each has a thread until
/// its server replies or times out.
const CHECKS_MAX: usize = 4;

/// Maximum number of tagged revisions in a daemon's reply, which keeps the reply within its size limit.
const NAMED_MAX: usize = 4096;
const DESCRIPTION_MAX: usize = 256;

/// Revisions of a repository. Times are seconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisions {
    /// The repository's name.
    pub repository: String,
    /// URL.
    pub url: String,
    /// Mount point, if the request was for a mount.
    pub mountpoint: Option<String>,
    /// The revision that the mount shows.
    pub shown: Option<Shown>,
    /// Newest known revision, verified.
    pub newest: Option<Newest>,
    /// Reason why a newer revision may be unknown.
    pub offline: Option<Offline>,
    /// Named revisions, newest first, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<Named>>,
}

/// The revision that a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Number of the revision.
    pub revision: u64,
    /// Hash of the root catalog of the revision.
    pub root_hash: String,
    /// Tag by which it was requested.
    pub tag: Option<String>,
    /// True if the mount stays at it.
    pub fixed: bool,
    /// Time of publication.
    pub published: Option<u64>,
    /// Time since which it is shown, in seconds since the epoch.
    pub since: u64,
    /// Time of the server's last reply.
    pub checked: u64,
}

/// The newest revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// Number of the revision.
    pub revision: u64,
    /// Hash of the root catalog of the revision.
    pub root_hash: String,
    /// Time of the publisher's signature.
    pub published: Option<u64>,
    /// Seconds after which mounts check again.
    pub ttl: u64,
}

/// A revision with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Name of the tag.
    pub name: String,
    /// Number of the revision.
    pub revision: u64,
    /// Hash of the root catalog of the revision.
    pub root_hash: String,
    /// Time of publication.
    pub published: i64,
    /// The branch, empty for the default one.
    pub branch: String,
    /// Description by its publisher.
    pub description: String,
}

impl Revisions {
    /// Requests the newest revision now, and waits as long as its source waits.
    pub fn look(repository: &Repository, tags: bool) -> Result<Self, TreeError> {
        CheckedRevision::at(repository.heads.clone(), &*repository.store, tags)
            .map(|looked| looked.told(repository))
    }

    /// Limits the tagged revisions to the newest ones that fit into a daemon's reply.
    pub(crate) fn limit(&mut self) {
        let Some(tags) = &mut self.tags else { return };
        tags.truncate(NAMED_MAX);
        for tag in tags {
            tag.description.truncate(tag.description.floor_char_boundary(DESCRIPTION_MAX));
        }
    }
}

/// Result of a check for a new revision.
struct CheckedRevision {
    published: Published,
    tags: Option<Vec<Named>>,
}

impl CheckedRevision {
    fn at(heads: esker_store::HeadKeeper, store: &dyn ObjectStore, tags: bool) -> Result<Self, TreeError> {
        let published = Published::look(&heads)?;
        let tags = tags.then(|| published.tags(store)).transpose()?;
        Ok(Self { published, tags: tags.map(|tags| tags.into_iter().map(Named::from).collect()) })
    }

    fn told(self, repository: &Repository) -> Revisions {
        let published = &self.published;
        Revisions {
            repository: repository.heads.name().to_string(),
            url: repository.url.clone(),
            mountpoint: None,
            shown: None,
            newest: Some(Newest {
                revision: published.revision(),
                root_hash: published.root_hash().to_string(),
                published: published.published(),
                ttl: published.ttl().as_secs(),
            }),
            offline: published
                .offline()
                .map(|offline| Offline { since: seconds(offline.since), reason: offline.reason.clone() }),
            tags: self.tags,
        }
    }
}

/// Pending checks of a mount, which must not block its control socket.
#[derive(Debug, Default)]
pub(crate) struct RevisionChecks(Arc<()>);

impl RevisionChecks {
    /// Requests the revision from the server, and waits at most `patience` for the reply.
    pub(crate) fn look(&self, repository: &Repository, tags: bool, patience: Duration) -> Revisions {
        let found = self.begin(repository, tags).and_then(|answer| {
            let waited = answer.recv_timeout(patience);
            waited.unwrap_or_else(|_| Err(format!("its server did not answer within {patience:?}")))
        });
        match found {
            Ok(looked) => looked.told(repository),
            Err(reason) => unanswered(repository, reason),
        }
    }

    fn begin(
        &self,
        repository: &Repository,
        tags: bool,
    ) -> Result<std::sync::mpsc::Receiver<Result<CheckedRevision, String>>, String> {
        let permit = Arc::clone(&self.0);
        // Ours, and the one just made.
        if Arc::strong_count(&permit) > CHECKS_MAX + 1 {
            return Err("earlier requests still wait for its server".to_owned());
        }
        let (heads, store) = (repository.heads.clone(), Arc::clone(&repository.store));
        let look = move || {
            let found = CheckedRevision::at(heads, &*store, tags).map_err(|error| esker_view::chain(&error));
            drop(permit);
            found
        };
        watchdog::begin("look", look).map_err(|error| format!("no thread can be started: {error}"))
    }
}

/// Returns the facts that need no reply.
fn unanswered(repository: &Repository, reason: String) -> Revisions {
    let status = repository.heads.status();
    let newest = status.head.map(|head| Newest {
        revision: head.revision(),
        root_hash: head.root_catalog().hash.to_string(),
        published: u64::try_from(head.timestamp().0).ok(),
        ttl: head.ttl().into(),
    });
    Revisions {
        repository: repository.heads.name().to_string(),
        url: repository.url.clone(),
        mountpoint: None,
        shown: None,
        newest,
        offline: Some(Offline { since: u64::try_from(status.confirmed.0).unwrap_or(0), reason }),
        tags: None,
    }
}

impl From<Tag> for Named {
    fn from(tag: Tag) -> Self {
        Self {
            name: tag.name,
            revision: tag.revision,
            root_hash: tag.root_catalog.to_string(),
            published: tag.timestamp.0,
            branch: tag.branch,
            description: tag.description,
        }
    }
}

impl From<&ViewStatus> for Shown {
    fn from(view: &ViewStatus) -> Self {
        Self {
            revision: view.revision,
            root_hash: view.root_hash.to_string(),
            tag: view.tag.clone(),
            fixed: view.pinned,
            published: view.published,
            since: seconds(view.since),
            checked: seconds(view.checked),
        }
    }
}
