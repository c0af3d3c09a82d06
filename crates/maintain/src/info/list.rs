//! Lists the repositories in a folder.

use std::io;
use std::path::{Path, PathBuf};

use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::whitelist::{self, Whitelist};
use esker_repository::{ReplicaState, RepositoryError, Storage, signed::SMALL_FILE_MAX};
use esker_store::{Disk as _, RealDisk, read_file, without_passwords};
use serde::Serialize;

use super::causes;
use super::report::ReplicaInfo;

/// A repository in a folder of repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedRepository {
    /// Name.
    pub name: String,
    /// Folder of the repository, or of the publisher's state if it is in object storage.
    pub folder: PathBuf,
    /// Address of the object storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Number of the published revision.
    pub revision: Option<u64>,
    /// Time of the head's signature, in seconds since 1970.
    pub published: Option<i64>,
    /// Time of the whitelist's expiry, in seconds since 1970.
    pub whitelist_expires: Option<i64>,
    /// True if the whitelist has expired.
    pub whitelist_expired: Option<bool>,
    /// State of the servers that it copies, for a replica.
    pub replica: Option<ReplicaInfo>,
    /// True if a transaction of CernVM-FS is open.
    pub transaction: bool,
    /// Number of open and kept transactions of this user.
    pub open_transactions: usize,
    /// Reason why a file can't be read.
    pub problem: Option<String>,
}

/// Lists the repositories in a folder by name, from two small files of each; none if the folder is missing.
pub fn list_repositories(storage: &Path, now: UnixTime) -> Result<Vec<ListedRepository>, RepositoryError> {
    let names = match RealDisk::SERVED.list(storage) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(RepositoryError::file("listing", storage))?,
    };
    let names = names.iter().filter_map(|name| RepositoryName::parse(name.to_str()?).ok());
    let mut all: Vec<_> = names.filter_map(|name| describe(storage, &name, now)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Describes a repository; none if there is no head.
fn describe(storage: &Path, name: &RepositoryName, now: UnixTime) -> Option<ListedRepository> {
    let folder = storage.join(name.as_str());
    let mut problems = Vec::new();
    let is_no_folder = |error: &io::Error| error.kind() == io::ErrorKind::NotADirectory;
    let stored = match Storage::open(&folder) {
        Ok(storage) => Some(storage).filter(|storage| !storage.is_folder()),
        Err(RepositoryError::File { source, .. }) if is_no_folder(&source) => return None,
        Err(error) => {
            problems.push(causes(&error));
            None
        }
    };
    let address = stored.as_ref().map(Storage::describe);
    let mut read = |path: &str| {
        let found = match &stored {
            Some(storage) => storage.sink().read(path, SMALL_FILE_MAX).map_err(|error| causes(&error)),
            None => match read_file(&RealDisk::SERVED, &folder.join(path), SMALL_FILE_MAX) {
                Err(error) if is_no_folder(&error) => Ok(None),
                other => other.map_err(|error| error.to_string()),
            },
        };
        found.unwrap_or_else(|error| {
            problems.push(format!("`{path}`: {error}"));
            None
        })
    };
    let head = read(manifest::PATH);
    let list = head.is_some().then(|| read(whitelist::PATH)).flatten();
    // A replica may never have got a head.
    let replica = ReplicaState::read(&folder).unwrap_or_else(|error| {
        problems.push(causes(&error));
        None
    });
    if head.is_none() && problems.is_empty() && replica.is_none() {
        return None;
    }
    let head = head.map(|bytes| Manifest::parse(&bytes)).transpose().unwrap_or_else(|error| {
        problems.push(error.to_string());
        None
    });
    let list = list.map(|bytes| Whitelist::parse(&bytes)).transpose().unwrap_or_else(|error| {
        problems.push(error.to_string());
        None
    });
    let here = head.as_ref().map_or(0, |head| head.revision);
    let replica = replica.map(|known| {
        ReplicaInfo::of(ReplicaState { servers: without_passwords(&known.servers), ..known }, here)
    });
    Some(ListedRepository {
        replica,
        name: name.to_string(),
        folder,
        address,
        revision: head.as_ref().map(|head| head.revision),
        published: head.map(|head| head.timestamp.0),
        whitelist_expires: list.as_ref().map(|list| list.expires.0),
        whitelist_expired: list.map(|list| list.is_expired(now)),
        transaction: false,
        open_transactions: 0,
        problem: (!problems.is_empty()).then(|| problems.join("; ")),
    })
}
