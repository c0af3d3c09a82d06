//! Runs the parts of a check one after the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::history::Tag;
use esker_format::manifest;
use esker_format::time::UnixTime;
use esker_repository::{ReplicaState, RepositoryError, Storage, state};
use esker_store::RealDisk;

use super::catalogs::Catalogs;
use super::error::CheckError;
use super::finding::Findings;
use super::mirror::Mirror;
use super::options::{Check, CheckPlace, CheckReport};
use super::storage::BadObjects;
use super::target::Target;
use super::{head, history, paths, reflog, remote, scrub, storage};
use crate::hash_lists::HashLists;
use crate::tags::tags_here;

impl Check<'_> {
    /// Checks a repository in a folder or in object storage.
    pub fn run(&self, place: &CheckPlace, now: UnixTime) -> Result<CheckReport, CheckError> {
        self.run_in(&Storage::open(&place.root)?, place, now)
    }

    /// Checks like `run`, in a storage that is open.
    pub fn run_in(
        &self,
        storage: &Storage,
        place: &CheckPlace,
        now: UnixTime,
    ) -> Result<CheckReport, CheckError> {
        let target = Target::Storage(storage);
        let state = Some(state::folder(&place.root)).filter(|state| state.is_dir());
        let scratch = tempfile_folder(state.as_deref());
        self.until_settled(&target, place, (state.as_deref(), &scratch), now)
    }

    /// Checks a repository on a server; a server that can't be reached is an error. Notes are kept in a folder of the
    /// caller.
    pub fn run_remote(
        &self,
        server: &dyn Mirror,
        place: &CheckPlace,
        scratch: &Path,
        now: UnixTime,
    ) -> Result<CheckReport, CheckError> {
        server.presence(manifest::PATH)?;
        let target = Target::Server(server);
        self.until_settled(&target, place, (Some(scratch), scratch), now)
    }

    /// Runs all parts once. `damaged` objects were read before.
    pub(super) fn run_on(
        &self,
        target: &Target<'_>,
        place: &CheckPlace,
        (state, scratch): (Option<&Path>, &Path),
        damaged: BadObjects,
        now: UnixTime,
    ) -> Result<CheckReport, CheckError> {
        let files = target.files();
        let disk = Arc::new(RealDisk::PRIVATE);
        let lists = HashLists::new(files, disk.clone(), state);
        let mut findings = Findings::default();
        let mut report = CheckReport::default();
        if let Some(head) = head::check(target, place, now, &mut findings, &mut report.notes)? {
            report.revision = Some(head.revision);
            let mut tags = history::check(files, place, &head, &mut findings);
            leave_out_tags(target, &mut tags, &mut report.notes)?;
            reflog::check(target, place, &head, &mut findings, &mut report.notes)?;
            let catalogs = Catalogs::check(self, files, &lists, (&head, &tags), &mut findings)?;
            report.revisions = catalogs.roots.len() as u64;
            report.catalogs = catalogs.known.len() as u64;
            report.entries = catalogs.entries;
            report.notes.extend(catalogs.notes());
            let named = catalogs.objects(self, files, &lists, (disk.clone(), scratch))?;
            report.objects = named.len();
            let mut bad = match (target, &self.data) {
                (Target::Storage(storage), _) => match storage.sink().folder() {
                    Some(folder) => storage::missing(self, folder, &named)?,
                    None => storage::missing_listed(self, &**storage.sink(), &named, (disk, scratch))?,
                },
                (Target::Server(server), None) => remote::missing(self, *server, &named)?,
                // Each object is read.
                (Target::Server(_), Some(_)) => BadObjects::new(),
            };
            if let Some(options) = &self.data {
                let read = scrub::check(self, target, options, (&head, &named), &mut findings)?;
                (report.read_objects, report.read_bytes) = (read.objects, read.bytes);
                for (record, fault) in read.bad {
                    bad.entry(record).or_insert(fault);
                }
            }
            bad.extend(damaged);
            paths::name(self, files, &lists, &catalogs, &bad, &mut findings)?;
        }
        (report.findings, report.more) = findings.finish();
        Ok(report)
    }
}

/// Leaves out the tags whose revisions a replica does not have.
fn leave_out_tags(
    target: &Target<'_>,
    tags: &mut Vec<Tag>,
    notes: &mut Vec<String>,
) -> Result<(), RepositoryError> {
    let Target::Storage(storage) = target else { return Ok(()) };
    if ReplicaState::read(storage.place())?.is_none() {
        return Ok(());
    }
    let before = tags.len();
    *tags = tags_here(&**storage.sink(), std::mem::take(tags))?;
    let left_out = before - tags.len();
    if left_out > 0 {
        notes.push(format!("the revisions of {left_out} tags are not on this replica"));
    }
    Ok(())
}

/// Returns the folder for sorted runs: the publisher's state, or else the one for temporary files.
fn tempfile_folder(state: Option<&Path>) -> PathBuf {
    let is_ours = |state: &&Path| rustix::fs::access(*state, rustix::fs::Access::WRITE_OK).is_ok();
    state.filter(is_ours).map_or_else(std::env::temp_dir, ToOwned::to_owned)
}
