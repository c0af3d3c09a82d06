//! Defines the options and the result of a replication.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use esker_format::name::RepositoryName;
use esker_repository::SkippedRevision;
use esker_store::Source;
use serde::Serialize;

use crate::pace::Pace;

/// Default of the bytes that stay free on the file system of a replica.
pub(super) const RESERVE: u64 = 256 << 20;
/// Default number of objects that are requested or stored at once.
const REQUESTS: usize = 256;

/// Tagged revisions that a replica has beside the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RevisionLimit {
    /// All of them, as replicas of CernVM-FS have.
    #[default]
    All,
    /// The newest ones.
    Newest(u64),
}

impl RevisionLimit {
    /// Returns the number of revisions; none for all.
    pub fn number(self) -> Option<u64> {
        match self {
            Self::All => None,
            Self::Newest(number) => Some(number),
        }
    }
}

/// Limits of the retries of a failed request for an object, beside the attempts of the source itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Further attempts of each request.
    pub number: u32,
    /// Limit of the first pause; that of each further one is twice as long.
    pub first_pause: Duration,
    /// Limit of all pauses.
    pub longest_pause: Duration,
    /// Longest pause that a server may ask for; a longer one is a failure.
    pub longest_asked: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            // One of 10¹³ requests fails for good if one of 20 fails at random.
            number: 9,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            longest_asked: Duration::from_secs(300),
        }
    }
}

/// Phase of a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicateProgress {
    /// Reads catalogs.
    Catalogs {
        /// Catalogs read so far.
        done: u64,
    },
    /// Fetches objects.
    Objects {
        /// Objects that are here, fetched or not.
        done: u64,
        /// Objects that changed catalogs name.
        total: u64,
        /// Bytes fetched so far.
        bytes: u64,
    },
    /// Makes everything durable and switches the head.
    Commit,
}

/// Replication of one repository.
pub struct Replicate<'r> {
    /// Name of the repository.
    pub name: RepositoryName,
    /// Servers of the repository, for messages and for later runs.
    pub servers: String,
    /// Opened source that reads from these servers.
    pub source: Arc<dyn Source>,
    /// Public master keys as PEM text.
    pub keys: Vec<u8>,
    /// Tagged revisions to copy.
    pub revisions: RevisionLimit,
    /// Paths to copy: catalogs above, at and below them; empty for the whole repository.
    pub paths: Vec<Vec<u8>>,
    /// True to check for every object, not only for those of new catalogs.
    pub full: bool,
    /// True to accept a head that is older than that of the replica, because the repository was made anew.
    pub forget_history: bool,
    /// Bytes that stay free on the file system of the replica; none for what earlier runs were told.
    pub reserve: Option<u64>,
    /// Rate of what is fetched, which several replications may share.
    pub pace: Option<Arc<Pace>>,
    /// Limits of the retries of a failed request.
    pub retries: Retries,
    /// Spool folder of CernVM-FS, in which its reflog checksum is kept up to date.
    pub spool: Option<PathBuf>,
    /// Objects that are requested or stored at once.
    pub requests: usize,
    /// Number of threads.
    pub threads: usize,
    /// Records that are sorted in memory, 25 bytes each.
    pub buffer: usize,
    /// Set to stop early.
    pub stop: Arc<AtomicBool>,
    /// Called from time to time with the progress.
    pub progress: &'r (dyn Fn(ReplicateProgress) + Sync),
}

impl<'r> Replicate<'r> {
    /// Returns the defaults.
    pub fn new(
        name: RepositoryName,
        servers: String,
        source: Arc<dyn Source>,
        keys: Vec<u8>,
        progress: &'r (dyn Fn(ReplicateProgress) + Sync),
    ) -> Self {
        Self {
            name,
            servers,
            source,
            keys,
            revisions: RevisionLimit::All,
            paths: Vec::new(),
            full: false,
            forget_history: false,
            reserve: None,
            pace: None,
            retries: Retries::default(),
            spool: None,
            requests: REQUESTS,
            threads: 1,
            buffer: crate::hash_lists::sorter::RECORDS,
            stop: Arc::new(AtomicBool::new(false)),
            progress,
        }
    }
}

/// Objects and revisions that a replication would fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicationPlan {
    /// Revision here; none if there is none yet.
    pub before: Option<u64>,
    /// Revision on the server.
    pub revision: u64,
    /// Tagged revisions that are not here yet.
    pub revisions: u64,
    /// Catalogs to fetch.
    pub catalogs: u64,
    /// Objects to fetch.
    pub objects: u64,
    /// Plain bytes of these objects; the stored ones are fewer.
    pub plain_bytes: u64,
    /// Tagged revisions that the server lacks.
    pub skipped: Vec<SkippedRevision>,
}

/// Result of a replication.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replicated {
    /// Revision before; none if there was none.
    pub before: Option<u64>,
    /// Revision now.
    pub revision: u64,
    /// Hash of its root catalog.
    pub root: String,
    /// True if a file that clients see changed.
    pub changed: bool,
    /// Tagged revisions that were copied.
    pub revisions: u64,
    /// Catalogs that were fetched.
    pub catalogs: u64,
    /// Their stored bytes.
    pub catalog_bytes: u64,
    /// Objects that were fetched.
    pub objects: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Objects that changed catalogs name and that were here already.
    pub present: u64,
    /// Revisions that the server lacks; the next run requests them again.
    pub skipped: Vec<SkippedRevision>,
    /// Facts that need attention.
    pub warnings: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}
