//! Superblock: the first bytes of an image.

use super::fields::{Fields, Put};
use super::{LayoutError, MetaRef, wrong};

/// Length of the superblock in bytes.
pub const SUPERBLOCK_LEN: usize = 96;

/// Position of a table that the image doesn't have.
pub const NO_TABLE: u64 = u64::MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"hsqs");
const MAJOR: u16 = 4;
const MINOR: u16 = 0;
/// Binary logarithm of the allowed block sizes: 4 KiB to 1 MiB.
const BLOCK_LOG: std::ops::RangeInclusive<u16> = 12..=20;

/// Codec of an image's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CodecId {
    /// zlib streams.
    Gzip = 1,
    /// LZO1X.
    Lzo = 3,
    /// xz streams, perhaps with a filter for machine code.
    Xz = 4,
    /// LZ4 blocks.
    Lz4 = 5,
    /// Zstandard frames.
    Zstd = 6,
}

impl CodecId {
    /// Every codec.
    pub const ALL: [Self; 5] = [Self::Gzip, Self::Lzo, Self::Xz, Self::Lz4, Self::Zstd];

    /// Returns the codec's name, as mksquashfs spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Lzo => "lzo",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    fn decode(id: u16) -> Result<Self, LayoutError> {
        let known = Self::ALL.into_iter().find(|codec| *codec as u16 == id);
        known.ok_or_else(|| match id {
            2 => LayoutError::Unsupported { what: "the codec lzma, which xz has replaced,".to_owned() },
            _ => LayoutError::Unsupported { what: format!("codec number {id}") },
        })
    }
}

/// Flag bits of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// Flag: the image has no fragments.
    pub const NO_FRAGMENTS: u16 = 0x10;
    /// Flag: the tails of all files are in fragments, not only small files.
    pub const ALWAYS_FRAGMENTS: u16 = 0x20;
    /// Flag: files with equal content share it.
    pub const DUPLICATES: u16 = 0x40;
    /// Flag: the image has an export table.
    pub const EXPORTABLE: u16 = 0x80;
    /// Flag: the image has no extended attributes.
    pub const NO_XATTRS: u16 = 0x200;
    /// Options of the codec follow the superblock.
    pub const OPTIONS: u16 = 0x400;

    /// Returns true if all bits of `flag` are set.
    pub const fn has(self, flag: u16) -> bool {
        self.0 & flag == flag
    }
}

/// Superblock of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of inodes.
    pub inodes: u32,
    /// Creation time of the image in seconds since the epoch.
    pub modified: u32,
    /// Length of a data block in bytes: a power of two from 4 KiB to 1 MiB.
    pub block_size: u32,
    /// Number of fragment blocks.
    pub fragments: u32,
    /// Codec of all blocks.
    pub codec: CodecId,
    /// Flag bits.
    pub flags: Flags,
    /// Number of user and group ids.
    pub ids: u16,
    /// Position of the root directory's inode.
    pub root: MetaRef,
    /// Length of the image in bytes; padding follows it.
    pub bytes_used: u64,
    /// Offset of the block list of the id table, in bytes.
    pub id_table: u64,
    /// Offset of the description of the extended attributes, or [`NO_TABLE`].
    pub xattr_table: u64,
    /// Offset of the inode table.
    pub inode_table: u64,
    /// Offset of the directory table.
    pub directory_table: u64,
    /// Offset of the block list of the fragment table, or [`NO_TABLE`].
    pub fragment_table: u64,
    /// Offset of the block list of the export table, or [`NO_TABLE`].
    pub export_table: u64,
}

impl Superblock {
    /// Returns true if `bytes` begins with the magic of squashfs.
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    /// Parses and validates a superblock.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("the superblock", bytes);
        if fields.u32()? != MAGIC {
            return Err(LayoutError::Magic);
        }
        let (inodes, modified, block_size, fragments) =
            (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (codec, block_log, flags, ids) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let (major, minor) = (fields.u16()?, fields.u16()?);
        if (major, minor) != (MAJOR, MINOR) {
            return Err(LayoutError::Unsupported { what: format!("squashfs {major}.{minor}") });
        }
        if !BLOCK_LOG.contains(&block_log) || 1 << block_log != block_size {
            return Err(wrong("the block size", block_size));
        }
        if inodes == 0 {
            return Err(wrong("the number of inodes", inodes));
        }
        if ids == 0 {
            return Err(wrong("the number of ids", ids));
        }
        Ok(Self {
            inodes,
            modified,
            block_size,
            fragments,
            codec: CodecId::decode(codec)?,
            flags: Flags(flags),
            ids,
            root: MetaRef(fields.u64()?),
            bytes_used: fields.u64()?,
            id_table: fields.u64()?,
            xattr_table: fields.u64()?,
            inode_table: fields.u64()?,
            directory_table: fields.u64()?,
            fragment_table: fields.u64()?,
            export_table: fields.u64()?,
        })
    }

    /// Returns the encoded superblock, as [`Superblock::decode`] reads it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SUPERBLOCK_LEN);
        for number in [MAGIC, self.inodes, self.modified, self.block_size, self.fragments] {
            out.u32(number);
        }
        let log = u16::try_from(self.block_size.trailing_zeros()).expect("a u32 has at most 32 zeros");
        for number in [self.codec as u16, log, self.flags.0, self.ids, MAJOR, MINOR] {
            out.u16(number);
        }
        let tables = [self.id_table, self.xattr_table, self.inode_table, self.directory_table];
        let first = [self.root.0, self.bytes_used];
        for number in first.into_iter().chain(tables).chain([self.fragment_table, self.export_table]) {
            out.u64(number);
        }
        out
    }
}

#[cfg(test)]
impl Superblock {
    /// Returns a superblock with a value in every field.
    pub(crate) fn example() -> Self {
        Self {
            inodes: 7,
            modified: 1_700_000_000,
            block_size: 131_072,
            fragments: 3,
            codec: CodecId::Zstd,
            flags: Flags(Flags::EXPORTABLE | Flags::DUPLICATES),
            ids: 2,
            root: MetaRef::new(4, 96),
            bytes_used: 1 << 42,
            id_table: 11,
            xattr_table: NO_TABLE,
            inode_table: 12,
            directory_table: 13,
            fragment_table: 14,
            export_table: 15,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_encoding() {
        let bytes = Superblock::example().encode();
        assert_eq!(bytes.len(), SUPERBLOCK_LEN);
        assert!(Superblock::is_here(&bytes));
        assert_eq!(Superblock::decode(&bytes), Ok(Superblock::example()));
    }

    #[test]
    fn invalid_superblocks_are_rejected_by_field_name() {
        let change = |at: usize, to: u8| {
            let mut bytes = Superblock::example().encode();
            bytes[at] = to;
            Superblock::decode(&bytes).expect_err("refused").to_string()
        };
        assert_eq!(change(0, 0), "no squashfs image starts here");
        assert_eq!(change(28, 3), "squashfs 3.0 is not supported");
        assert_eq!(change(12, 1), "the block size is 0x20001, which is invalid");
        assert_eq!(change(22, 40), "the block size is 0x20000, which is invalid");
        assert_eq!(change(20, 2), "the codec lzma, which xz has replaced, is not supported");
        assert_eq!(change(20, 77), "codec number 77 is not supported");
        assert_eq!(change(26, 0), "the number of ids is 0x0, which is invalid");
        let short = Superblock::decode(&Superblock::example().encode()[..95]).expect_err("short");
        assert_eq!(short.to_string(), "the superblock is cut short");
    }
}
