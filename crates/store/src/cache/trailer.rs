//! Encodes the trailer of a cache file.
//!
//! ```text
//!   plain bytes of the object …   | trailer, 64 bytes
//!   0  "ESKEROB1"                    magic and version
//!   8  algorithm, compression, digest of the stored bytes (22 bytes: the key)
//!  30  zero (2)
//!  32  plain length (8, little endian, as all numbers)
//!  40  XXH3-128 of the plain bytes (16)
//!  56  XXH3-64 of the 56 bytes before (8)
//! ```
//!
//! The trailer says whether the plain bytes are those that the writer verified, which the repository's hash
//! can't, because it covers the compressed bytes. It carries the key, so that a file that a crash left under
//! a wrong name is found out too. XXH3 is no defence against people: the folder's mode is.

use xxhash_rust::xxh3::xxh3_64;

use crate::objects::request::{CacheKey, KEY_LEN};

/// Length of the trailer.
pub(crate) const TRAILER_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"ESKEROB1";

/// Decoded trailer of a cache file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) key: CacheKey,
    pub(crate) plain_len: u64,
    pub(crate) digest: u128,
}

impl Trailer {
    pub(crate) fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..8 + KEY_LEN].copy_from_slice(&self.key.to_bytes());
        bytes[32..40].copy_from_slice(&self.plain_len.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.digest.to_le_bytes());
        let check = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; TRAILER_LEN]) -> Option<Self> {
        let (body, check) = bytes.split_last_chunk::<8>()?;
        if xxh3_64(body) != u64::from_le_bytes(*check) {
            return None;
        }
        let rest = body.strip_prefix(MAGIC)?;
        let (key, rest) = rest.split_first_chunk::<KEY_LEN>()?;
        let (len, digest) = rest.strip_prefix(&[0, 0])?.split_first_chunk::<8>()?;
        Some(Self {
            key: CacheKey::from_bytes(key)?,
            plain_len: u64::from_le_bytes(*len),
            digest: u128::from_le_bytes(*digest.first_chunk::<16>()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    #[test]
    fn any_changed_byte_is_noticed() {
        let hash = ContentHash::of(HashAlgorithm::Shake128, b"x");
        let key = CacheKey { hash, compression: Compression::Stored };
        let trailer = Trailer { key, plain_len: 7, digest: u128::MAX - 5 };
        let bytes = trailer.encode();
        assert_eq!(Trailer::decode(&bytes), Some(trailer));
        for at in 0..TRAILER_LEN {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Trailer::decode(&changed), None, "byte {at}");
        }
        assert_eq!(Trailer::decode(&[0; TRAILER_LEN]), None);
    }
}
