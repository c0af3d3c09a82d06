//! Compares a file of an upper folder with its published content, whatever its compression.

use std::os::fd::OwnedFd;

use esker_format::compress::decompress;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::Entry;
use esker_store::Sink;

use crate::error::AdminError;

/// Largest object that is decompressed for a comparison. A larger one counts as different, and is stored again.
const OBJECT_MAX: u64 = 1 << 30;

/// Returns true if a file has exactly the content of a published entry of the same size. An object that is missing or
/// damaged equals nothing.
pub(super) fn has_content(sink: &dyn Sink, file: &OwnedFd, entry: &Entry) -> Result<bool, AdminError> {
    let pieces: Vec<(ObjectName, u64)> = match entry.hash {
        _ if !entry.chunks.is_empty() => entry
            .chunks
            .iter()
            .map(|chunk| (ObjectName::new(chunk.hash, ObjectKind::Chunk), chunk.size))
            .collect(),
        Some(hash) => vec![(ObjectName::new(hash, ObjectKind::File), entry.size)],
        None => return Ok(false),
    };
    let Some(compression) = entry.flags.compression() else { return Ok(false) };
    for (name, size) in pieces {
        if size > OBJECT_MAX {
            return Ok(false);
        }
        let Some(stored) = sink.read(&name.path(), OBJECT_MAX)? else { return Ok(false) };
        if ContentHash::of(name.hash.algorithm(), &stored) != name.hash {
            return Ok(false);
        }
        match decompress(&stored, compression, Some(size), OBJECT_MAX) {
            Ok(plain) if starts_with(file, &plain) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Reads as many bytes as `plain` has, and compares them. A file that can't be read now fails when it is stored.
fn starts_with(file: &OwnedFd, plain: &[u8]) -> bool {
    let mut room = vec![0; plain.len().min(1 << 20)];
    let mut left = plain;
    while !left.is_empty() {
        let wanted = room.len().min(left.len());
        match rustix::io::read(file, &mut room[..wanted]) {
            Ok(0) => return false,
            Ok(len) if room[..len] == left[..len] => left = &left[len..],
            Err(rustix::io::Errno::INTR) => {}
            _ => return false,
        }
    }
    true
}
