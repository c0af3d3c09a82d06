//! Reads and writes the record of a replica's last run, in its state folder.

use std::path::Path;

use esker_format::master_keys::MasterKeys;
use esker_store::Disk;
use serde::{Deserialize, Serialize};

use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::owner_file;
use crate::signed::SMALL_FILE_MAX;
use crate::state;
use crate::storage::Storage;

/// Folder of replication in the state folder.
pub const FOLDER: &str = "replica";
/// File in that folder.
pub const STATE: &str = "state.json";

/// File with the same in the root of object storage.
pub const SHARED: &str = ".esker_replica.json";

/// A revision that is not copied, because the server lacks a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRevision {
    /// Its number; 0 for one without tags.
    pub revision: u64,
    /// Its tags.
    pub tags: Vec<String>,
    /// Reason for leaving it out.
    pub reason: String,
}

/// Record of a replica's last run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaState {
    /// Name of the repository; empty if an older version wrote this.
    pub name: String,
    /// Servers that it is copied from.
    pub servers: String,
    /// Public master keys as PEM text.
    pub keys: String,
    /// Paths that it has; empty for all.
    pub paths: Vec<String>,
    /// Tagged revisions that it has beside the head; none for all.
    pub revisions: Option<u64>,
    /// Bytes that stay free on its file system; none for the default.
    pub reserve: Option<u64>,
    /// Newest revision that the servers offered.
    pub upstream_revision: u64,
    /// Time of the last run, in seconds since 1970.
    pub attempted: i64,
    /// Time of the last successful run.
    pub succeeded: Option<i64>,
    /// Revisions that the servers lacked in the last successful run; none if that was not recorded.
    pub left_out: Option<Vec<SkippedRevision>>,
    /// Failure of the last run.
    pub failure: Option<String>,
    /// SHA-1 of the manifest of the last successful run, if all catalogs here have their subtrees.
    pub complete: Option<String>,
}

impl ReplicaState {
    /// Reads the state of the replica in a folder; none if the folder has no replica.
    pub fn read(root: &Path) -> Result<Option<Self>, RepositoryError> {
        Self::read_on(&*Disks::default().private, &state::folder(root))
    }

    /// Reads the state of the replica in a storage. That of a bucket lies in the bucket, so that it goes with the replica;
    /// older versions had it in the folder of its place only, where a copy stays for other commands.
    pub fn of(storage: &Storage) -> Result<Option<Self>, RepositoryError> {
        let local = Self::read_on(&*storage.disks().private, &state::folder(storage.place()));
        let Some(sink) = storage.shared() else { return local };
        let Some(text) = sink.read(SHARED, SMALL_FILE_MAX)? else { return local };
        let path = Path::new(&storage.describe()).join(SHARED);
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| RepositoryError::ReplicaState { path, reason: error.to_string() })
    }

    fn read_on(disk: &dyn Disk, state: &Path) -> Result<Option<Self>, RepositoryError> {
        let path = state.join(FOLDER).join(STATE);
        let text = owner_file::read(disk, &path, SMALL_FILE_MAX)?;
        let parsed = text.map(|text| serde_json::from_slice(&text)).transpose();
        parsed.map_err(|error| RepositoryError::ReplicaState { path, reason: error.to_string() })
    }

    /// Returns the name of the repository, which older versions wrote as the end of its URLs only.
    pub fn repository(&self) -> Option<&str> {
        let first = self.servers.split(';').next().unwrap_or_default();
        let named = Some(self.name.as_str()).filter(|name| !name.is_empty());
        named.or_else(|| first.trim_end_matches('/').rsplit('/').next()).filter(|name| !name.is_empty())
    }

    /// Returns the public keys.
    pub fn master_keys(&self) -> Result<MasterKeys, RepositoryError> {
        let refused = |reason: String| RepositoryError::PublicKey { path: STATE.into(), reason };
        MasterKeys::parse(self.keys.as_bytes()).map_err(|error| refused(error.to_string()))
    }

    /// Returns true if it has a part of the repository only.
    pub fn is_partial(&self) -> bool {
        !self.paths.is_empty()
    }
}
