//! Errors of replication.

use esker_repository::RepositoryError;

/// Reasons why a repository was not replicated. The replica keeps its revision.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicateError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The servers have no repository of this name.
    #[error("the server {server} has no repository {name}")]
    NoRepository {
        /// Address of the servers.
        server: String,
        /// Name of the repository.
        name: String,
    },
    /// The file system of a replica is nearly full.
    #[error(
        "the file system of `{place}` is nearly full: {} MiB are free, and {} MiB are to stay free",
        free >> 20,
        reserve >> 20
    )]
    Full {
        /// Folder of the replica.
        place: String,
        /// Free bytes.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
}
