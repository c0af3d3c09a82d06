//! Makes the index of a cache that lists objects without files.

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_store::CacheKey;

/// Length in bytes that each listed object states.
const LEN: u64 = 10_000;

/// Returns the content of an index that lists this many objects, in the format of `store/cache/index.rs`.
pub fn of_absent(objects: u64) -> Vec<u8> {
    let mut index = b"ESKERIX1".to_vec();
    index.extend_from_slice(&objects.to_le_bytes());
    for number in 0..objects {
        index.extend_from_slice(&key(number).to_bytes());
        index.extend_from_slice(&[1, 0]);
        index.extend_from_slice(&LEN.to_le_bytes());
    }
    let digest = xxhash_rust::xxh3::xxh3_128(&index);
    index.extend_from_slice(&digest.to_le_bytes());
    index
}

/// Returns the key of a listed object.
pub fn key(number: u64) -> CacheKey {
    let hash = ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes());
    CacheKey { hash, compression: Compression::Zlib }
}
