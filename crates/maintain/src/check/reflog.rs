//! The reflog and its checksums.

use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::reflog::{self, Reflog};
use esker_repository::{
    DATABASE_MAX, Disks, RepositoryError,
    head::pending,
    signed::SMALL_FILE_MAX,
    spool::{self, REFLOG_CHECKSUM},
    state,
};

use super::finding::{Finding, FindingKind, Findings};
use super::options::CheckPlace;
use super::target::Target;
use crate::reflog::unlisted;

/// Returns true if a publisher may have written the reflog and not yet the head.
fn is_being_replaced(place: &CheckPlace) -> bool {
    pending::path(&state::folder(&place.root)).exists()
}

/// Maximum number of reads of head and reflog while a publisher replaces them, and their interval.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of attempts while no publisher is seen to replace them.
const BLIND_ATTEMPTS: u32 = 2;

/// Checks the reflog.
pub(super) fn check(
    target: &Target<'_>,
    place: &CheckPlace,
    head: &Manifest,
    findings: &mut Findings,
    notes: &mut Vec<String>,
) -> Result<(), RepositoryError> {
    let files = target.files();
    // Both are replaced one after the other, so a pair that doesn't match may be the moment between.
    let mut newest = head.clone();
    for attempt in 0..ATTEMPTS {
        let bytes = files.read(reflog::PATH, DATABASE_MAX)?;
        let signed = files.read(manifest::PATH, SMALL_FILE_MAX)?;
        if let Some(head) = signed.and_then(|signed| Manifest::parse(&signed).ok()) {
            newest = head;
        }
        let hash = bytes.map(|bytes| ContentHash::of(newest.root_catalog.algorithm(), &bytes));
        if newest.reflog.is_none() || hash.is_none() || hash == newest.reflog {
            break;
        }
        // Otherwise, this is how a killed one left it, or damage; but not every user sees what publishers note.
        if attempt >= BLIND_ATTEMPTS && !is_being_replaced(place) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let head = &newest;
    if let Some(named) = head.reflog
        && pending::is_interrupted(&*Disks::default().private, &state::folder(&place.root), files, named)?
    {
        notes.push(
            "a publish was interrupted between reflog and head; the next command that opens the repository for \
             publishing puts the reflog right"
                .to_owned(),
        );
        return Ok(());
    }
    let mut fault = |kind, detail: String| findings.add(Finding::new(kind, detail));
    // Without CernVM-FS on the machine there is no such folder.
    let spool = place.spool.as_ref().filter(|spool| spool.is_dir());
    let checksum = spool.map(|spool| spool.join(REFLOG_CHECKSUM));
    let checksum = checksum.and_then(|path| spool::recorded(&path));
    let Some(bytes) = files.read(reflog::PATH, DATABASE_MAX)? else {
        // Storage that was never collectable may do without.
        if head.reflog.is_some() || checksum.is_some() || head.garbage_collectable {
            fault(FindingKind::ReflogMissing, format!("there is no file {}", reflog::PATH));
        }
        return Ok(());
    };
    let actual = ContentHash::of(head.root_catalog.algorithm(), &bytes);
    let is_recorded = checksum.as_ref().is_some_and(|text| text.trim() == actual.to_string());
    match checksum {
        Some(text) if !is_recorded => {
            let detail = format!("{REFLOG_CHECKSUM} has `{}`, the reflog is {actual}", text.trim());
            fault(FindingKind::ReflogChecksum, detail);
        }
        None if spool.is_some() => {
            fault(FindingKind::ReflogChecksum, format!("there is no {REFLOG_CHECKSUM} for the reflog"));
        }
        _ => {}
    }
    // The head of a replica names the reflog of its source. CernVM-FS records the reflog of a collect in its spool folder
    // and signs no head for it.
    let is_source = target.exists(".cvmfs_master_replica")?;
    if is_source && !is_recorded && head.reflog.is_some_and(|named| named != actual) {
        let detail =
            format!("the manifest names another reflog than {actual}, as after a collect of CernVM-FS");
        fault(FindingKind::ReflogHead, detail);
    }
    let reflog = match Reflog::parse(&bytes) {
        Ok(reflog) => reflog,
        Err(error) => {
            fault(FindingKind::ReflogUnreadable, error.to_string());
            return Ok(());
        }
    };
    if *reflog.name() != place.name {
        fault(FindingKind::ReflogName, format!("the reflog is of `{}`", reflog.name()));
    }
    for name in unlisted(&reflog, head) {
        let detail = format!("the reflog does not list the {} of the head", name.kind);
        findings.add(Finding::new(FindingKind::ReflogIncomplete, detail).object(name));
    }
    Ok(())
}
