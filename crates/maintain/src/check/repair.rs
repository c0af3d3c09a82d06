//! Repairs a repository: fetches objects and signed files from a mirror, rebuilds the reflog, and recounts catalogs.
//!
//! Objects are stored without the lock of the head, as publishers store them. The lock is held while a signed file or the
//! reflog is replaced, and what is wrong with these is found once more under it: a publisher may have replaced them.

use std::collections::HashSet;

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::object::ObjectName;
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::trust::ClaimedHead;
use esker_format::whitelist;
use esker_format::write::head::sign_manifest;
use esker_format::write::keys::Publisher;
use esker_format::write::reflog::ReflogDraft;
use esker_publish::{Miscounted, recount};
use esker_repository::{
    DATABASE_MAX, LOCK_WAIT, ReplicaState, Repository, RepositoryError, Storage,
    head::wait_for_lock,
    signed::{SMALL_FILE_MAX, SignedFiles, decoded_object},
    spool::REFLOG_CHECKSUM,
};
use esker_store::{LargeBytes, RealDisk, Sink, StoredFiles, Swap, persist};
use serde::Serialize;

use super::error::CheckError;
use super::finding::{Finding, FindingKind, Findings, Fix};
use super::head;
use super::options::{Check, CheckPlace, CheckReport};
use super::target::Target;
use crate::hash_lists::HashLists;
use crate::reflog::unlisted;

/// Maximum number of rounds of a repair. Each round reaches the next level of nested catalogs.
const ROUNDS_MAX: usize = 256;

/// Options of a repair.
pub struct Repair<'r> {
    /// Source of objects; without one only the reflog is repaired.
    pub from: Option<&'r dyn StoredFiles>,
    /// Publisher's key and certificate, to sign a head that names the new reflog.
    pub publisher: Option<&'r Publisher>,
    /// Opens the repository as its publisher, who puts wrong counters right by a new revision; none leaves them.
    pub open: Option<&'r dyn Fn() -> Result<Repository, RepositoryError>>,
}

/// Result of a repair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Repaired {
    /// Objects that were fetched.
    pub objects: Vec<String>,
    /// Other files that were written.
    pub files: Vec<String>,
    /// Revision that was published with right counters.
    pub recounted: Option<u64>,
    /// Findings that remain.
    pub left: CheckReport,
}

impl Repair<'_> {
    /// Checks a repository and repairs what can be repaired, until nothing more can.
    pub fn run(&self, check: &Check<'_>, place: &CheckPlace, now: UnixTime) -> Result<Repaired, CheckError> {
        self.run_in(&Storage::open(&place.root)?, check, place, now)
    }

    /// Repairs like `run`, in a storage that is open.
    pub fn run_in(
        &self,
        storage: &Storage,
        check: &Check<'_>,
        place: &CheckPlace,
        now: UnixTime,
    ) -> Result<Repaired, CheckError> {
        let sink = storage.sink();
        let mut repaired = Repaired::default();
        let mut report = check.run_in(storage, place, now)?;
        let (read_objects, read_bytes) = (report.read_objects, report.read_bytes);
        // Faults that only a check of all bytes finds are found once.
        let quick = Check {
            tag: check.tag.clone(),
            path: check.path.clone(),
            selected: check.selected.clone(),
            data: None,
            stop: check.stop.clone(),
            ..*check
        };
        let mut tried = HashSet::new();
        let mut unread: Vec<Finding> = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let before = repaired.steps();
            for finding in &report.findings {
                self.object(&**sink, finding, &mut tried, &mut repaired)?;
            }
            sink.flush()?;
            self.signed_files(storage, check, place, &report, now, &mut repaired)?;
            self.reflog(storage, check, place, &report, now, &mut repaired)?;
            self.counters(check, &report, now, &mut repaired)?;
            let is_damaged = |finding: &&Finding| {
                finding.object.as_ref().is_some_and(|object| !repaired.objects.contains(object))
                    && matches!(finding.kind, FindingKind::ObjectDamaged | FindingKind::UnusedDamaged)
            };
            unread.extend(report.findings.iter().filter(is_damaged).cloned());
            if repaired.steps() == before {
                break;
            }
            report = quick.run_in(storage, place, now)?;
        }
        for finding in unread {
            if !report
                .findings
                .iter()
                .any(|known| known.object == finding.object && known.path == finding.path)
            {
                report.findings.push(finding);
            }
        }
        (report.read_objects, report.read_bytes) = (read_objects, read_bytes);
        repaired.left = report;
        Ok(repaired)
    }

    /// Fetches the object of a finding.
    fn object(
        &self,
        sink: &dyn Sink,
        finding: &Finding,
        tried: &mut HashSet<ObjectName>,
        repaired: &mut Repaired,
    ) -> Result<(), RepositoryError> {
        let (Some(name), Some(mirror)) = (finding.name, self.from) else { return Ok(()) };
        let is_wanted = finding.fix == Fix::Fetch || finding.kind == FindingKind::UnusedDamaged;
        if !is_wanted || !tried.insert(name) {
            return Ok(());
        }
        let Some(bytes) = mirror.read(&name.path(), DATABASE_MAX)? else { return Ok(()) };
        // A mirror may be damaged in the same way.
        if ContentHash::of(name.hash.algorithm(), &bytes) != name.hash {
            return Ok(());
        }
        sink.put(&name, &bytes)?;
        repaired.objects.push(name.to_string());
        Ok(())
    }

    /// Publishes a revision with right counters, once.
    fn counters(
        &self,
        check: &Check<'_>,
        report: &CheckReport,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), CheckError> {
        let is_counter =
            |kind: FindingKind| matches!(kind, FindingKind::CountersOwn | FindingKind::CountersSubtree);
        // What is missing would be left out of the counts, and rows with faults are not written again.
        let is_unfit = |finding: &Finding| {
            let is_content = matches!(finding.kind, FindingKind::ObjectMissing | FindingKind::ObjectDamaged);
            !finding.catalogs.is_empty() && !is_counter(finding.kind) && !is_content
        };
        let Some(open) = self.open else { return Ok(()) };
        if repaired.recounted.is_some() || report.findings.iter().any(is_unfit) {
            return Ok(());
        }
        let miscounted: Vec<Miscounted> = report
            .findings
            .iter()
            .filter(|finding| is_counter(finding.kind))
            .flat_map(|finding| {
                let mountpoint = finding.path.as_deref().unwrap_or_default();
                let mountpoint = if mountpoint == "/" { "" } else { mountpoint };
                finding.catalogs.iter().map(move |hash| (mountpoint.as_bytes().to_vec(), *hash))
            })
            .collect();
        if !miscounted.is_empty() {
            repaired.recounted = recount(&open()?, &miscounted, now, &check.stop)?;
        }
        Ok(())
    }

    /// Takes signed files from the mirror if they verify.
    fn signed_files(
        &self,
        storage: &Storage,
        check: &Check<'_>,
        place: &CheckPlace,
        report: &CheckReport,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), RepositoryError> {
        let (Some(mirror), Some(keys)) = (self.from, &place.keys) else { return Ok(()) };
        if signed_files_are_bad(&report.findings) == (false, false) {
            return Ok(());
        }
        let sink = &**storage.sink();
        let is_replica = ReplicaState::read(storage.place())?.is_some();
        let _lock = wait_for_lock(storage, is_replica, (Some(LOCK_WAIT), |_| {}), &check.stop)?;
        let mut findings = Findings::default();
        head::check(&Target::Storage(storage), place, now, &mut findings, &mut Vec::new())?;
        let (manifest_is_bad, whitelist_is_bad) = signed_files_are_bad(&findings.finish().0);
        if !manifest_is_bad && !whitelist_is_bad {
            return Ok(());
        }
        let take = |path: &str, from_mirror: bool| match from_mirror {
            true => mirror.read(path, SMALL_FILE_MAX),
            false => sink.read(path, SMALL_FILE_MAX),
        };
        let manifest = take(manifest::PATH, manifest_is_bad)?;
        let whitelist = take(whitelist::PATH, whitelist_is_bad)?;
        let (Some(manifest), Some(whitelist)) = (manifest, whitelist) else { return Ok(()) };
        let Ok(claimed) = ClaimedHead::parse(&manifest) else { return Ok(()) };
        let name = claimed.certificate();
        let stored = match sink.read(&name.path(), SMALL_FILE_MAX)? {
            Some(stored) => Some(stored),
            None => mirror.read(&name.path(), SMALL_FILE_MAX)?,
        };
        let Some(stored) = stored else { return Ok(()) };
        let folder = std::env::temp_dir();
        let decoded = decoded_object(&stored, &name, None, (SMALL_FILE_MAX, &folder), "the certificate");
        let Ok(certificate) = decoded.map(LargeBytes::into_vec) else { return Ok(()) };
        let files = SignedFiles { manifest, whitelist, certificate };
        if files.verify(&place.name, keys, now).is_err() {
            return Ok(());
        }
        sink.put(&name, &stored)?;
        sink.flush()?;
        if whitelist_is_bad {
            sink.put_root(whitelist::PATH, &files.whitelist)?;
            repaired.files.push(whitelist::PATH.to_owned());
        }
        if manifest_is_bad {
            let bad = sink.read(manifest::PATH, SMALL_FILE_MAX)?;
            if sink.replace_root(manifest::PATH, &files.manifest, bad.as_deref())? == Swap::Replaced {
                repaired.files.push(manifest::PATH.to_owned());
            }
        }
        Ok(())
    }

    /// Rebuilds or completes the reflog, and updates its checksums.
    fn reflog(
        &self,
        storage: &Storage,
        check: &Check<'_>,
        place: &CheckPlace,
        report: &CheckReport,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), RepositoryError> {
        // A reflog that was written for this is right, whatever else is.
        if ReflogFaults::of(&report.findings).is_none()
            || repaired.files.iter().any(|file| file == reflog::PATH)
        {
            return Ok(());
        }
        let sink = &**storage.sink();
        // Reads all revisions that are left, so the lock is taken after it.
        let mut rebuilt = None;
        let bytes = sink.read(manifest::PATH, SMALL_FILE_MAX)?;
        if ReflogFaults::of(&report.findings).is_lost
            && let Some(head) = bytes.as_deref().and_then(|bytes| Manifest::parse(bytes).ok())
        {
            let disk = std::sync::Arc::new(RealDisk::PRIVATE);
            let lists = HashLists::new(sink, disk, None);
            rebuilt = Some(crate::reflog::rebuild(sink, &lists, &place.name, &head, now)?.finish());
        }
        let is_replica = ReplicaState::read(storage.place())?.is_some();
        let lock = wait_for_lock(storage, is_replica, (Some(LOCK_WAIT), |_| {}), &check.stop)?;
        let Some(head) = sink.read(manifest::PATH, SMALL_FILE_MAX)? else { return Ok(()) };
        let Ok(head) = Manifest::parse(&head) else { return Ok(()) };
        let mut findings = Findings::default();
        super::reflog::check(&Target::Storage(storage), place, &head, &mut findings, &mut Vec::new())?;
        let faults = ReflogFaults::of(&findings.finish().0);
        let ReflogFaults { is_lost, is_incomplete, .. } = faults;
        if faults.is_none() {
            return Ok(());
        }
        let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
        let known = stored.as_deref().and_then(|bytes| Reflog::parse(bytes).ok()).filter(|_| !is_lost);
        let bytes = match known {
            Some(known) if is_incomplete => {
                let mut draft = ReflogDraft::continuing(&known);
                complete(&mut draft, &known, &head, now);
                draft.finish()
            }
            Some(_) => stored.clone().unwrap_or_default(),
            None => {
                // It was found after the lock was taken, and the next round makes it.
                let Some(bytes) = rebuilt else { return Ok(()) };
                let known = Reflog::parse(&bytes).map_err(RepositoryError::Reflog)?;
                let mut draft = ReflogDraft::continuing(&known);
                // A publisher may have replaced the head meanwhile.
                complete(&mut draft, &known, &head, now);
                draft.finish()
            }
        };
        if lock.is_some() {
            sink.put_root(reflog::PATH, &bytes)?;
        } else if sink.replace_root(reflog::PATH, &bytes, stored.as_deref())? == Swap::Moved {
            // A publisher replaced it; the next round finds out.
            return Ok(());
        }
        repaired.files.push(reflog::PATH.to_owned());
        let hash = ContentHash::of(head.root_catalog.algorithm(), &bytes);
        if let Some(spool) = place.spool.as_ref().filter(|spool| spool.is_dir()) {
            let path = spool.join(REFLOG_CHECKSUM);
            persist(&RealDisk::SERVED, &path, hash.to_string().as_bytes())
                .map_err(RepositoryError::file("writing", &path))?;
            repaired.files.push(REFLOG_CHECKSUM.to_owned());
        }
        self.sign(sink, place, head, hash, now, repaired)
    }

    /// Signs a head that names the reflog, if the publisher is known and the head is what it signed before.
    fn sign(
        &self,
        sink: &dyn Sink,
        place: &CheckPlace,
        head: Manifest,
        reflog: ContentHash,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), RepositoryError> {
        let (Some(publisher), Some(keys)) = (self.publisher, &place.keys) else { return Ok(()) };
        let is_verified = |files: SignedFiles| files.verify(&place.name, keys, now).is_ok();
        if head.reflog == Some(reflog) || !SignedFiles::read(sink, &place.name).is_ok_and(is_verified) {
            return Ok(());
        }
        let timestamp = now.max(head.timestamp);
        let head = Manifest { reflog: Some(reflog), timestamp, ..head };
        let signed = sign_manifest(&head, publisher.key()).map_err(RepositoryError::Signing)?;
        let before = SignedFiles::read(sink, &place.name)?;
        let (published, after) = (before.manifest.clone(), SignedFiles { manifest: signed, ..before });
        // A publisher whose certificate is not the head's can't sign it.
        if after.verify(&place.name, keys, now).is_ok()
            && sink.replace_root(manifest::PATH, &after.manifest, Some(&published))? == Swap::Replaced
        {
            repaired.files.push(manifest::PATH.to_owned());
        }
        Ok(())
    }
}

impl Repaired {
    /// Returns the number of repairs so far.
    fn steps(&self) -> usize {
        self.objects.len() + self.files.len() + usize::from(self.recounted.is_some())
    }
}

/// Faults of the reflog.
#[derive(Clone, Copy)]
struct ReflogFaults {
    /// It is missing, or can't be used.
    is_lost: bool,
    /// It does not list all objects of the head.
    is_incomplete: bool,
    /// Its checksums are not those of its bytes.
    is_stale: bool,
}

impl ReflogFaults {
    fn of(findings: &[Finding]) -> Self {
        let has = |kind: FindingKind| findings.iter().any(|finding| finding.kind == kind);
        let lost = [FindingKind::ReflogMissing, FindingKind::ReflogUnreadable, FindingKind::ReflogName];
        Self {
            is_lost: lost.map(has).contains(&true),
            is_incomplete: has(FindingKind::ReflogIncomplete),
            is_stale: has(FindingKind::ReflogChecksum) || has(FindingKind::ReflogHead),
        }
    }

    fn is_none(self) -> bool {
        !self.is_lost && !self.is_incomplete && !self.is_stale
    }
}

/// Returns whether the manifest is to be replaced, and whether the whitelist is.
fn signed_files_are_bad(findings: &[Finding]) -> (bool, bool) {
    let has = |kinds: &[FindingKind]| findings.iter().any(|finding| kinds.contains(&finding.kind));
    let manifest = has(&[
        FindingKind::ManifestMissing,
        FindingKind::ManifestUnreadable,
        FindingKind::ManifestSignature,
        FindingKind::ManifestName,
    ]);
    let whitelist = has(&[
        FindingKind::WhitelistMissing,
        FindingKind::WhitelistUnreadable,
        FindingKind::WhitelistSignature,
        FindingKind::WhitelistName,
        FindingKind::WhitelistExpired,
        FindingKind::CertificateNotListed,
    ]);
    (manifest, whitelist)
}

/// Adds the objects of the head that the reflog does not list.
fn complete(draft: &mut ReflogDraft, known: &Reflog, head: &Manifest, now: UnixTime) {
    for name in unlisted(known, head) {
        draft.add(name, now);
    }
}
