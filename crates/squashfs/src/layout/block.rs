//! How blocks of data, fragments and metadata are announced.

use super::fields::{Fields, Put};
use super::{LayoutError, wrong};

/// Length of a full metadata block once decompressed.
pub const METADATA_BLOCK: usize = 8192;

/// Length of a fragment's entry in its table.
pub const FRAGMENT_LEN: usize = 16;

/// The fragment of a file that has none.
pub const NO_FRAGMENT: u32 = u32::MAX;

/// Number of metadata blocks of a table of `count` entries of `len` bytes, none of which crosses a block's end.
pub const fn table_blocks(count: u64, len: usize) -> u64 {
    count.div_ceil((METADATA_BLOCK / len) as u64)
}

/// A place in a metadata stream: the block, by where it starts in the image relative to the table, and the byte in it
/// once it is decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetaRef(pub u64);

impl MetaRef {
    /// The place `offset` bytes into the block that is stored `block` bytes after the start of the table.
    pub const fn new(block: u64, offset: u16) -> Self {
        Self(block << 16 | offset as u64)
    }

    /// Where the block is stored, relative to the start of the table.
    pub const fn block(self) -> u64 {
        self.0 >> 16
    }

    /// The byte in the block.
    pub const fn offset(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

/// The two bytes before a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaHeader {
    /// Length as stored.
    pub len: u16,
    /// Whether it is compressed.
    pub compressed: bool,
}

impl MetaHeader {
    /// Length of the header itself.
    pub const LEN: usize = 2;
    const PLAIN: u16 = 0x8000;

    /// Reads and checks a header.
    pub fn decode(bytes: [u8; Self::LEN]) -> Result<Self, LayoutError> {
        let word = u16::from_le_bytes(bytes);
        let len = word & !Self::PLAIN;
        if len == 0 || usize::from(len) > METADATA_BLOCK {
            return Err(wrong("the length of a metadata block", len));
        }
        Ok(Self { len, compressed: word & Self::PLAIN == 0 })
    }

    /// The bytes that [`MetaHeader::decode`] reads.
    pub const fn encode(self) -> [u8; Self::LEN] {
        let plain = if self.compressed { 0 } else { Self::PLAIN };
        (self.len | plain).to_le_bytes()
    }
}

/// How a block of data or a fragment block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWord {
    /// Length as stored; 0 for a block of zeros of which nothing is stored.
    pub len: u32,
    /// Whether it is compressed.
    pub compressed: bool,
}

impl BlockWord {
    /// A block of zeros.
    pub const HOLE: Self = Self { len: 0, compressed: true };
    /// Length of the word itself.
    pub const LEN: usize = 4;
    const PLAIN: u32 = 1 << 24;

    /// Reads a word and checks it against the length of a block: what is stored is never longer than what it stands
    /// for.
    pub fn decode(word: u32, block_size: u32) -> Result<Self, LayoutError> {
        let len = word & (Self::PLAIN - 1);
        if len > block_size || word >= Self::PLAIN << 1 {
            return Err(wrong("the length of a block", word));
        }
        Ok(Self { len, compressed: word & Self::PLAIN == 0 })
    }

    /// The word that [`BlockWord::decode`] reads.
    pub const fn encode(self) -> u32 {
        self.len | if self.compressed { 0 } else { Self::PLAIN }
    }

    /// Whether nothing is stored.
    pub const fn is_hole(self) -> bool {
        self.len == 0
    }
}

/// A fragment block: the ends of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where it is stored in the image.
    pub start: u64,
    /// How.
    pub word: BlockWord,
}

impl Fragment {
    /// Reads and checks an entry of the fragment table.
    pub fn decode(bytes: &[u8], block_size: u32) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a fragment", bytes);
        let (start, word) = (fields.u64()?, fields.u32()?);
        let word = BlockWord::decode(word, block_size)?;
        if word.is_hole() {
            return Err(wrong("the length of a fragment", word.len));
        }
        Ok(Self { start, word })
    }

    /// Appends the bytes that [`Fragment::decode`] reads.
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
    fn words_and_headers_come_back() {
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
    fn a_place_in_a_table_beyond_four_gigabytes_comes_back() {
        let place = MetaRef::new(1 << 40, 8191);
        assert_eq!((place.block(), place.offset()), (1 << 40, 8191));
    }

    #[test]
    fn fragments_come_back() {
        let fragment = Fragment { start: 3 << 41, word: BlockWord { len: 77, compressed: true } };
        let mut bytes = Vec::new();
        fragment.encode(&mut bytes);
        assert_eq!(bytes.len(), FRAGMENT_LEN);
        assert_eq!(Fragment::decode(&bytes, 4096), Ok(fragment));
    }

    #[test]
    fn tables_fill_their_blocks() {
        assert_eq!(table_blocks(0, FRAGMENT_LEN), 0);
        assert_eq!(table_blocks(512, FRAGMENT_LEN), 1);
        assert_eq!(table_blocks(513, FRAGMENT_LEN), 2);
    }
}
