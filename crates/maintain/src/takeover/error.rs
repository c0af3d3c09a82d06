//! Errors of importing and exporting.

use std::path::PathBuf;

use esker_repository::RepositoryError;

/// Reasons why a repository was not taken over, or its configuration not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeoverError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A configuration file of CernVM-FS can't be used.
    #[error("`{}` can't be used: {reason}", path.display())]
    ServerConf {
        /// The file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// A repository in object storage does not support this operation.
    #[error("{what} is for repositories in folders, and this one is in {storage}")]
    NotInStorage {
        /// The operation.
        what: &'static str,
        /// Address of the storage.
        storage: String,
    },
}
