//! Creates repositories, publishes revisions from folders and archives, and renews signatures.
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

mod back_off;
mod balance;
mod base;
mod branch;
mod bundles;
mod catalog_list;
mod catalogs;
mod changes;
mod check;
mod clusters;
mod collect;
mod commit;
mod condemned;
mod content_index;
mod copy_tree;
mod create;
mod dirtab;
mod disks;
mod dry;
mod encode;
mod entry;
mod entry_diff;
mod error;
mod file_content;
mod file_index;
mod filter;
mod follow_rules;
mod graft;
mod hash_lists;
mod head;
mod held_base;
mod info;
mod ingest;
mod key_folder;
mod keys;
mod kind_counts;
mod limits;
mod log;
mod object_source;
mod open_work;
mod over_limit;
mod overlay;
mod path;
mod path_changes;
mod pipeline;
mod plan;
mod private_files;
mod profiles;
mod progress;
mod publish;
mod published;
mod random;
mod recent_objects;
mod recount;
mod reflog;
mod reindex;
mod remove;
mod replica_state;
mod replicate;
mod report;
mod repository;
mod resign;
mod returning;
mod revision;
mod revisions;
mod rollback;
mod scan;
mod settings;
mod shrink;
mod signed;
mod small_archive;
mod snapshots;
mod source;
mod source_entry;
mod spool;
mod staged;
mod state;
mod status_file;
mod storage;
mod tags;
mod takeover;
mod tree_diff;
mod trigger_flags;

pub use base::BaseRevision;
pub use branch::BranchRequest;
pub use catalog_list::ListedCatalog;
pub use check::{
    Check, CheckPlace, CheckProgress, CheckReport, DataCheck, Finding, FindingKind, Fix, Mirror,
    MirrorFolder, MirrorServer, Repair, Repaired, Verdict, note_outcome,
};
pub use clusters::{Cluster, clusters, extent};
pub use collect::{
    Collect, CollectPlan, CollectProgress, Collected, Deleted, DroppedRevision, Keep, KeptRevision, Waiting,
};
pub use commit::TagRequest;
pub use copy_tree::CopyTree;
pub use create::{NewRepository, TTL, WHITELIST_DAYS, WHITELIST_DAYS_MAX};
pub use disks::Disks;
pub use encode::{Deflate, Encoder};
pub use entry_diff::Attributes;
pub use error::AdminError;
pub use file_content::file_content;
pub use filter::{Filter, OwnerMap};
pub use graft::{Graft, GraftOptions};
pub use info::{
    CertificateInfo, InfoContext, ListedRepository, Problem, ReplicaInfo, RepositoryFiles, RepositoryInfo,
    WhitelistInfo, list_repositories,
};
pub use ingest::{Ingest, Owner};
pub use key_folder::{Copied, KeyCopy, KeyFile, KeyFolder, PassphraseFor, Passphrases, is_exposed};
pub use keys::{ListedCertificate, Rotate, Rotated, SignAnswer, SignRequest, TokenKey, list_certificates};
pub use kind_counts::KindCounts;
pub use log::{Log, LogEnd, LogEntry};
pub use object_source::{ObjectSource, WantedObject};
pub use open_work::{OpenWork, TransactionFolder};
pub use over_limit::OverLimit;
pub use overlay::{PublishUpper, Upper};
pub use path_changes::PathChange;
pub use plan::Differences;
pub use profiles::{NamedProfile, Profiles};
pub use progress::{Phase, Progress};
pub use publish::Publish;
pub use reindex::{Reindexed, reindex};
pub use remove::Removal;
pub use replica_state::{ReplicaState, SkippedRevision};
pub use replicate::{Replicate, ReplicateProgress, Replicated, ReplicationPlan, Retries, RevisionLimit};
pub use report::{BundleCounts, Report, Seconds};
pub use repository::Repository;
pub use resign::{Resign, Resigned};
pub use revision::PublishOptions;
pub use revisions::{Earlier, Revision, Revisions};
pub use rollback::{Rollback, RollbackReport};
pub use settings::{
    AutomaticCollect, Balance, ChangedSetting, Limits, LongXattrs, NAMED, NamedSetting, SettingValue,
    Settings, SettingsChange, SettingsChanged, SpecialFiles,
};
pub use shrink::Shrink;
pub use small_archive::{ArchiveLimits, SmallArchiveError, files_of_archive};
pub use staged::Staged;
pub use storage::{RememberedStorage, Storage};
pub use tags::{BranchInfo, TagChange, TagInfo, TagReport};
pub use takeover::{
    ExportedConfig, Outcome, ParameterRow, ServerConf, TakenOver, Takeover, Upstream, UpstreamBucket,
    remembered_spool,
};
pub use tree_diff::{ChangeKind, DiffCounts, DiffVisitor, PathDiff, TreeDiff};
