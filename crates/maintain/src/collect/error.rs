//! Errors of collecting.

use esker_repository::RepositoryError;

/// Reasons why nothing was collected, or not all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The repository's publisher did not allow old revisions to be collected.
    #[error("the repository `{0}` is not collectable: its head says that all revisions are kept")]
    NotCollectable(String),
}
