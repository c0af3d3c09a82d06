//! The signed files, and the objects that the head names itself.

use esker_format::certificate::Certificate;
use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_format::whitelist::{self, Whitelist};
use esker_repository::{
    RepositoryError,
    signed::{SMALL_FILE_MAX, SignedFiles, read_object},
};
use esker_store::StoredFiles;

use super::finding::{Finding, FindingKind, Findings};
use super::options::CheckPlace;
use super::target::Target;

/// Checks the signed files, and returns the manifest if it can be read at all.
pub(super) fn check(
    target: &Target<'_>,
    place: &CheckPlace,
    now: UnixTime,
    findings: &mut Findings,
    notes: &mut Vec<String>,
) -> Result<Option<Manifest>, RepositoryError> {
    let files = target.files();
    let Some(signed) = root_file(files, manifest::PATH, FindingKind::ManifestMissing, findings) else {
        return Ok(None);
    };
    let head = match Manifest::parse(&signed) {
        Ok(head) => head,
        Err(error) => {
            findings.add(Finding::new(FindingKind::ManifestUnreadable, error.to_string()));
            return Ok(None);
        }
    };
    let whitelist = root_file(files, whitelist::PATH, FindingKind::WhitelistMissing, findings);
    let certificate = certificate(files, &head, findings);
    if let (Some(whitelist), Some(certificate)) = (whitelist, certificate) {
        let files = SignedFiles { manifest: signed, whitelist, certificate };
        signatures(&files, place, now, findings, notes);
    }
    metainfo(files, &head, findings);
    alternative_names(target, &head, findings)?;
    Ok(Some(head))
}

fn root_file(
    files: &dyn StoredFiles,
    path: &str,
    missing: FindingKind,
    findings: &mut Findings,
) -> Option<Vec<u8>> {
    match files.read(path, SMALL_FILE_MAX) {
        Ok(Some(bytes)) => return Some(bytes),
        Ok(None) => findings.add(Finding::new(missing, format!("there is no file {path}"))),
        Err(error) => findings.add(Finding::new(missing, error.to_string())),
    }
    None
}

fn certificate(files: &dyn StoredFiles, head: &Manifest, findings: &mut Findings) -> Option<Vec<u8>> {
    let Some(hash) = head.certificate else {
        findings.add(Finding::new(FindingKind::ManifestUnreadable, "the manifest names no certificate"));
        return None;
    };
    let name = ObjectName::new(hash, ObjectKind::Certificate);
    let what = "the publisher's certificate";
    let damaged = |detail: String| Finding::new(FindingKind::CertificateDamaged, detail).object(name);
    match read_object(files, &name, None, SMALL_FILE_MAX, what) {
        Ok(bytes) => match Certificate::parse(&bytes) {
            Ok(_) => return Some(bytes.into_vec()),
            Err(error) => findings.add(damaged(error.to_string())),
        },
        Err(RepositoryError::Missing { .. }) => {
            findings.add(
                Finding::new(FindingKind::CertificateMissing, format!("{what} is missing")).object(name),
            );
        }
        Err(error) => findings.add(damaged(error.to_string())),
    }
    None
}

/// Verifies the signatures. An expired whitelist is a finding of its own, and the rest is verified all the same.
fn signatures(
    files: &SignedFiles,
    place: &CheckPlace,
    now: UnixTime,
    findings: &mut Findings,
    notes: &mut Vec<String>,
) {
    let list = match Whitelist::parse(&files.whitelist) {
        Ok(list) => list,
        Err(error) => return findings.add(Finding::new(FindingKind::WhitelistUnreadable, error.to_string())),
    };
    let mut valid = now;
    if list.is_expired(now) {
        let detail = format!("the whitelist expired at {}", list.expires);
        findings.add(Finding::new(FindingKind::WhitelistExpired, detail));
        valid = UnixTime(list.expires.hour().0.saturating_sub(1));
    }
    let Some(keys) = &place.keys else {
        notes.push("no public key is known, so the signature of the whitelist was not verified".to_owned());
        return;
    };
    let Err(RepositoryError::Untrusted { source, .. }) = files.verify(&place.name, keys, valid) else {
        return;
    };
    let kind = match *source {
        TrustError::Manifest(_) | TrustError::NoCertificate => FindingKind::ManifestUnreadable,
        TrustError::ManifestName { .. } | TrustError::RootPath(_) => FindingKind::ManifestName,
        TrustError::Certificate(_) => FindingKind::CertificateDamaged,
        TrustError::Whitelist(_) => FindingKind::WhitelistUnreadable,
        TrustError::WhitelistExpired { .. } => FindingKind::WhitelistExpired,
        TrustError::WhitelistName { .. } => FindingKind::WhitelistName,
        TrustError::WhitelistPkcs7
        | TrustError::WhitelistCaChain
        | TrustError::WhitelistLetter(_)
        | TrustError::WhitelistHash { .. }
        | TrustError::WhitelistSignature { .. }
        | TrustError::NoMasterKey => FindingKind::WhitelistSignature,
        TrustError::CertificateNotListed { .. } | TrustError::CertificateBlacklisted { .. } => {
            FindingKind::CertificateNotListed
        }
        _ => FindingKind::ManifestSignature,
    };
    findings.add(Finding::new(kind, source.to_string()));
}

fn metainfo(files: &dyn StoredFiles, head: &Manifest, findings: &mut Findings) {
    let Some(hash) = head.metainfo else { return };
    let name = ObjectName::new(hash, ObjectKind::Metainfo);
    let found = match read_object(files, &name, None, SMALL_FILE_MAX, "the description of the repository") {
        Ok(bytes) => serde_json::from_slice::<serde_json::Value>(&bytes)
            .err()
            .map(|error| format!("the description of the repository is no JSON: {error}")),
        Err(error) => Some(error.to_string()),
    };
    findings_of(found, FindingKind::Metainfo, name, findings);
}

fn findings_of(detail: Option<String>, kind: FindingKind, name: ObjectName, findings: &mut Findings) {
    if let Some(detail) = detail {
        findings.add(Finding::new(kind, detail).object(name));
    }
}

fn alternative_names(
    target: &Target<'_>,
    head: &Manifest,
    findings: &mut Findings,
) -> Result<(), RepositoryError> {
    if !head.alternative_paths {
        return Ok(());
    }
    let named: [(Option<ContentHash>, ObjectKind); 2] =
        [(Some(head.root_catalog), ObjectKind::Catalog), (head.certificate, ObjectKind::Certificate)];
    for name in named.into_iter().filter_map(|(hash, kind)| Some(ObjectName::new(hash?, kind))) {
        let path = name.alternative_path();
        if !target.exists(&path)? {
            let detail = format!("the manifest announces {path}, which is not there");
            findings.add(Finding::new(FindingKind::AlternativeName, detail).object(name));
        }
    }
    Ok(())
}
