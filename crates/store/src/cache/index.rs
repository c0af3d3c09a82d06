//! Stores the list of all objects when a writer shuts down cleanly.
//!
//! ```text
//!   0  "ESKERIX1"
//!   8  number of entries (8, little endian)
//!  16  entries, the longest unread first, 32 bytes each:
//!        0 key (22)   22 one (1)   23 zero (1)   24 plain length (8)
//!  …   XXH3-128 of all bytes before (16)
//! ```
//!
//! Its existence is the mark of a clean shutdown: it is written after everything else was made durable, and
//! removed, durably, before the next writer changes anything. The one tells older versions to compare the object before they
//! serve it, as this version does with all.

use xxhash_rust::xxh3::xxh3_128;

use crate::objects::request::{CacheKey, KEY_LEN};

const MAGIC: &[u8; 8] = b"ESKERIX1";
const ENTRY_LEN: usize = 32;

/// One object in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) key: CacheKey,
    pub(super) plain_len: u64,
}

/// Writes the list down.
pub(super) fn encode(entries: &[Listed]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + entries.len() * ENTRY_LEN + 16);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    for entry in entries {
        bytes.extend_from_slice(&entry.key.to_bytes());
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&entry.plain_len.to_le_bytes());
    }
    let digest = xxh3_128(&bytes);
    bytes.extend_from_slice(&digest.to_le_bytes());
    bytes
}

/// Parses the index; none if it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Listed>> {
    let (body, digest) = bytes.split_last_chunk::<16>()?;
    if xxh3_128(body) != u128::from_le_bytes(*digest) {
        return None;
    }
    let (count, entries) = body.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
    if !rest.is_empty() || entries.len() as u64 != u64::from_le_bytes(*count) {
        return None;
    }
    entries.iter().map(decode_entry).collect()
}

fn decode_entry(bytes: &[u8; ENTRY_LEN]) -> Option<Listed> {
    let (key, rest) = bytes.split_first_chunk::<KEY_LEN>()?;
    let (_, len) = rest.split_first_chunk::<2>()?;
    let plain_len = u64::from_le_bytes(*len.first_chunk::<8>()?);
    Some(Listed { key: CacheKey::from_bytes(key)?, plain_len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    #[test]
    fn a_damaged_index_is_ignored_as_a_whole() {
        let entry = |number: u8| Listed {
            key: CacheKey {
                hash: ContentHash::of(HashAlgorithm::Rmd160, &[number]),
                compression: Compression::Zstd,
            },
            plain_len: u64::from(number) << 30,
        };
        let entries: Vec<_> = (0..5).map(entry).collect();
        let bytes = encode(&entries);
        assert_eq!(decode(&bytes).unwrap(), entries);
        assert_eq!(decode(&encode(&[])).unwrap(), []);
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_eq!(decode(&changed), None, "byte {at}");
        }
    }
}
