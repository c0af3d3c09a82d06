//! What is asked for to have a file, or a part of it.

use esker_format::catalog::{Chunk, EntryKind, Flags, Row};
use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::Wanted;

/// The object of a regular file that is one; `path` is for messages.
pub(super) fn whole(row: &Row<'_>, path: &[u8]) -> Option<Wanted> {
    let flags = row.flags();
    if row.kind() != EntryKind::File || flags.has(Flags::CHUNKED) || flags.has(Flags::EXTERNAL) {
        return None;
    }
    let object = ObjectName::new(row.hash()?, ObjectKind::File);
    Some(Wanted::new(object, row.compression()?, String::from_utf8_lossy(path)).size(row.size()))
}

/// The object of a chunk; `what` is its file's path.
pub(super) fn chunk(chunk: &Chunk, compression: Compression, what: &str) -> Wanted {
    let object = ObjectName::new(chunk.hash, ObjectKind::Chunk);
    Wanted::new(object, compression, what).size(chunk.size)
}
