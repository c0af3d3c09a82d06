//! Flag bits of a catalog entry.

use std::fmt;

use crate::compress::Compression;
use crate::hash::HashAlgorithm;

/// The `flags` column of an entry. Undefined bits are kept and ignored.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u64);

impl Flags {
    /// A directory.
    pub const DIRECTORY: u64 = 1;
    /// A directory whose contents are in a nested catalog (entry of the parent catalog).
    pub const NESTED_MOUNTPOINT: u64 = 1 << 1;
    /// A regular file, symlink or special file.
    pub const FILE: u64 = 1 << 2;
    /// A symlink.
    pub const SYMLINK: u64 = 1 << 3;
    /// A pipe, socket or device.
    pub const SPECIAL: u64 = 1 << 4;
    /// The root of a nested catalog (entry of the nested catalog itself).
    pub const NESTED_ROOT: u64 = 1 << 5;
    /// A file that is stored as chunks.
    pub const CHUNKED: u64 = 1 << 6;
    /// A file whose content is external data, outside of the repository's objects.
    pub const EXTERNAL: u64 = 1 << 7;
    /// A directory that shows the contents of another revision.
    pub const BIND_MOUNTPOINT: u64 = 1 << 14;
    /// An entry that listings omit, but lookups find.
    pub const HIDDEN: u64 = 1 << 15;
    /// A file to be read without the page cache.
    pub const DIRECT_IO: u64 = 1 << 16;
    /// A file whose first use triggers the prefetch of a bundle.
    pub const BUNDLE_TRIGGER: u64 = 1 << 17;

    /// All bits that have a meaning.
    pub const KNOWN: u64 = (1 << 18) - 1;

    const HASH_SHIFT: u32 = 8;
    const COMPRESSION_SHIFT: u32 = 11;

    /// Returns true if all these bits are set.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Returns the algorithm of the entry's hashes; none if its number is unknown.
    pub const fn hash_algorithm(self) -> Option<HashAlgorithm> {
        HashAlgorithm::from_flag((self.0 >> Self::HASH_SHIFT & 7) as u8)
    }

    /// The compression of the entry's objects; none if its number is unknown.
    pub const fn compression(self) -> Option<Compression> {
        Compression::from_flag((self.0 >> Self::COMPRESSION_SHIFT & 7) as u8)
    }

    /// Returns the flag bits of this algorithm and compression.
    pub const fn storage(algorithm: HashAlgorithm, compression: Compression) -> u64 {
        (algorithm.to_flag() as u64) << Self::HASH_SHIFT
            | (compression.to_flag() as u64) << Self::COMPRESSION_SHIFT
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_bits_encode_algorithm_and_compression() {
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            for compression in [Compression::Zlib, Compression::Stored, Compression::Zstd] {
                let flags = Flags(Flags::storage(algorithm, compression) | 1 << 40 | Flags::FILE);
                assert_eq!(flags.hash_algorithm(), Some(algorithm));
                assert_eq!(flags.compression(), Some(compression));
                assert!(flags.has(Flags::FILE) && !flags.has(Flags::CHUNKED));
            }
        }
        assert_eq!(Flags(0x700).hash_algorithm(), None);
        assert_eq!(Flags(0x3800).compression(), None);
    }
}
