//! Compares a file of an upper folder with its published content, whatever its compression.

use std::os::fd::OwnedFd;

use esker_format::catalog::Flags;
use esker_format::compress::{Compression, decompress};
use esker_format::hash::{ContentHash, HashAlgorithm, Hasher};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::Entry;
use esker_repository::RepositoryError;
use esker_store::Sink;

/// Largest object that is decompressed for a comparison. A larger one counts as different, and is stored again.
const OBJECT_MAX: u64 = 1 << 30;

/// Returns true if a file has exactly the content of a published entry of the same size. An object that is missing or
/// damaged equals nothing. External data, which is not stored, is compared by its hashes.
pub(super) fn has_content(sink: &dyn Sink, file: &OwnedFd, entry: &Entry) -> Result<bool, RepositoryError> {
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
    let is_external = entry.flags.has(Flags::EXTERNAL);
    if is_external && compression != Compression::Stored {
        return Ok(false);
    }
    for (name, size) in pieces {
        if is_external {
            match next_hash(file, size, name.hash.algorithm()) {
                Some(hash) if hash == name.hash => continue,
                _ => return Ok(false),
            }
        }
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

/// Returns the hash of the next `size` bytes of a file; none if it has fewer, or can't be read.
fn next_hash(file: &OwnedFd, size: u64, algorithm: HashAlgorithm) -> Option<ContentHash> {
    let (mut hasher, mut room, mut left) = (Hasher::new(algorithm), vec![0; 1 << 20], size);
    while left > 0 {
        let wanted = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match rustix::io::read(file, &mut room[..wanted]) {
            Ok(0) => return None,
            Ok(len) => {
                hasher.update(&room[..len]);
                left -= len as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(hasher.finish())
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
