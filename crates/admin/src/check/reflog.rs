//! The reflog and its checksums.

use std::fs;

use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};

use super::finding::{Finding, FindingKind, Findings};
use super::options::CheckPlace;
use super::target::Target;
use crate::error::AdminError;
use crate::repository::DATABASE_MAX;
use crate::spool::REFLOG_CHECKSUM;

/// Checks the reflog.
pub(super) fn check(
    target: &Target<'_>,
    place: &CheckPlace,
    head: &Manifest,
    findings: &mut Findings,
) -> Result<(), AdminError> {
    let sink = target.sink();
    let mut fault = |kind, detail: String| findings.add(Finding::new(kind, detail));
    // Without CernVM-FS on the machine there is no such folder.
    let spool = place.spool.as_ref().filter(|spool| spool.is_dir());
    let checksum = spool.map(|spool| spool.join(REFLOG_CHECKSUM));
    let checksum = checksum.and_then(|path| fs::read_to_string(path).ok());
    let Some(bytes) = sink.read(reflog::PATH, DATABASE_MAX)? else {
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
    let named = [
        (Some(head.root_catalog), ObjectKind::Catalog),
        (head.certificate, ObjectKind::Certificate),
        (head.history, ObjectKind::History),
        (head.metainfo, ObjectKind::Metainfo),
    ];
    for name in named.into_iter().filter_map(|(hash, kind)| Some(ObjectName::new(hash?, kind))) {
        if reflog.references().iter().all(|listed| listed.object != name) {
            let detail = format!("the reflog does not list the {} of the head", name.kind);
            findings.add(Finding::new(FindingKind::ReflogIncomplete, detail).object(name));
        }
    }
    Ok(())
}
