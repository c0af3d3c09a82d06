//! Copies certificate and metainfo of the previous head into a new revision.
//!
//! They keep the names that they have, so that they are never stored twice. `cvmfs_swissknife pull` compresses both anew
//! and stores them under the names that it read, so they can only be replicated if zlib itself could have written them.
//! Versions of Esker before 0.2 wrote them with another encoder; such an object is stored once more, as zlib writes it.

use esker_format::certificate::Certificate;
use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_format::trust::VerifiedHead;
use esker_format::write::encode::FastZlib;
use esker_store::Sink;

use crate::encode::Encoder;
use crate::error::RepositoryError;
use crate::signed::{SMALL_FILE_MAX, read_object};

/// Returns the published certificate if it is that of the publisher.
pub(crate) fn certificate(
    sink: &dyn Sink,
    head: &VerifiedHead,
    own: &Certificate,
) -> Result<Option<ObjectName>, RepositoryError> {
    let Some(object) = head.certificate() else { return Ok(None) };
    let pem = read_object(sink, &object, None, SMALL_FILE_MAX, "the publisher's certificate")?;
    let algorithm = head.hash_algorithm();
    let is_own = Certificate::parse(&pem)
        .is_ok_and(|published| published.fingerprint(algorithm) == own.fingerprint(algorithm));
    if is_own { replicable(sink, object, &pem).map(Some) } else { Ok(None) }
}

/// Returns the published metainfo.
pub(crate) fn metainfo(sink: &dyn Sink, head: &VerifiedHead) -> Result<Option<ObjectName>, RepositoryError> {
    let Some(object) = head.metainfo() else { return Ok(None) };
    match read_object(sink, &object, None, SMALL_FILE_MAX, "the metainfo") {
        Ok(plain) => replicable(sink, object, &plain).map(Some),
        // Damaged or missing metainfo stays so: no client needs it to read the repository.
        Err(
            RepositoryError::Missing { .. }
            | RepositoryError::Corrupt { .. }
            | RepositoryError::Compressed { .. },
        ) => Ok(Some(object)),
        Err(error) => Err(error),
    }
}

/// Returns an object, or its replacement by the stock encoder if the fast encoder wrote it.
fn replicable(sink: &dyn Sink, object: ObjectName, plain: &[u8]) -> Result<ObjectName, RepositoryError> {
    let mut room = Vec::new();
    FastZlib::new().encode(plain, &mut room);
    if ContentHash::of(object.hash.algorithm(), &room) != object.hash {
        return Ok(object);
    }
    let stored = Encoder::for_metadata().encode(plain, &mut room)?;
    let name = ObjectName::new(ContentHash::of(object.hash.algorithm(), stored), object.kind);
    sink.put(&name, stored)?;
    Ok(name)
}
