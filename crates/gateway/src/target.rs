//! Repositories that a gateway publishes to: the seam between leases and the commit.

use std::error::Error;
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_repository::Settings;
use esker_store::Sink;

use crate::lease::{Candidate, Request};
use crate::lease_path::LeasePath;

/// A repository that a gateway publishes to. Calls block, and come from several threads.
pub trait Target: Send + Sync {
    /// Returns the storage that payloads go to.
    fn sink(&self) -> &dyn Sink;

    /// Returns the settings, by which publishers store files and make catalogs.
    fn settings(&self) -> Result<Settings, PublishFailure>;

    /// Publishes what publishers have built, where it can as one revision. Returns the results in the same order; a submission with a
    /// failure is not published, unless the failure came after the head was replaced.
    fn publish(&self, submissions: &Submissions<'_>) -> Vec<Result<Published, PublishFailure>>;

    /// Returns true if the head named this revision once.
    fn has_published(&self, candidate: &Candidate) -> Result<bool, PublishFailure>;

    /// Returns the files that publishers verify the repository with.
    fn public_files(&self) -> Result<PublicFiles, PublishFailure>;
}

/// Files that publishers verify a repository with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicFiles {
    /// The master public key.
    pub key: String,
    /// The certificate of the gateway's key.
    pub certificate: String,
}

/// Opens a repository of a gateway.
pub type OpenTarget = Box<dyn Fn(&RepositoryName) -> Result<Arc<dyn Target>, PublishFailure> + Send + Sync>;

/// What a publisher has built.
pub struct Submission<'a> {
    /// The root catalog that it built.
    pub root: ContentHash,
    /// Directory whose changes are published.
    pub path: &'a LeasePath,
    /// The request of the publisher.
    pub request: &'a Request,
    /// Returns true if the lease uploaded a catalog, which then may be the base of the root.
    pub has_uploaded: Box<dyn Fn(&ContentHash) -> bool + Sync + 'a>,
}

/// Function that notes the revision which the head is about to name for the submissions at some places, none if only tags change,
/// and refuses it if a lease has expired.
pub type BeforeHead<'a> = dyn Fn(&[usize], Option<Candidate>) -> Result<(), PublishFailure> + Sync + 'a;

/// What publishers have built, of which no directory is in another one.
pub struct Submissions<'a> {
    /// The submissions: several if their requests may be carried out together ([`Request::may_be_joined`]), or one.
    pub all: Vec<Submission<'a>>,
    /// Called under the lock of the head, before each attempt to replace it.
    pub before_head: &'a BeforeHead<'a>,
}

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of the revision that has the changes.
    pub revision: u64,
    /// Changed paths outside of the lease, which are not published.
    pub dropped: Vec<String>,
}

/// A commit failed. The first words are reasons of the reference.
#[derive(Debug, thiserror::Error)]
pub enum PublishFailure {
    /// Other publishers changed the same paths.
    #[error("merge_error: other publishers changed {}", paths.join(", "))]
    Conflict {
        /// The paths.
        paths: Vec<String>,
    },
    /// The head must not be replaced any more.
    #[error("invalid lease: it ended before its changes were published")]
    LeaseEnded,
    /// The storage lacks objects of the revision: they were not sent, or collected since.
    #[error("miscellaneous: {0} objects of the submitted revision are not stored; send or upload them first")]
    MissingObjects(u64),
    /// The commit can't be carried out.
    #[error("miscellaneous: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}
