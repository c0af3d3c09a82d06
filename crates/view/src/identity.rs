//! Computes the keys and inode numbers that identify nodes.
//!
//! The key of a directory is computed from its path. That of everything else is computed from its path and content, so
//! that neither page cache nor a running program ever sees the content change under one number; names of one hardlink
//! group share the group instead of the path. Nothing else is used: a change of mode, owner, time or attributes keeps
//! the node, and every process computes the same numbers.

use esker_format::catalog::{Chunk, PathKey};
use esker_format::hash::ContentHash;
use esker_vfs::{Device, Ino, Kind, NodeKey};
use xxhash_rust::xxh3::Xxh3;

/// `st_ino` of the root. No other node has it, nor 0, which programs take for "no entry".
const ROOT_INO: Ino = Ino(1);

/// Bits of `st_ino`. An overlayfs above the mount (`esker_kernel_mount::mount_overlay`) needs the upper ones to keep the
/// numbers of its layers apart.
const INO_BITS: u32 = 60;

/// Domain tags, which keep the keys of different kinds apart.
const DIRECTORY: u8 = b'd';
const AT_PATH: u8 = b'p';
const IN_GROUP: u8 = b'g';

/// Location of a file or link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryLocation<'a> {
    /// A single name: the path.
    Path(&'a [u8]),
    /// The names of a hardlink group, which a catalog numbers.
    Group { mount: &'a PathKey, group: u32 },
}

/// Content of a file or link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryContent<'a> {
    /// A stored object.
    Object(ContentHash),
    /// Chunks: the digest over them, see [`chunks_digest`].
    Chunks([u8; 16]),
    /// Target of a symbolic link.
    Target(&'a [u8]),
    /// A device.
    Device(Device),
    /// No content, or content that only the location and size identify (external data).
    Size(u64),
}

/// Returns the key of the directory at `path` (empty for the root).
pub(crate) fn directory(path: &[u8]) -> NodeKey {
    let mut hasher = Xxh3::new();
    hasher.update(&[DIRECTORY]);
    hasher.update(path);
    finish(&hasher)
}

/// Returns the key of an entry that is not a directory.
pub(crate) fn entry(place: EntryLocation<'_>, kind: Kind, content: EntryContent<'_>) -> NodeKey {
    let mut hasher = Xxh3::new();
    match place {
        EntryLocation::Path(path) => {
            hasher.update(&[AT_PATH]);
            hasher.update(&(path.len() as u64).to_le_bytes());
            hasher.update(path);
        }
        EntryLocation::Group { mount, group } => {
            hasher.update(&[IN_GROUP]);
            hasher.update(&mount.digest());
            hasher.update(&group.to_le_bytes());
        }
    }
    hasher.update(&[kind as u8]);
    match content {
        EntryContent::Object(hash) => {
            hasher.update(&[b'o', hash.algorithm().to_flag()]);
            hasher.update(hash.digest());
        }
        EntryContent::Chunks(digest) => {
            hasher.update(b"c");
            hasher.update(&digest);
        }
        EntryContent::Target(target) => {
            hasher.update(b"t");
            hasher.update(target);
        }
        EntryContent::Device(device) => {
            hasher.update(b"v");
            hasher.update(&device.major.to_le_bytes());
            hasher.update(&device.minor.to_le_bytes());
        }
        EntryContent::Size(size) => {
            hasher.update(b"s");
            hasher.update(&size.to_le_bytes());
        }
    }
    finish(&hasher)
}

/// Returns a digest over the chunks of a file: their offsets and hashes, in order.
pub(crate) fn chunks_digest(chunks: &[Chunk]) -> [u8; 16] {
    let mut hasher = Xxh3::new();
    for chunk in chunks {
        hasher.update(&chunk.offset.to_le_bytes());
        hasher.update(&[chunk.hash.algorithm().to_flag()]);
        hasher.update(chunk.hash.digest());
    }
    hasher.digest128().to_le_bytes()
}

/// Returns the inode number of a node.
pub(crate) fn number(key: &NodeKey, is_root: bool) -> Ino {
    if is_root {
        return ROOT_INO;
    }
    let [a, b, c, d, e, f, g, h, ..] = key.0;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> (64 - INO_BITS);
    // One of 2^59 pairs of keys shares a number anyway; these two are moved away from the reserved ones.
    Ino(if number < 2 { number + 2 } else { number })
}

fn finish(hasher: &Xxh3) -> NodeKey {
    NodeKey(hasher.digest128().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    /// The numbers are promised to stay over restarts and versions: these were computed by the first one.
    #[test]
    fn inode_numbers_never_change() {
        let hash = ContentHash::new(HashAlgorithm::Rmd160, [5; 20]);
        let key = entry(EntryLocation::Path(b"/sw/lib.so"), Kind::File, EntryContent::Object(hash));
        assert_eq!(number(&directory(b"/sw"), false), Ino(FIRST_DIRECTORY));
        assert_eq!(number(&key, false), Ino(FIRST_FILE));
        assert_eq!(number(&directory(b""), true), ROOT_INO);
    }

    const FIRST_DIRECTORY: u64 = 806_396_643_922_387_817;
    const FIRST_FILE: u64 = 444_158_856_473_235_820;

    #[test]
    fn every_part_of_an_identity_changes_the_key() {
        let one = ContentHash::new(HashAlgorithm::Sha1, [1; 20]);
        let two = ContentHash::new(HashAlgorithm::Sha1, [2; 20]);
        let same_digest = ContentHash::new(HashAlgorithm::Rmd160, [1; 20]);
        let (mount, other) = (PathKey::of(b""), PathKey::of(b"/n"));
        let keys = [
            directory(b"/a"),
            directory(b"/b"),
            entry(EntryLocation::Path(b"/a"), Kind::File, EntryContent::Object(one)),
            entry(EntryLocation::Path(b"/b"), Kind::File, EntryContent::Object(one)),
            entry(EntryLocation::Path(b"/a"), Kind::File, EntryContent::Object(two)),
            entry(EntryLocation::Path(b"/a"), Kind::File, EntryContent::Object(same_digest)),
            entry(EntryLocation::Path(b"/a"), Kind::File, EntryContent::Chunks([1; 16])),
            entry(EntryLocation::Path(b"/a"), Kind::File, EntryContent::Size(3)),
            entry(EntryLocation::Path(b"/a"), Kind::Fifo, EntryContent::Size(3)),
            entry(EntryLocation::Path(b"/a"), Kind::Symlink, EntryContent::Target(b"x")),
            entry(EntryLocation::Path(b"/a"), Kind::Symlink, EntryContent::Target(b"y")),
            entry(EntryLocation::Group { mount: &mount, group: 1 }, Kind::File, EntryContent::Object(one)),
            entry(EntryLocation::Group { mount: &mount, group: 2 }, Kind::File, EntryContent::Object(one)),
            entry(EntryLocation::Group { mount: &other, group: 1 }, Kind::File, EntryContent::Object(one)),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
