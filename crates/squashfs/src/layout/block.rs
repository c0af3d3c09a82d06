//! Descriptors of blocks: data, fragments and metadata.

use super::fields::{Fields, Put};
use super::{LayoutError, wrong};

/// Length of a full metadata block in bytes, decompressed.
pub const METADATA_BLOCK: usize = 8192;

/// Length of a fragment's entry in its table, in bytes.
pub const FRAGMENT_LEN: usize = 16;

/// Fragment number of a file without a fragment.
pub const NO_FRAGMENT: u32 = u32::MAX;

/// Returns the number of metadata blocks of a table of `count` entries of `len` bytes; no entry crosses the
/// end of a block.
pub const fn table_blocks(count: u64, len: usize) -> u64 {
    count.div_ceil((METADATA_BLOCK / len) as u64)
}

/// Position in a metadata stream: the stored offset of the block relative to the table, and the byte in the
/// decompressed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetaRef(pub u64);

impl MetaRef {
    /// Creates the position of byte `offset` in the block that is stored `block` bytes after the start of the
    /// table.
    pub const fn new(block: u64, offset: u16) -> Self {
        Self(block << 16 | offset as u64)
    }

    /// Returns the stored offset of the block, relative to the start of the table.
    pub const fn block(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the byte offset in the decompressed block.
    pub const fn offset(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

/// The two-byte header of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaHeader {
    /// Stored length in bytes.
    pub len: u16,
    /// True if the block is compressed.
    pub compressed: bool,
}

impl MetaHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 2;
    const PLAIN: u16 = 0x8000;

    /// Parses and validates a header.
    pub fn decode(bytes: [u8; Self::LEN]) -> Result<Self, LayoutError> {
        let word = u16::from_le_bytes(bytes);
        let len = word & !Self::PLAIN;
        if len == 0 || usize::from(len) > METADATA_BLOCK {
            return Err(wrong("the length of a metadata block", len));
        }
        Ok(Self { len, compressed: word & Self::PLAIN == 0 })
    }

    /// Returns the encoded header, as [`MetaHeader::decode`] reads it.
    pub const fn encode(self) -> [u8; Self::LEN] {
        let plain = if self.compressed { 0 } else { Self::PLAIN };
        (self.len | plain).to_le_bytes()
    }
}

/// Stored length and compression of a data or fragment block, packed into 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWord {
    /// Stored length in bytes; 0 for a block of zeros that is not stored.
    pub len: u32,
    /// True if the block is compressed.
    pub compressed: bool,
}

impl BlockWord {
    /// A block of zeros that is not stored.
    pub const HOLE: Self = Self { len: 0, compressed: true };
    /// Length of the encoded word in bytes.
    pub const LEN: usize = 4;
    const PLAIN: u32 = 1 << 24;

    /// Parses a word and checks it against the block size: a block is never stored longer than it is.
    pub fn decode(word: u32, block_size: u32) -> Result<Self, LayoutError> {
        let len = word & (Self::PLAIN - 1);
        if len > block_size || word >= Self::PLAIN << 1 {
            return Err(wrong("the length of a block", word));
        }
        Ok(Self { len, compressed: word & Self::PLAIN == 0 })
    }

    /// Returns the encoded word, as [`BlockWord::decode`] reads it.
    pub const fn encode(self) -> u32 {
        self.len | if self.compressed { 0 } else { Self::PLAIN }
    }

    /// Returns true if the block is a hole that is not stored.
    pub const fn is_hole(self) -> bool {
        self.len == 0
    }
}

/// A fragment block: the tails of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the stored block in the image, in bytes.
    pub start: u64,
    /// Stored length and compression.
    pub word: BlockWord,
}

impl Fragment {
    /// Parses and validates an entry of the fragment table.
    pub fn decode(bytes: &[u8], block_size: u32) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a fragment", bytes);
        let (start, word) = (fields.u64()?, fields.u32()?);
        let word = BlockWord::decode(word, block_size)?;
        if word.is_hole() {
            return Err(wrong("the length of a fragment", word.len));
        }
        Ok(Self { start, word })
    }

    /// Appends the encoded entry, as [`Fragment::decode`] reads it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.start);
        out.u32(self.word.encode());
        out.u32(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_headers_survive_encoding() {
        for compressed in [true, false] {
            let word = BlockWord { len: 131_072, compressed };
            assert_eq!(BlockWord::decode(word.encode(), 131_072), Ok(word));
            let header = MetaHeader { len: 8192, compressed };
            assert_eq!(MetaHeader::decode(header.encode()), Ok(header));
        }
        assert_eq!(BlockWord::decode(0, 4096), Ok(BlockWord::HOLE));
        assert!(BlockWord::decode(131_073, 131_072).is_err());
        assert!(BlockWord::decode(1 << 25, 131_072).is_err());
        assert!(MetaHeader::decode([0, 0]).is_err());
        assert!(MetaHeader::decode(8193u16.to_le_bytes()).is_err());
    }

    #[test]
    fn a_position_in_a_table_beyond_four_gigabytes_survives_encoding() {
        let place = MetaRef::new(1 << 40, 8191);
        assert_eq!((place.block(), place.offset()), (1 << 40, 8191));
    }

    #[test]
    fn fragments_survive_encoding() {
        let fragment = Fragment { start: 3 << 41, word: BlockWord { len: 77, compressed: true } };
        let mut bytes = Vec::new();
        fragment.encode(&mut bytes);
        assert_eq!(bytes.len(), FRAGMENT_LEN);
        assert_eq!(Fragment::decode(&bytes, 4096), Ok(fragment));
    }

    #[test]
    fn table_entries_fill_their_blocks() {
        assert_eq!(table_blocks(0, FRAGMENT_LEN), 0);
        assert_eq!(table_blocks(512, FRAGMENT_LEN), 1);
        assert_eq!(table_blocks(513, FRAGMENT_LEN), 2);
    }
}
