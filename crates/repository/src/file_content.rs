//! Content of a published file, for comparisons.

use esker_format::catalog::Flags;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::Entry;

use crate::error::RepositoryError;
use crate::object_source::{ObjectSource, WantedObject};

/// Number of bytes that an encoder adds to small content.
const ENCODING_MAX: u64 = 1 << 10;

/// Returns the content of a regular file; none if it has more than `limit` bytes or is external data.
pub fn file_content(
    objects: &dyn ObjectSource,
    entry: &Entry,
    limit: u64,
    what: &str,
) -> Result<Option<Vec<u8>>, RepositoryError> {
    if !entry.is_file() || entry.size > limit || entry.flags.has(Flags::EXTERNAL) {
        return Ok(None);
    }
    let missing =
        |object: &str| RepositoryError::Missing { what: what.to_owned(), object: object.to_owned() };
    let compression = entry.flags.compression().ok_or_else(|| missing("of unknown compression"))?;
    // Encoders add a little to what they can't compress.
    let limit = limit.saturating_add(limit / 8).saturating_add(ENCODING_MAX);
    let object = |name, size| {
        objects.object(&WantedObject { name, compression: Some(compression), size: Some(size), limit, what })
    };
    if entry.chunks.is_empty() {
        let hash = entry.hash.ok_or_else(|| missing("without a hash"))?;
        return object(ObjectName::new(hash, ObjectKind::File), entry.size)
            .map(|content| Some(content.into_vec()));
    }
    let mut content = Vec::new();
    for chunk in &entry.chunks {
        content.extend(object(ObjectName::new(chunk.hash, ObjectKind::Chunk), chunk.size)?.iter());
    }
    Ok(Some(content))
}
