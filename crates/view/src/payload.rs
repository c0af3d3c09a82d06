//! Encodes the information that a node carries.
//!
//! ```text
//!  0  key        16  md5 of the path, as in its catalog
//! 16  mount      16  md5 of the path where that catalog is mounted
//! 32  catalog    20  digest of that catalog's hash
//! 52  content    20  digest of a regular file's object, zeros if it has none
//! 72  size        8  st_size, little endian
//! 80  algorithms  2  of catalog and content
//! 82  compression 1
//! 83  flags       1
//! 84  (zeros)    11
//! 95  version     1
//! ```

use esker_format::catalog::PathKey;
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_store::CacheKey;
use esker_vfs::{ErrorKind, Node, PAYLOAD_LEN, Payload, TreeError};

/// Version of the encoding; payloads with another one were made by another program.
const VERSION: u8 = 1;

const UNKNOWN_COMPRESSION: u8 = 255;

const CHUNKED: u8 = 1;
const EXTERNAL: u8 = 2;
const DIRECT_IO: u8 = 4;
const XATTRS: u8 = 8;
const HAS_CONTENT: u8 = 16;
const BUNDLE: u8 = 32;
const ROOT: u8 = 64;

/// Decoded payload of a node: enough to read it and to find its catalog row again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    /// Key of the row in `catalog`.
    pub(crate) key: PathKey,
    /// Key of the path at which `catalog` is mounted.
    pub(crate) mount: PathKey,
    /// Catalog that has the row.
    pub(crate) catalog: ContentHash,
    /// Object with a regular file's content; chunked files need not have one.
    pub(crate) content: Option<ContentHash>,
    /// Compression of the objects; `None` if it is unknown to this program.
    pub(crate) compression: Option<Compression>,
    pub(crate) size: u64,
    pub(crate) chunked: bool,
    pub(crate) external: bool,
    pub(crate) direct_io: bool,
    /// True if the row stores extended attributes.
    pub(crate) xattrs: bool,
    /// True if the file triggers the prefetch of a bundle.
    pub(crate) bundle: bool,
    /// True for the root of the tree.
    pub(crate) root: bool,
}

impl NodeInfo {
    pub(crate) fn encode(&self) -> Payload {
        let mut bytes = [0; PAYLOAD_LEN];
        let zeros = ContentHash::new(HashAlgorithm::Sha1, [0; 20]);
        let content = self.content.unwrap_or(zeros);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        bytes[0..16].copy_from_slice(&self.key.digest());
        bytes[16..32].copy_from_slice(&self.mount.digest());
        bytes[32..52].copy_from_slice(self.catalog.digest());
        bytes[52..72].copy_from_slice(content.digest());
        bytes[72..80].copy_from_slice(&self.size.to_le_bytes());
        bytes[80] = self.catalog.algorithm().to_flag();
        bytes[81] = content.algorithm().to_flag();
        bytes[82] = self.compression.map_or(UNKNOWN_COMPRESSION, Compression::to_flag);
        bytes[83] = flag(self.chunked, CHUNKED)
            | flag(self.external, EXTERNAL)
            | flag(self.direct_io, DIRECT_IO)
            | flag(self.xattrs, XATTRS)
            | flag(self.content.is_some(), HAS_CONTENT)
            | flag(self.bundle, BUNDLE)
            | flag(self.root, ROOT);
        bytes[95] = VERSION;
        Payload(bytes)
    }

    /// Decodes the payload of a node; fails as stale if another program made it.
    pub(crate) fn of(node: &Node) -> Result<Self, TreeError> {
        Self::decode(&node.payload).ok_or(ErrorKind::Stale.into())
    }

    /// Returns the cache key of the object with the file's content, if it has one.
    pub(crate) fn content_key(&self) -> Option<CacheKey> {
        Some(CacheKey { hash: self.content?, compression: self.compression? })
    }

    /// Decodes a payload; `None` if this crate did not write it.
    pub(crate) fn decode(payload: &Payload) -> Option<Self> {
        let bytes = &payload.0;
        if bytes[95] != VERSION {
            return None;
        }
        let hash = |at: usize, algorithm: u8| {
            let digest: [u8; 20] = bytes[at..at + 20].try_into().ok()?;
            Some(ContentHash::new(HashAlgorithm::from_flag(algorithm)?, digest))
        };
        let key = |at: usize| -> Option<PathKey> {
            Some(PathKey::from_digest(bytes[at..at + 16].try_into().ok()?))
        };
        let has = |bit: u8| bytes[83] & bit != 0;
        Some(Self {
            key: key(0)?,
            mount: key(16)?,
            catalog: hash(32, bytes[80])?,
            content: if has(HAS_CONTENT) { Some(hash(52, bytes[81])?) } else { None },
            compression: match bytes[82] {
                UNKNOWN_COMPRESSION => None,
                number => Some(Compression::from_flag(number)?),
            },
            size: u64::from_le_bytes(bytes[72..80].try_into().ok()?),
            chunked: has(CHUNKED),
            external: has(EXTERNAL),
            direct_io: has(DIRECT_IO),
            xattrs: has(XATTRS),
            bundle: has(BUNDLE),
            root: has(ROOT),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(bits: u8) -> NodeInfo {
        let hash = |byte: u8, algorithm| ContentHash::new(algorithm, [byte; 20]);
        NodeInfo {
            key: PathKey::of(b"/a/b"),
            mount: PathKey::of(b"/a"),
            catalog: hash(7, HashAlgorithm::Rmd160),
            content: (bits & 1 != 0).then(|| hash(9, HashAlgorithm::Shake128)),
            compression: [None, Some(Compression::Zlib), Some(Compression::Stored), Some(Compression::Zstd)]
                [usize::from(bits >> 1 & 3)],
            size: u64::MAX - u64::from(bits),
            chunked: bits & 6 != 0,
            external: bits & 8 != 0,
            direct_io: bits & 16 != 0,
            xattrs: bits & 32 != 0,
            bundle: bits & 64 != 0,
            root: bits & 128 != 0,
        }
    }

    #[test]
    fn encoded_payloads_are_decoded_unchanged() {
        for bits in 0..=u8::MAX {
            assert_eq!(NodeInfo::decode(&info(bits).encode()), Some(info(bits)));
        }
    }

    #[test]
    fn foreign_payloads_are_refused_without_a_panic() {
        assert_eq!(NodeInfo::decode(&Payload([0; PAYLOAD_LEN])), None);
        for at in 80..83 {
            let mut payload = info(1).encode();
            payload.0[at] = 200;
            assert_eq!(NodeInfo::decode(&payload), None, "byte {at}");
        }
    }
}
