//! Runs the parts of a check one after the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::time::UnixTime;
use esker_store::{LocalSink, RealDisk};

use super::catalogs::Catalogs;
use super::finding::Findings;
use super::options::{Check, CheckPlace, CheckReport};
use super::{data, head, history, paths, reflog, storage};
use crate::error::AdminError;
use crate::hash_lists::HashLists;
use crate::state;

impl Check<'_> {
    /// Checks a repository.
    pub fn run(&self, place: &CheckPlace, now: UnixTime) -> Result<CheckReport, AdminError> {
        let sink = LocalSink::open(&place.root);
        let state = Some(state::folder(&place.root)).filter(|state| state.is_dir());
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
                for (record, fault) in read.damaged {
                    bad.entry(record).or_insert(fault);
                }
            }
            paths::name(self, &sink, &lists, &catalogs, &bad, &mut findings)?;
        }
        (report.findings, report.more) = findings.finish();
        Ok(report)
    }
}

/// Returns the folder for sorted runs: the publisher's state, or else the one for temporary files.
fn tempfile_folder(state: Option<&Path>) -> PathBuf {
    let is_ours = |state: &&Path| rustix::fs::access(*state, rustix::fs::Access::WRITE_OK).is_ok();
    state.filter(is_ours).map_or_else(std::env::temp_dir, ToOwned::to_owned)
}
