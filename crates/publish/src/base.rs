//! Revisions that changes are computed from, for callers that keep them.

use esker_format::hash::ContentHash;
use esker_repository::{Base, BranchRequest, Repository, RepositoryError};

/// Root catalog of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseRevision {
    /// The number of the revision.
    pub revision: u64,
    /// The hash of its root catalog.
    pub root: ContentHash,
    /// The size of its root catalog, if known.
    pub size: Option<u64>,
    /// Number of collections of the repository before; what later ones took is looked for.
    pub collections: u64,
}

impl BaseRevision {
    /// Returns the published revision of a repository.
    pub fn published(repository: &Repository) -> Self {
        repository.begin().into()
    }

    /// Returns the newest revision of a branch, or the one where a new branch starts.
    pub fn of_branch(repository: &Repository, branch: &BranchRequest) -> Result<Self, RepositoryError> {
        repository.begin_on(Some(branch)).map(Self::from)
    }

    pub(crate) fn base(&self) -> Base {
        let Self { revision, root, size, collections } = self.clone();
        Base { revision, root, size, collections }
    }
}

impl From<Base> for BaseRevision {
    fn from(base: Base) -> Self {
        let Base { revision, root, size, collections } = base;
        Self { revision, root, size, collections }
    }
}
