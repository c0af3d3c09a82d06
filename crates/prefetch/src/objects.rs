//! Requests for the objects that files consist of.

use esker_format::catalog::{Chunk, EntryKind, Flags, Row};
use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{CacheKey, Handle, ObjectRequest};

/// Returns the cache key of a regular file that is one object.
pub fn content(row: &Row<'_>) -> Option<CacheKey> {
    let flags = row.flags();
    if row.kind() != EntryKind::File || flags.has(Flags::CHUNKED) || flags.has(Flags::EXTERNAL) {
        return None;
    }
    Some(CacheKey { hash: row.hash()?, compression: row.compression()? })
}

/// Returns the request for a regular file that is one object; `path` is for messages.
pub fn whole(row: &Row<'_>, path: &[u8]) -> Option<ObjectRequest> {
    Some(file(content(row)?, row.size(), path))
}

/// Returns the request for a file with this content; `path` is for messages.
pub fn file(content: CacheKey, size: u64, path: &[u8]) -> ObjectRequest {
    let object = ObjectName::new(content.hash, ObjectKind::File);
    ObjectRequest::new(object, content.compression, String::from_utf8_lossy(path)).size(size)
}

/// Returns the request for a chunk; `what` is the path of its file, for messages.
pub fn chunk(chunk: &Chunk, compression: Compression, what: &str) -> ObjectRequest {
    let object = ObjectName::new(chunk.hash, ObjectKind::Chunk);
    ObjectRequest::new(object, compression, what).size(chunk.size)
}

/// Reads bytes of an object; returns fewer where it ends or can't be read.
pub fn read(handle: &Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = handle.read_at(&mut bytes, offset).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
