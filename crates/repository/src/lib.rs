//! Opens repositories: storage, signed head and its lock, settings, keys, and published revisions with their differences.
//!
//! Any number of processes may have a repository open. They exclude each other only while one of them replaces the head
//! ([`head`]); the crates that publish and maintain repositories end in that step.
#![deny(unsafe_code)]

mod back_off;
mod branch;
mod catalog_list;
pub mod condemned;
mod create;
mod disks;
mod encode;
pub mod entry;
mod entry_diff;
mod error;
mod file_content;
mod gateway;
pub mod head;
mod held_base;
mod key_folder;
mod kind_counts;
mod log;
mod object_source;
mod open_work;
mod owner_file;
pub mod parallel;
pub mod path;
pub mod published;
pub mod random;
mod recent_objects;
pub mod replica_state;
mod repository;
pub mod reserve;
mod revisions;
mod served_files;
mod served_sink;
pub mod settings;
mod settings_change;
pub mod signed;
pub mod spool;
pub mod state;
mod storage;
mod temporary;
mod tree_diff;

pub use back_off::BackOff;
pub use branch::{BranchHead, BranchRequest};
pub use catalog_list::ListedCatalog;
pub use create::{MASTER_REPLICA, NewRepository, WHITELIST_DAYS, WHITELIST_DAYS_MAX};
pub use disks::Disks;
pub use encode::{Deflate, Encoder};
pub use entry_diff::Attributes;
pub use error::RepositoryError;
pub use file_content::file_content;
pub use gateway::{BuiltRevision, GatewayCommit, GatewayFailure, GatewaySession};
pub use key_folder::{
    Copied, KeyCopy, KeyFile, KeyFolder, NEXT_CERTIFICATE, PassphraseFor, Passphrases, TokenKey, is_exposed,
};
pub use kind_counts::KindCounts;
pub use log::{Log, LogEnd, LogEntry};
pub use object_source::{ObjectSource, WantedObject};
pub use open_work::{OpenWork, TransactionFolder};
pub use replica_state::{ReplicaState, SkippedRevision};
pub use repository::{Base, DATABASE_MAX, HISTORY_MAX, LOCK_WAIT, ReadHead, Repository};
pub use revisions::{Earlier, Revision, Revisions};
pub use served_files::{ServedFiles, temporary_files};
pub use settings::{
    AutomaticCollect, Balance, Limits, LongXattrs, NAMED, NamedSetting, SettingValue, Settings, SpecialFiles,
    TTL,
};
pub use settings_change::{ChangedSetting, SettingsChange, SettingsChanged, SettingsError};
pub use storage::{OpenStorage, RememberedGateway, RememberedStorage, Storage};
pub use temporary::set_temporary_folder;
pub use tree_diff::{ChangeKind, DiffCounts, DiffVisitor, PathDiff, TreeDiff};
