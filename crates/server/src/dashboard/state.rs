//! State of a repository, from the small files at its top.

use esker_format::hash::ContentHash;
use esker_format::metainfo::ServerStatus;
use esker_format::time::UnixTime;
use esker_format::whitelist::{self, Whitelist};

use super::size_history::Point;
use super::tags::TagSummary;
use crate::file::Folder;
use crate::repositories::{Repositories, Unread, manifest_of};

/// Maximum size of a whitelist or status file in bytes.
const SMALL_FILE_MAX: u64 = 1 << 20;
/// File with the time of the last replication, of older servers.
const LAST_SNAPSHOT: &str = ".cvmfs_last_snapshot";

/// A value that takes time to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known<T> {
    /// The state is not read yet.
    Pending,
    /// The state can't be read.
    Failed(String),
    Value(T),
}

/// State of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryState {
    /// Name of the repository in its URL.
    pub(crate) folder: String,
    /// True if the repository is copied from another server.
    pub(crate) replica: bool,
    /// The published head; the reason if it can't be read.
    pub(crate) head: Result<Head, String>,
    /// Times of maintenance.
    pub(crate) status: Status,
    /// Expiry of the whitelist; the reason if it can't be read.
    pub(crate) whitelist: Result<UnixTime, String>,
    /// Tags of the repository.
    pub(crate) tags: Known<TagSummary>,
    /// Sizes of the newest revisions, oldest first.
    pub(crate) sizes: Known<Vec<Point>>,
}

/// Fields of a manifest.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) published: UnixTime,
    pub(crate) root: ContentHash,
    pub(crate) history: Option<ContentHash>,
    pub(crate) collectable: bool,
    pub(crate) ttl: u32,
}

/// Times from `.cvmfs_status.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) last_snapshot: Option<UnixTime>,
    /// Servers that a replica is copied from.
    pub(crate) source: Option<String>,
    /// Begin of the first replication, while it is in progress.
    pub(crate) snapshotting_since: Option<UnixTime>,
    pub(crate) last_collect: Option<UnixTime>,
    pub(crate) last_check: Option<UnixTime>,
    pub(crate) check_succeeded: Option<bool>,
}

impl RepositoryState {
    /// Reads the small files of all repositories.
    pub(crate) fn all(repositories: &Repositories) -> Vec<Self> {
        repositories.all().iter().map(|(name, folder)| Self::of(name.as_str(), folder)).collect()
    }

    /// Reads the small files of a repository.
    pub(crate) fn of(name: &str, folder: &Folder) -> Self {
        let status = Status::read(folder);
        let head = manifest_of(folder).map_err(|error| match error {
            Unread::Io(error) => format!("its manifest can't be read: {error}"),
            Unread::Malformed(reason) => format!("its manifest can't be read: {reason}"),
        });
        let head = head.map(|manifest| Head {
            name: manifest.name.unwrap_or_default(),
            revision: manifest.revision,
            published: manifest.timestamp,
            root: manifest.root_catalog,
            history: manifest.history,
            collectable: manifest.garbage_collectable,
            ttl: manifest.ttl,
        });
        Self {
            folder: name.to_owned(),
            replica: status.last_snapshot.is_some() || folder.has(LAST_SNAPSHOT),
            head,
            status,
            whitelist: whitelist_expiry(folder),
            tags: Known::Pending,
            sizes: Known::Pending,
        }
    }
}

impl Status {
    fn read(folder: &Folder) -> Self {
        let bytes = folder.read(ServerStatus::PATH, SMALL_FILE_MAX).unwrap_or_default();
        let status = ServerStatus::parse(&bytes).unwrap_or_default();
        let time = |text: Option<String>| text.as_deref().and_then(UnixTime::parse_date);
        let snapshot = time(status.last_snapshot).or_else(|| {
            let bytes = folder.read(LAST_SNAPSHOT, SMALL_FILE_MAX).ok()?;
            UnixTime::parse_date(std::str::from_utf8(&bytes).ok()?)
        });
        Self {
            last_snapshot: snapshot,
            source: status.source,
            snapshotting_since: time(status.snapshotting_since),
            last_collect: time(status.last_gc),
            last_check: time(status.last_check),
            check_succeeded: status.check_succeeded,
        }
    }
}

fn whitelist_expiry(folder: &Folder) -> Result<UnixTime, String> {
    let bytes = folder.read(whitelist::PATH, SMALL_FILE_MAX).map_err(|error| error.to_string())?;
    Whitelist::parse(&bytes).map(|list| list.expires).map_err(|error| error.to_string())
}
