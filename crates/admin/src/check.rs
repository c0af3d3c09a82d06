//! Checks a repository in a folder, and repairs it from a mirror.
//!
//! ```text
//! head: signatures, whitelist, certificate ─► history, reflog ─► catalogs: rows, counters, mountpoints
//!                                                                  └─ lists ─► storage: presence, with `data` all bytes
//! ```
//!
//! A fault never ends a check: it becomes a [`Finding`], and what depends on it is left out. Nothing is written but
//! lists of hashes, and those only into a publisher's state folder that is there already.

mod catalog;
mod catalogs;
mod counters;
mod data;
mod entries;
mod finding;
mod head;
mod history;
mod mirror;
mod paths;
mod reflog;
mod repair;
mod storage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_store::{LocalSink, RealDisk};
use serde::Serialize;

pub use finding::{Finding, FindingKind, Fix};
pub use mirror::{Mirror, MirrorFolder, MirrorServer};
pub use repair::{Repair, Repaired};

use crate::error::AdminError;
use crate::hash_lists::HashLists;
use catalogs::Catalogs;
use finding::Findings;

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
    /// Looks for objects in the storage.
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

/// How every byte is read.
#[derive(Clone, Debug, Default)]
pub struct DataCheck {
    /// Most bytes a second; none is no limit.
    pub rate: Option<u64>,
    /// File that remembers how far an interrupted check was.
    pub resume: Option<PathBuf>,
}

/// How a repository is checked.
pub struct Check<'c> {
    /// Only the revision with this tag; none is the head and all tagged revisions.
    pub tag: Option<String>,
    /// Only the entries at and below this path.
    pub path: Option<Vec<u8>>,
    /// Reads every object and compares it with its name.
    pub data: Option<DataCheck>,
    /// Number of threads.
    pub threads: usize,
    /// Records that are sorted in memory, 25 bytes each.
    pub buffer: usize,
    /// Set to stop early.
    pub stop: Arc<AtomicBool>,
    /// Told now and then how far it is.
    pub progress: &'c (dyn Fn(CheckProgress) + Sync),
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// Findings beyond the first [`Findings::MAX`], which are counted only.
    pub more: u64,
    /// What could not be checked, and why.
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
    /// Their bytes.
    pub read_bytes: u64,
}

impl<'c> Check<'c> {
    /// Returns a check of the head and all tagged revisions.
    pub fn new(progress: &'c (dyn Fn(CheckProgress) + Sync)) -> Self {
        Self {
            tag: None,
            path: None,
            data: None,
            threads: 1,
            buffer: crate::hash_lists::sorter::RECORDS,
            stop: Arc::new(AtomicBool::new(false)),
            progress,
        }
    }

    /// Checks a repository.
    pub fn run(&self, place: &CheckPlace, now: UnixTime) -> Result<CheckReport, AdminError> {
        let sink = LocalSink::open(&place.root);
        let state = Some(crate::state::folder(&place.root)).filter(|state| state.is_dir());
        let disk = Arc::new(RealDisk::PRIVATE);
        let lists = HashLists::new(&sink, disk.clone(), state.as_deref());
        let mut findings = Findings::default();
        let mut report = CheckReport::default();
        if let Some(head) = head::check(&sink, place, now, &mut findings, &mut report.notes) {
            report.revision = Some(head.revision);
            let tags = history::check(&sink, place, &head, &mut findings);
            reflog::check(&sink, place, &head, &mut findings)?;
            let catalogs = Catalogs::check(self, &sink, &lists, (&head, &tags), &mut findings)?;
            report.revisions = catalogs.roots.len() as u64;
            report.catalogs = catalogs.known.len() as u64;
            report.entries = catalogs.entries;
            let scratch = tempfile_folder(state.as_deref());
            let named = catalogs.objects(self, &sink, &lists, (disk, &scratch))?;
            report.objects = named.len();
            let mut bad = storage::missing(self, &sink, &named)?;
            if let Some(options) = &self.data {
                let read = data::check(self, &sink, options, &head, &mut findings)?;
                (report.read_objects, report.read_bytes) = (read.objects, read.bytes);
                bad.extend(read.damaged);
            }
            paths::name(self, &sink, &lists, &catalogs, &bad, &mut findings)?;
        }
        (report.findings, report.more) = findings.finish();
        Ok(report)
    }
}

impl Check<'_> {
    /// Returns true if a path is at or below the requested one.
    fn is_within(&self, path: &[u8]) -> bool {
        self.path.as_ref().is_none_or(|wanted| crate::path::is_within(path, wanted))
    }

    /// Returns true if a path is at, below or above the requested one.
    fn is_near(&self, path: &[u8]) -> bool {
        self.is_within(path) || self.path.as_ref().is_some_and(|wanted| crate::path::is_within(wanted, path))
    }
}

/// Returns the folder for sorted runs: the publisher's state, or else the one for temporary files.
fn tempfile_folder(state: Option<&std::path::Path>) -> PathBuf {
    let is_ours = |state: &&std::path::Path| rustix::fs::access(*state, rustix::fs::Access::WRITE_OK).is_ok();
    state.filter(is_ours).map_or_else(std::env::temp_dir, ToOwned::to_owned)
}
