//! Log of deleted objects, in the form of the reference: a name a line between comments with times and causes.
//!
//! ```text
//! # 2026-01-31T12:00:00Z condemned 3 objects: revision 4 (7d5e…) is not kept; 1 of them without a revision
//! # Garbage Collection started at Sat Jan 31 13:00:00 UTC 2026
//! 2c0a…C
//! # Garbage Collection finished at Sat Jan 31 13:00:02 UTC 2026
//! ```
//!
//! Names are written durably before their objects are deleted, so none is missing; after a crash the next collect repeats
//! the names of the batch that was interrupted.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_repository::RepositoryError;
use esker_store::open_log;
use parking_lot::Mutex;

use super::CollectPlan;
use super::status_file::date;

/// An open deletion log.
pub(super) struct DeletionLog {
    path: PathBuf,
    file: File,
    now: UnixTime,
    /// True between the lines that begin and end the deletion.
    begun: Mutex<bool>,
}

impl DeletionLog {
    /// Opens a log to append to, and creates a missing one.
    pub(super) fn open(path: &Path, now: UnixTime) -> Result<Self, RepositoryError> {
        let file = open_log(path).map_err(RepositoryError::file("opening the deletion log", path))?;
        Ok(Self { path: path.to_owned(), file, now, begun: Mutex::new(false) })
    }

    /// Notes what was condemned, and why.
    pub(super) fn condemned(&self, plan: &CollectPlan) -> Result<(), RepositoryError> {
        let mut text = format!("# {} condemned {} objects:", self.now, plan.objects);
        for dropped in &plan.dropped {
            let number = dropped.revision.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
            text.push_str(&format!(" revision {number} ({}) is not kept;", dropped.root));
        }
        if plan.auxiliary > 0 {
            let count = plan.auxiliary;
            text.push_str(&format!(" {count} histories, certificates and descriptions of such revisions;"));
        }
        if plan.orphans > 0 {
            text.push_str(&format!(" {} of them without a revision;", plan.orphans));
        }
        text.pop();
        text.push('\n');
        self.append(&text)
    }

    /// Logs objects before they are deleted.
    pub(super) fn deletes(&self, objects: &[ObjectName]) -> Result<(), RepositoryError> {
        let mut text = String::new();
        if !std::mem::replace(&mut *self.begun.lock(), true) {
            text = format!("# Garbage Collection started at {}\n", date(self.now));
        }
        for object in objects {
            text.push_str(&format!("{object}\n"));
        }
        self.append(&text)
    }

    /// Notes the end of the deletion, if it began.
    pub(super) fn finish(&self) -> Result<(), RepositoryError> {
        if !std::mem::replace(&mut *self.begun.lock(), false) {
            return Ok(());
        }
        self.append(&format!("# Garbage Collection finished at {}\n\n", date(self.now)))
    }

    fn append(&self, text: &str) -> Result<(), RepositoryError> {
        let written = (&self.file).write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(RepositoryError::file("writing the deletion log", &self.path))
    }
}
