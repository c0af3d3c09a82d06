//! Errors of reading repositories and of replacing their heads.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use esker_format::catalog::CatalogError;
use esker_format::compress::DecompressError;
use esker_format::history::HistoryError;
use esker_format::reflog::ReflogError;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_format::write::history::TagError;
use esker_format::write::keys::KeyError;
use esker_store::{LockHolder, StoreError, is_full};

use crate::gateway::GatewayFailure;

/// Reasons why a repository can't be read or its head can't be replaced. The last revision stays in place in all cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// Objects or heads can't be read or written.
    #[error(transparent)]
    Storage(StoreError),
    /// The folder contains no repository.
    #[error("there is no repository in `{0}`")]
    NoRepository(String),
    /// The folder contains a repository already.
    #[error("there is a repository in `{0}` already")]
    Exists(String),
    /// The storage has another repository.
    #[error("there is the repository `{name}` in `{place}`")]
    OtherRepository {
        /// The storage.
        place: String,
        /// Name of the repository there.
        name: String,
    },
    /// The storage has files, and no repository.
    #[error("`{place}` is not empty and has no repository: `{found}` is there")]
    Foreign {
        /// The storage.
        place: String,
        /// A file or folder there.
        found: String,
    },
    /// Another process is publishing.
    #[error("another process is publishing to `{place}`{}", described(holder))]
    Locked {
        /// Path of the locked repository, or of the spool folder of `cvmfs_server`.
        place: String,
        /// Process that holds the lock.
        holder: LockHolder,
    },
    /// A program that does not take the lock replaces the head again and again.
    #[error("another program replaces the head of the repository again and again, and takes no lock for it")]
    Moving,
    /// Objects that the change needs were collected while it was prepared.
    #[error("{objects} objects that this change needs were collected while it was prepared")]
    Collected {
        /// Number of objects.
        objects: u64,
    },
    /// Objects that the change needs are being deleted, and can't be kept any more.
    #[error("{objects} objects that this change needs are being deleted by a collect")]
    BeingDeleted {
        /// Number of objects.
        objects: u64,
    },
    /// The record of open work can't be read, so what it needs is not known.
    #[error("the record of open work `{id}` can't be read: {reason}")]
    OpenWork {
        /// Id of the work.
        id: String,
        /// Reason why the record can't be read.
        reason: String,
    },
    /// A process stopped, because others could take it for ended.
    #[error(
        "a step in {storage} takes longer than other processes wait for it; the next attempt goes on after the steps \
         that are done"
    )]
    Slow {
        /// Address of the storage.
        storage: String,
    },
    /// Other publishers replaced the head before each attempt to replace it.
    #[error("other publishers replaced the head {attempts} times while this one tried to")]
    Contended {
        /// Number of attempts.
        attempts: u32,
    },
    /// The reference implementation has a transaction open.
    #[error("CernVM-FS has a transaction open on this repository: `{}` exists", .0.display())]
    Transaction(PathBuf),
    /// The published head does not verify.
    #[error("the published head of `{name}` can't be trusted")]
    Untrusted {
        /// Name of the repository.
        name: String,
        /// Cause of the failure.
        source: Box<TrustError>,
    },
    /// An object that the head references is missing.
    #[error("the repository is damaged: {what} (object {object}) is missing")]
    Missing {
        /// Kind of file.
        what: String,
        /// Name of the object.
        object: String,
    },
    /// The content of an object does not match its hash.
    #[error("the repository is damaged: {what} (object {object}) has other bytes than its name says")]
    Corrupt {
        /// Kind of file.
        what: String,
        /// Name of the object.
        object: String,
    },
    /// An object can't be decompressed.
    #[error("the repository is damaged: {what} can't be decompressed")]
    Compressed {
        /// Kind of file.
        what: String,
        /// Cause of the failure.
        source: DecompressError,
    },
    /// A catalog can't be read.
    #[error("the repository is damaged: {what} can't be read")]
    Catalog {
        /// Kind of catalog.
        what: String,
        /// Cause of the failure.
        source: CatalogError,
    },
    /// The history can't be read.
    #[error("the history of the repository can't be read")]
    History(#[source] HistoryError),
    /// The reflog can't be read.
    #[error("the reflog of the repository can't be read")]
    Reflog(#[source] ReflogError),
    /// A key can't be used.
    #[error("key `{}` can't be used", path.display())]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: KeyError,
    },
    /// A key file is missing or can't be read.
    #[error("key `{}` can't be read", path.display())]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The public key can't be used.
    #[error("public key `{}` can't be used: {reason}", path.display())]
    PublicKey {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// The publisher's certificate can't be used.
    #[error("certificate `{}` can't be used: {reason}", path.display())]
    Certificate {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// Clients would refuse signatures of this key.
    #[error("the master key `{}` does not belong to the public key `{}`", master.display(), public.display())]
    OtherMaster {
        /// The file of the key.
        master: PathBuf,
        /// The file of the public key that clients have.
        public: PathBuf,
    },
    /// A signature can't be made.
    #[error("signing failed")]
    Signing(#[source] KeyError),
    /// The certificate of the keys is not accepted by the repository.
    #[error("the certificate in `{}` is not on the whitelist of the repository", .0.display())]
    NotListed(PathBuf),
    /// A file of the publisher can't be read or written.
    #[error("{doing} `{}` failed", path.display())]
    File {
        /// Operation that failed.
        doing: &'static str,
        /// Path that it failed on.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A catalog that a publish would replace has parts that would be lost.
    #[error("the catalog of `{catalog}` has what this version doesn't know and would lose: {}", parts.join(", "))]
    UnknownParts {
        /// The directory of the catalog.
        catalog: String,
        /// Descriptions of the parts.
        parts: Vec<String>,
    },
    /// A path in the repository is invalid.
    #[error("`{path}` can't be used as a path in the repository: {reason}")]
    Target {
        /// Path in the repository.
        path: String,
        /// Reason for the refusal.
        reason: &'static str,
    },
    /// Neither of the compared revisions has this path.
    #[error("neither revision has `{0}`")]
    NoSuchPath(String),
    /// A revision does not have this path.
    #[error("the revision has no `{0}`")]
    NoPath(String),
    /// A revision can't be found.
    #[error("there is no revision `{name}`: {reason}")]
    NoRevision {
        /// Name, as given.
        name: String,
        /// Reason for the refusal.
        reason: String,
    },
    /// A name means more than one revision.
    #[error("`{name}` may mean {}", meanings.join(", or "))]
    AmbiguousRevision {
        /// Name, as given.
        name: String,
        /// Each revision, and a name that means only this one.
        meanings: Vec<String>,
    },
    /// A tag is refused.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The encoder failed.
    #[error("compression failed")]
    Encoder(#[source] io::Error),
    /// A setting of the repository is invalid.
    #[error("the settings in `{}` can't be used: {reason}", path.display())]
    Settings {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// There is no passphrase for an encrypted key.
    #[error("there is no passphrase for the key `{}`: {reason}", path.display())]
    Passphrase {
        /// The file of the key.
        path: PathBuf,
        /// Reason for its absence.
        reason: String,
    },
    /// A key is not copied or replaced.
    #[error("key `{}` is not written: {reason}", path.display())]
    KeyConflict {
        /// The file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// A repository that is published here is not made a replica.
    #[error("the repository in `{0}` is published here, and is no replica")]
    NotReplica(String),
    /// A replica is not published to.
    #[error("the repository in `{place}` is a replica of {source_url}, and can't be changed here")]
    IsReplica {
        /// Folder of the replica.
        place: String,
        /// Server that it is copied from.
        source_url: String,
    },
    /// The state of a replica can't be read.
    #[error("the state of the replica in `{}` can't be used: {reason}", path.display())]
    ReplicaState {
        /// The file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// A gateway refuses what a publisher without keys asks for.
    #[error("the gateway {gateway}: {failure}")]
    Gateway {
        /// Address of the gateway.
        gateway: String,
        /// The refusal.
        failure: GatewayFailure,
    },
    /// Only publishers with keys can do this.
    #[error("this can't be done through a gateway, because it needs the keys of {0}")]
    NotThroughGateway(String),
    /// The caller interrupted the operation.
    #[error("interrupted; the last revision is untouched")]
    Interrupted,
}

fn described(holder: &LockHolder) -> String {
    let pid = holder.pid.map(|pid| format!("process {pid}"));
    let host = holder.host.as_ref().map(|host| format!("on {host}"));
    let since = holder.since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
    let since = since.and_then(|since| i64::try_from(since.as_secs()).ok());
    let since = since.map(|since| format!("since {}", UnixTime(since)));
    let parts: Vec<String> = [pid, host, since].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(" ")) }
}

impl RepositoryError {
    /// Returns the error for a lock of `place` that another process holds.
    pub fn locked(place: String) -> impl FnOnce(LockHolder) -> Self {
        |holder| Self::Locked { place, holder }
    }

    /// Returns the error for an operation on a file of the publisher that failed.
    pub fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { doing, path, source }
    }

    /// Returns true if a disk, or the quota of a user on it, is full.
    pub fn is_full(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(this) = cause {
            if this.downcast_ref::<io::Error>().is_some_and(is_full) {
                return true;
            }
            cause = this.source();
        }
        false
    }
}

impl From<StoreError> for RepositoryError {
    fn from(error: StoreError) -> Self {
        if error.is_interruption() { Self::Interrupted } else { Self::Storage(error) }
    }
}
