//! What is asked for to have a file, or a part of it.

use std::sync::Arc;

use esker_format::catalog::{Chunk, EntryKind, Flags, Row};
use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{CacheKey, Callback, Handle, ObjectRequest};

use crate::core::Core;
use crate::payload::Notes;

use super::Event;

/// The content of a regular file that is one object.
pub(super) fn content(row: &Row<'_>) -> Option<CacheKey> {
    let flags = row.flags();
    if row.kind() != EntryKind::File || flags.has(Flags::CHUNKED) || flags.has(Flags::EXTERNAL) {
        return None;
    }
    Some(CacheKey { hash: row.hash()?, compression: row.compression()? })
}

/// The object of a regular file that is one; `path` is for messages.
pub(super) fn whole(row: &Row<'_>, path: &[u8]) -> Option<ObjectRequest> {
    Some(file(content(row)?, row.size(), path))
}

/// The object of a file with this content; `path` is for messages.
pub(super) fn file(content: CacheKey, size: u64, path: &[u8]) -> ObjectRequest {
    let object = ObjectName::new(content.hash, ObjectKind::File);
    ObjectRequest::new(object, content.compression, String::from_utf8_lossy(path)).size(size)
}

/// The content of a file that is one object.
pub(super) fn of_notes(notes: &Notes) -> Option<CacheKey> {
    Some(CacheKey { hash: notes.content?, compression: notes.compression? })
}

/// The object of a chunk; `what` is its file's path.
pub(super) fn chunk(chunk: &Chunk, compression: Compression, what: &str) -> ObjectRequest {
    let object = ObjectName::new(chunk.hash, ObjectKind::Chunk);
    ObjectRequest::new(object, compression, what).size(chunk.size)
}

/// Has an object fetched ahead, and opened; the planner hears what came of it, once.
pub(super) fn open(
    core: &Arc<Core>,
    wanted: ObjectRequest,
    event: impl FnOnce(Option<Handle>) -> Event + Send + 'static,
) {
    let (weak, again) = (Arc::downgrade(core), wanted.clone());
    let opened = Callback::new(move |answer: Result<Handle, _>| {
        if let Some(core) = weak.upgrade() {
            core.prefetch.tell(event(answer.ok()));
        }
    });
    let weak = Arc::downgrade(core);
    let warmed = move |answer: Result<_, _>| match (answer, weak.upgrade()) {
        (Ok(_), Some(core)) => core.store.get(again, opened),
        (Err(error), _) => opened.err(error),
        (Ok(_), None) => {}
    };
    core.store.warm(wanted, &core.prefetch.errand, Callback::new(warmed));
}

/// Bytes of an object; fewer where it ends or can't be read.
pub(super) fn read(handle: &Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = handle.read_at(&mut bytes, offset).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
