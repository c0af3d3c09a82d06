//! Signs the published head anew with other terms: its TTL, its collectability, or the publisher's certificate.

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::head::sign_manifest;
use esker_format::write::reflog::ReflogDraft;
use esker_store::Sink as _;

use crate::encode::Encoder;
use crate::error::AdminError;
use crate::kept;
use crate::repository::{DATABASE_MAX, Repository};

/// Signs the head of an open repository with the publisher's key. Revision and root catalog stay.
pub(crate) fn sign_head(
    repository: &Repository,
    now: UnixTime,
    change: impl FnOnce(&mut Manifest),
) -> Result<(), AdminError> {
    let (sink, head) = (&*repository.sink, &repository.head);
    let mut manifest = head.manifest().clone();
    change(&mut manifest);
    // Clients refuse a head that is older than the last one they accepted.
    manifest.timestamp = now.max(head.timestamp());
    if kept::certificate(sink, head, repository.publisher.certificate())?.is_none() {
        let (certificate, reflog) = put_certificate(repository, manifest.timestamp)?;
        manifest.certificate = Some(certificate.hash);
        manifest.reflog = Some(reflog);
    }
    let signed = sign_manifest(&manifest, repository.publisher.key()).map_err(AdminError::Signing)?;
    Ok(sink.put_root(manifest::PATH, &signed)?)
}

/// Stores the publisher's certificate and lists it in the reflog, so that a collection keeps it.
fn put_certificate(repository: &Repository, now: UnixTime) -> Result<(ObjectName, ContentHash), AdminError> {
    let sink = &*repository.sink;
    let algorithm = repository.head.hash_algorithm();
    let (mut encoder, mut room) = (Encoder::for_metadata(), Vec::new());
    let stored = encoder.encode(repository.publisher.certificate_pem().as_bytes(), &mut room)?;
    let certificate = ObjectName::new(ContentHash::of(algorithm, stored), ObjectKind::Certificate);
    sink.put(&certificate, stored)?;
    sink.flush()?;
    if repository.head.alternative_paths() {
        sink.put_alternative(&certificate)?;
    }
    let mut draft = match sink.read(reflog::PATH, DATABASE_MAX)? {
        Some(bytes) => ReflogDraft::continuing(&Reflog::parse(&bytes).map_err(AdminError::Reflog)?),
        None => ReflogDraft::new(repository.name.clone()),
    };
    draft.add(certificate, now);
    let reflog = draft.finish();
    sink.put_root(reflog::PATH, &reflog)?;
    let hash = ContentHash::of(algorithm, &reflog);
    if let Some(spool) = &repository.spool {
        spool.remember_reflog(&hash)?;
    }
    Ok((certificate, hash))
}
