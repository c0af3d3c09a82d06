//! Defines the options and the result of a check.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use serde::Serialize;

use super::finding::Finding;

/// A repository to check.
#[derive(Clone, Debug)]
pub struct CheckPlace {
    /// Folder of the repository.
    pub root: PathBuf,
    /// Its name.
    pub name: RepositoryName,
    /// Public keys of its owner; without any, signatures of the whitelist can't be verified.
    pub keys: Option<MasterKeys>,
    /// Folder of CernVM-FS's state, which has the checksum of the reflog.
    pub spool: Option<PathBuf>,
}

/// Phase of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckProgress {
    /// Reads catalogs.
    Catalogs {
        /// Catalogs read so far.
        done: u64,
    },
    /// Checks that objects are in the storage.
    Presence {
        /// Objects that are looked for.
        objects: u64,
    },
    /// Reads objects.
    Data {
        /// Bytes read so far.
        bytes: u64,
        /// Folders of the storage that are done, of 256.
        folders: u64,
    },
}

/// Options of the check that reads every byte.
#[derive(Clone, Debug, Default)]
pub struct DataCheck {
    /// Maximum rate in bytes per second; `None` is no limit.
    pub rate: Option<u64>,
    /// File that remembers how far an interrupted check was.
    pub resume: Option<PathBuf>,
}

/// Options of a check.
pub struct Check<'c> {
    /// Only the revision with this tag; none is the head and all tagged revisions.
    pub tag: Option<String>,
    /// Only the entries at and below this path.
    pub path: Option<Vec<u8>>,
    /// Paths of a partial replica, whose other catalogs are elsewhere; empty for a whole repository.
    pub selected: Vec<Vec<u8>>,
    /// Reads every object and compares it with its name.
    pub data: Option<DataCheck>,
    /// Number of threads.
    pub threads: usize,
    /// Records that are sorted in memory, 25 bytes each.
    pub buffer: usize,
    /// Set to stop early.
    pub stop: Arc<AtomicBool>,
    /// Called from time to time with the progress.
    pub progress: &'c (dyn Fn(CheckProgress) + Sync),
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// Findings beyond the first 100,000, which are counted only.
    pub more: u64,
    /// Parts that could not be checked, with the reasons.
    pub notes: Vec<String>,
    /// Revision of the head; none if the head can't be read.
    pub revision: Option<u64>,
    /// Number of checked revisions.
    pub revisions: u64,
    /// Number of checked catalogs.
    pub catalogs: u64,
    /// Number of checked entries.
    pub entries: u64,
    /// Number of objects that were looked for.
    pub objects: u64,
    /// Objects that were read as a whole.
    pub read_objects: u64,
    /// Number of bytes of the read objects.
    pub read_bytes: u64,
}

impl<'c> Check<'c> {
    /// Returns a check of the head and all tagged revisions.
    pub fn new(progress: &'c (dyn Fn(CheckProgress) + Sync)) -> Self {
        Self {
            tag: None,
            path: None,
            selected: Vec::new(),
            data: None,
            threads: 1,
            buffer: crate::hash_lists::sorter::RECORDS,
            stop: Arc::new(AtomicBool::new(false)),
            progress,
        }
    }
}

impl Check<'_> {
    /// Returns true if a path is at or below the requested one.
    pub(super) fn is_within(&self, path: &[u8]) -> bool {
        self.path.as_ref().is_none_or(|wanted| esker_repository::path::is_within(path, wanted))
    }

    /// Returns true if a path is at, below or above the requested one.
    pub(super) fn is_near(&self, path: &[u8]) -> bool {
        self.is_within(path)
            || self.path.as_ref().is_some_and(|wanted| esker_repository::path::is_within(wanted, path))
    }
}
