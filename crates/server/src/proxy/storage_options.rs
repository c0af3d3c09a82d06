//! Options of repositories that are served from object storage.

use std::path::PathBuf;
use std::time::Duration;

use esker_format::name::RepositoryName;
use esker_object_storage::{Bucket, StorageSettings};

/// A repository in object storage.
#[derive(Clone, Debug)]
pub struct RepositoryStorage {
    /// Name of the repository.
    pub name: RepositoryName,
    /// The bucket and the prefix of the repository.
    pub bucket: Bucket,
    /// Settings and credentials.
    pub settings: StorageSettings,
}

/// Options of repositories in object storage.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// The repositories.
    pub repositories: Vec<RepositoryStorage>,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// Maximum number of bytes in the cache.
    pub cache_size: u64,
    /// Time for which a manifest is served without asking the storage.
    pub head_age: Duration,
}
