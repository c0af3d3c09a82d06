//! Tells change from damage: repositories are published and collected while they are checked.
//!
//! A check reads the head first and the rest for up to hours. What the head and its tags named then may be collected
//! meanwhile, if later revisions replaced it. So faults count only if the head is still the one that was read; otherwise
//! they are looked for again in the newest one. Bytes that were read need not be read again, but for the damaged ones.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use esker_format::manifest;
use esker_format::time::UnixTime;
use esker_repository::{RepositoryError, signed::SMALL_FILE_MAX};

use super::error::CheckError;
use super::finding::{Finding, FindingKind};
use super::mirror::Verdict;
use super::options::{Check, CheckPlace, CheckReport};
use super::storage::BadObjects;
use super::target::Target;
use crate::hash_lists::Record;

/// Maximum number of checks of a repository that changes during each of them.
const ATTEMPTS: u32 = 4;

impl Check<'_> {
    /// Checks a repository, and checks again the findings that a change during the check may explain.
    pub(super) fn until_settled(
        &self,
        target: &Target<'_>,
        place: &CheckPlace,
        folders: (Option<&Path>, &Path),
        now: UnixTime,
    ) -> Result<CheckReport, CheckError> {
        let read_head = || target.files().read(manifest::PATH, SMALL_FILE_MAX).ok().flatten();
        let mut head = read_head();
        let mut report = self.run_on(target, place, folders, BadObjects::new(), now)?;
        self.refuse_interrupted()?;
        let (read_objects, read_bytes) = (report.read_objects, report.read_bytes);
        let quick = Check {
            tag: self.tag.clone(),
            path: self.path.clone(),
            selected: self.selected.clone(),
            data: None,
            stop: self.stop.clone(),
            ..*self
        };
        for attempt in 1.. {
            let newest = read_head();
            if report.findings.is_empty() || newest == head {
                break;
            }
            head = newest;
            let damaged = still_damaged(target, &report.findings)?;
            let before: HashSet<Identity> = report.findings.iter().map(identity).collect();
            report = quick.run_on(target, place, folders, damaged, now)?;
            self.refuse_interrupted()?;
            if attempt >= ATTEMPTS {
                // What vanished during one check is not named in the next one, which read a later head.
                report.findings.retain(|finding| before.contains(&identity(finding)));
                break;
            }
        }
        (report.read_objects, report.read_bytes) = (read_objects, read_bytes);
        Ok(report)
    }

    /// Fails once the caller wants to stop: what could not be read since then is no fault.
    fn refuse_interrupted(&self) -> Result<(), RepositoryError> {
        if self.stop.load(Ordering::Relaxed) { Err(RepositoryError::Interrupted) } else { Ok(()) }
    }
}

type Identity = (FindingKind, Option<String>, Option<String>);

fn identity(finding: &Finding) -> Identity {
    (finding.kind, finding.object.clone(), finding.path.clone())
}

/// Reads the damaged objects of findings again; one that was collected meanwhile is no fault.
fn still_damaged(target: &Target<'_>, findings: &[Finding]) -> Result<BadObjects, RepositoryError> {
    let is_of_data =
        |kind: FindingKind| matches!(kind, FindingKind::ObjectDamaged | FindingKind::UnusedDamaged);
    let mut damaged = BadObjects::new();
    for name in findings.iter().filter(|one| is_of_data(one.kind)).filter_map(|one| one.name) {
        if let Verdict::Bad(detail) = target.verify(&name)? {
            damaged.insert(Record::of(&name), (FindingKind::ObjectDamaged, detail));
        }
    }
    Ok(damaged)
}
