//! Errors of checks and repairs.

use esker_publish::PublishError;
use esker_repository::RepositoryError;

/// Reasons why a repository was not checked or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A revision with right counters can't be published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// There is no tag of this name.
    #[error("there is no tag `{0}`")]
    NoTag(String),
}
