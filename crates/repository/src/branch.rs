//! The newest revision of a branch, from which the next one of it is made.
//!
//! The head that clients see is the newest revision of the default branch. Revisions of other branches are known by their
//! tags only, as in the reference.

use esker_format::hash::ContentHash;
use esker_format::history::{Branch, DEFAULT_BRANCH, Tag};
use esker_format::trust::VerifiedHead;
use esker_format::write::history::{HistoryDraft, TagError};

use crate::error::RepositoryError;
use crate::repository::{Base, Repository};
use crate::revisions::Revisions;

/// Branch of a new revision, other than the default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchRequest {
    /// Name of the branch.
    pub name: String,
    /// Tag, number or root hash of the revision where a new branch starts; none continues an existing branch.
    pub from: Option<String>,
}

/// The newest revision of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchHead {
    /// Number of the revision.
    pub revision: u64,
    /// Hash of its root catalog.
    pub root: ContentHash,
    /// Plain size of the root catalog, if it is recorded.
    pub size: Option<u64>,
    /// The branch, if the history has none of its name yet.
    pub new: Option<Branch>,
}

impl BranchHead {
    /// Finds the newest revision of a branch, or the one where a new branch starts; without a request, the head.
    pub fn find(
        repository: &Repository,
        head: &VerifiedHead,
        request: Option<&BranchRequest>,
    ) -> Result<Self, RepositoryError> {
        let Some(BranchRequest { name, from }) = request else {
            let (root, size) = (head.root_catalog().hash, head.root_catalog_size());
            return Ok(Self { revision: head.revision(), root, size, new: None });
        };
        let revisions = Revisions::of_head(repository, head.clone())?;
        let newest = revisions.history().and_then(|history| history.branch_head(name));
        let Some(from) = from else {
            let newest = newest.filter(|_| name != DEFAULT_BRANCH);
            let Tag { revision, root_catalog: root, size, .. } =
                newest.ok_or_else(|| TagError::UnknownBranch(name.clone()))?.clone();
            return Ok(Self { revision, root, size, new: None });
        };
        let found = revisions.find(from)?;
        let is_start = |tag: &&Tag| tag.name == *from || tag.root_catalog == found.root;
        // A revision may have tags of several branches; the tag that was named counts.
        let named =
            revisions.tags().iter().filter(is_start).min_by_key(|tag| (tag.name != *from, &tag.branch));
        let parent = named.map_or(DEFAULT_BRANCH, |tag| &tag.branch).to_owned();
        let new = Branch { name: name.clone(), parent: Some(parent), initial_revision: found.number };
        // A history of its own, to learn whether the branch can be added.
        let mut draft = match revisions.history() {
            Some(history) => HistoryDraft::continuing(history, found.root),
            None => HistoryDraft::new(repository.name.clone()),
        };
        draft.add_branch(new.clone())?;
        Ok(Self { revision: found.number, root: found.root, size: Some(found.size), new: Some(new) })
    }
}

impl Repository {
    /// Returns the revision that changes of a branch are computed from: its newest one, or the one where it starts.
    pub fn begin_on(&self, branch: Option<&BranchRequest>) -> Result<Base, RepositoryError> {
        if branch.is_none() { Ok(self.begin()) } else { self.begin_again(branch) }
    }

    /// Returns the newest revision of the head or of a branch, as the base of recomputed changes.
    pub fn begin_again(&self, branch: Option<&BranchRequest>) -> Result<Base, RepositoryError> {
        // The number comes first, as when the repository is opened.
        let collections = self.condemned().collections()?;
        let BranchHead { revision, root, size, .. } =
            BranchHead::find(self, &self.read_head()?.verified, branch)?;
        Ok(Base { revision, root, size, collections })
    }
}
