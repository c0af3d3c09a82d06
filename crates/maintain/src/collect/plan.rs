//! Plan of a collect.

use esker_format::hash::ContentHash;
use esker_repository::OpenWork;
use serde::{Serialize, Serializer};

/// Revisions and objects that a collect keeps and deletes, with the reasons.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CollectPlan {
    /// Revision of the head.
    pub revision: u64,
    /// Number of kept revisions.
    pub kept: u64,
    /// Dropped revisions, oldest first.
    pub dropped: Vec<DroppedRevision>,
    /// Automatic tags that are removed, since they are too old.
    pub tags_removed: Vec<String>,
    /// Certificates, histories and descriptions that go with the dropped revisions.
    pub auxiliary: u64,
    /// Objects that only dropped revisions name, and that the storage has.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Objects among them that no revision names.
    pub orphans: u64,
    /// Open work whose base revisions are kept.
    pub open: Vec<OpenWork>,
    /// Kept revisions that alone hold the most bytes; only in a dry run.
    pub largest: Vec<KeptRevision>,
    /// Condemned objects of an earlier collect.
    pub waiting: Option<Waiting>,
    /// Faults that did not stop the collect.
    pub warnings: Vec<String>,
}

/// A dropped revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DroppedRevision {
    /// Its number; none if its root catalog is gone already.
    pub revision: Option<u64>,
    /// Time at which its root catalog was added, in seconds since 1970.
    pub time: i64,
    /// Hash of its root catalog.
    #[serde(serialize_with = "as_text")]
    pub root: ContentHash,
}

/// A kept revision, and the objects that only it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRevision {
    /// Number of the revision.
    pub revision: u64,
    /// Hash of its root catalog.
    #[serde(serialize_with = "as_text")]
    pub root: ContentHash,
    /// Tags of the revision; empty if its age or number keeps it.
    pub tags: Vec<String>,
    /// Objects that no other kept revision names.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// Condemned objects that wait for their deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Number of objects.
    pub objects: u64,
    /// Time at which they were condemned, in seconds since 1970.
    pub since: i64,
    /// Time from which a collect deletes them.
    pub until: i64,
}

fn as_text<S: Serializer>(hash: &ContentHash, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(hash)
}
