//! Repairs a repository: fetches objects and signed files from a mirror, and rebuilds the reflog.

use std::collections::HashSet;

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::trust::ClaimedHead;
use esker_format::whitelist;
use esker_format::write::head::sign_manifest;
use esker_format::write::keys::Publisher;
use esker_format::write::reflog::ReflogDraft;
use esker_store::{LocalSink, RealDisk, Sink as _, persist};
use serde::Serialize;

use super::finding::{Finding, FindingKind, Fix};
use super::mirror::Mirror;
use super::options::{Check, CheckPlace, CheckReport};
use crate::error::AdminError;
use crate::hash_lists::HashLists;
use crate::repository::DATABASE_MAX;
use crate::signed::{SMALL_FILE_MAX, SignedFiles, decoded_object};
use crate::spool::REFLOG_CHECKSUM;

/// Catalogs that are nested deeper than this are not repaired in one run: each round finds the next level.
const ROUNDS_MAX: usize = 256;

/// How a repository is repaired.
pub struct Repair<'r> {
    /// Source of objects; without one only the reflog is repaired.
    pub from: Option<&'r dyn Mirror>,
    /// Publisher's key and certificate, to sign a head that names the new reflog.
    pub publisher: Option<&'r Publisher>,
}

/// Result of a repair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Repaired {
    /// Objects that were fetched.
    pub objects: Vec<String>,
    /// Other files that were written.
    pub files: Vec<String>,
    /// Findings that remain.
    pub left: CheckReport,
}

impl Repair<'_> {
    /// Checks a repository and repairs what can be repaired, until nothing more can.
    pub fn run(&self, check: &Check<'_>, place: &CheckPlace, now: UnixTime) -> Result<Repaired, AdminError> {
        let sink = LocalSink::open(&place.root);
        let _lock = sink.lock()?.or_held(AdminError::locked(sink.describe()))?;
        let mut repaired = Repaired::default();
        let mut report = check.run(place, now)?;
        let (read_objects, read_bytes) = (report.read_objects, report.read_bytes);
        // Faults that only a check of all bytes finds are found once.
        let quick = Check {
            tag: check.tag.clone(),
            path: check.path.clone(),
            data: None,
            stop: check.stop.clone(),
            ..*check
        };
        let mut tried = HashSet::new();
        let mut unread: Vec<Finding> = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let before = repaired.objects.len() + repaired.files.len();
            for finding in &report.findings {
                self.object(&sink, finding, &mut tried, &mut repaired)?;
            }
            sink.flush()?;
            self.signed_files(&sink, place, &report, now, &mut repaired)?;
            self.reflog(&sink, place, &report, now, &mut repaired)?;
            let is_damaged = |finding: &&Finding| {
                finding.object.as_ref().is_some_and(|object| !repaired.objects.contains(object))
                    && matches!(finding.kind, FindingKind::ObjectDamaged | FindingKind::UnusedDamaged)
            };
            unread.extend(report.findings.iter().filter(is_damaged).cloned());
            if repaired.objects.len() + repaired.files.len() == before {
                break;
            }
            report = quick.run(place, now)?;
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
        sink: &LocalSink,
        finding: &Finding,
        tried: &mut HashSet<ObjectName>,
        repaired: &mut Repaired,
    ) -> Result<(), AdminError> {
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

    /// Takes signed files from the mirror if they verify.
    fn signed_files(
        &self,
        sink: &LocalSink,
        place: &CheckPlace,
        report: &CheckReport,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), AdminError> {
        let (Some(mirror), Some(keys)) = (self.from, &place.keys) else { return Ok(()) };
        let has = |kinds: &[FindingKind]| report.findings.iter().any(|finding| kinds.contains(&finding.kind));
        let manifest_is_bad = has(&[
            FindingKind::ManifestMissing,
            FindingKind::ManifestUnreadable,
            FindingKind::ManifestSignature,
            FindingKind::ManifestName,
        ]);
        let whitelist_is_bad = has(&[
            FindingKind::WhitelistMissing,
            FindingKind::WhitelistUnreadable,
            FindingKind::WhitelistSignature,
            FindingKind::WhitelistName,
            FindingKind::WhitelistExpired,
            FindingKind::CertificateNotListed,
        ]);
        if !manifest_is_bad && !whitelist_is_bad {
            return Ok(());
        }
        let take = |path: &str, from_mirror: bool| match from_mirror {
            true => mirror.read(path, SMALL_FILE_MAX),
            false => Ok(sink.read(path, SMALL_FILE_MAX)?),
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
        let Ok(certificate) = decoded_object(&stored, &name, None, SMALL_FILE_MAX, "the certificate") else {
            return Ok(());
        };
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
            sink.put_root(manifest::PATH, &files.manifest)?;
            repaired.files.push(manifest::PATH.to_owned());
        }
        Ok(())
    }

    /// Rebuilds or completes the reflog, and updates its checksums.
    fn reflog(
        &self,
        sink: &LocalSink,
        place: &CheckPlace,
        report: &CheckReport,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), AdminError> {
        let has = |kind: FindingKind| report.findings.iter().any(|finding| finding.kind == kind);
        let is_lost =
            [FindingKind::ReflogMissing, FindingKind::ReflogUnreadable, FindingKind::ReflogName].map(has);
        let is_lost = is_lost.contains(&true);
        let is_incomplete = has(FindingKind::ReflogIncomplete);
        let is_stale = has(FindingKind::ReflogChecksum) || has(FindingKind::ReflogHead);
        // A reflog that was written for this is right, whatever else is.
        if !is_lost && !is_incomplete && !is_stale || repaired.files.iter().any(|file| file == reflog::PATH) {
            return Ok(());
        }
        let Some(head) = sink.read(manifest::PATH, SMALL_FILE_MAX)? else { return Ok(()) };
        let Ok(head) = Manifest::parse(&head) else { return Ok(()) };
        let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
        let known = stored.as_deref().and_then(|bytes| Reflog::parse(bytes).ok()).filter(|_| !is_lost);
        let bytes = match known {
            Some(known) if is_incomplete => {
                let mut draft = ReflogDraft::continuing(&known);
                complete(&mut draft, &known, &head, now);
                draft.finish()
            }
            Some(_) => stored.unwrap_or_default(),
            None => {
                let disk = std::sync::Arc::new(RealDisk::PRIVATE);
                let lists = HashLists::new(sink, disk, None);
                crate::reflog::rebuild(sink, &lists, &place.name, &head, now)?.finish()
            }
        };
        sink.put_root(reflog::PATH, &bytes)?;
        repaired.files.push(reflog::PATH.to_owned());
        let hash = ContentHash::of(head.root_catalog.algorithm(), &bytes);
        if let Some(spool) = place.spool.as_ref().filter(|spool| spool.is_dir()) {
            let path = spool.join(REFLOG_CHECKSUM);
            persist(&RealDisk::SERVED, &path, hash.to_string().as_bytes())
                .map_err(AdminError::file("writing", &path))?;
            repaired.files.push(REFLOG_CHECKSUM.to_owned());
        }
        self.sign(sink, place, head, hash, now, repaired)
    }

    /// Signs a head that names the reflog, if the publisher is known and the head is what it signed before.
    fn sign(
        &self,
        sink: &LocalSink,
        place: &CheckPlace,
        head: Manifest,
        reflog: ContentHash,
        now: UnixTime,
        repaired: &mut Repaired,
    ) -> Result<(), AdminError> {
        let (Some(publisher), Some(keys)) = (self.publisher, &place.keys) else { return Ok(()) };
        let is_verified = |files: SignedFiles| files.verify(&place.name, keys, now).is_ok();
        if head.reflog == Some(reflog) || !SignedFiles::read(sink, &place.name).is_ok_and(is_verified) {
            return Ok(());
        }
        let timestamp = now.max(head.timestamp);
        let head = Manifest { reflog: Some(reflog), timestamp, ..head };
        let signed = sign_manifest(&head, publisher.key()).map_err(AdminError::Signing)?;
        let before = SignedFiles::read(sink, &place.name)?;
        let after = SignedFiles { manifest: signed, ..before };
        // A publisher whose certificate is not the head's can't sign it.
        if after.verify(&place.name, keys, now).is_ok() {
            sink.put_root(manifest::PATH, &after.manifest)?;
            repaired.files.push(manifest::PATH.to_owned());
        }
        Ok(())
    }
}

/// Adds the objects of the head that the reflog does not list.
fn complete(draft: &mut ReflogDraft, known: &Reflog, head: &Manifest, now: UnixTime) {
    let named = [
        (Some(head.root_catalog), ObjectKind::Catalog),
        (head.certificate, ObjectKind::Certificate),
        (head.history, ObjectKind::History),
        (head.metainfo, ObjectKind::Metainfo),
    ];
    for name in named.into_iter().filter_map(|(hash, kind)| Some(ObjectName::new(hash?, kind))) {
        if known.references().iter().all(|listed| listed.object != name) {
            draft.add(name, now);
        }
    }
}
