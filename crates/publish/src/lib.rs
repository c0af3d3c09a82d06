//! Publishes revisions from folders, archives and transactions, and changes which of them are named.
//!
//! ```text
//!   source folder ─► scan ─► Plan ─► pipeline: read, cut, compress, hash, put ─► catalogs ─► history, reflog, head
//!                     ▲                                                             ▲
//!                     └── published catalogs, index of source files                 └── nested catalogs are decided
//! ```
//!
//! Publishing plans first and then acts: the plan says what differs, and `--dry-run` stops there. The head is
//! written last, so that whatever happens before, readers have the last revision, whole.
#![deny(unsafe_code)]

mod balance;
mod base;
mod build_folder;
mod bundles;
mod catalogs;
mod changes;
mod choices;
mod clusters;
mod commit;
mod content_index;
mod copy_tree;
mod dirtab;
mod error;
mod file_index;
mod filter;
mod follow_rules;
mod graft;
mod ingest;
mod limits;
mod over_limit;
mod overlay;
mod path_changes;
mod pipeline;
mod plan;
mod private_files;
mod profiles;
mod progress;
mod publish;
mod recount;
mod reindex;
mod remarks;
mod remove_paths;
mod report;
mod revision;
mod revived_objects;
mod rollback;
mod scan;
mod shrink;
mod small_archive;
mod snapshots;
mod source;
mod source_entry;
mod staged;
mod submission;
mod submission_rules;
mod submissions;
mod tags;
mod tidy;
mod trigger_flags;

pub use base::BaseRevision;
pub use choices::{Choices, Resolved, Side};
pub use clusters::{Cluster, clusters, extent};
pub use commit::TagRequest;
pub use copy_tree::CopyTree;
pub use error::PublishError;
pub use filter::{Filter, OwnerMap};
pub use graft::{Graft, GraftOptions};
pub use ingest::{Ingest, Owner};
pub use over_limit::OverLimit;
pub use overlay::{Compared, FileSide, PublishUpper, Upper};
pub use path_changes::PathChange;
pub use plan::Differences;
pub use profiles::{NamedProfile, Profiles};
pub use progress::{Phase, Progress};
pub use publish::Publish;
pub use recount::{Miscounted, recount};
pub use reindex::{Reindexed, reindex};
pub use remarks::{Remark, RemarkKind};
pub use remove_paths::RemovePaths;
pub use report::{BundleCounts, Report, Seconds};
pub use revision::PublishOptions;
pub use rollback::{Rollback, RollbackReport};
pub use shrink::Shrink;
pub use small_archive::{ArchiveLimits, SmallArchiveError, files_of_archive};
pub use staged::Staged;
pub use submission::{Submission, Submitted, is_revision};
pub use submission_rules::{BeforeHead, SubmissionRules};
pub use submissions::Submissions;
pub use tags::{BranchInfo, TagChange, TagInfo, TagReport};
