//! Directory format: runs of names whose inodes are in the same metadata block.

use super::fields::{Fields, Put};
use super::{InodeType, LayoutError, wrong};

/// Difference between a directory's recorded length and the length of its names: room for `.` and `..`, which
/// aren't stored.
pub const DIRECTORY_EXTRA: u32 = 3;
/// Length of a run's header in bytes.
pub const RUN_LEN: usize = 12;
/// Maximum number of names in a run.
pub const RUN_MAX: u32 = 256;
/// Length of an entry in bytes, without its name.
pub const ENTRY_LEN: usize = 8;
/// Maximum length of a name in bytes.
pub const NAME_MAX: usize = 256;
/// Length of an index entry in bytes, without its name.
pub const INDEX_LEN: usize = 12;

/// Header of a run of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of names: 1 to [`RUN_MAX`].
    pub count: u32,
    /// Position of the metadata block of the run's inodes, relative to the inode table.
    pub inode_block: u32,
    /// Base of the inode numbers of the entries.
    pub inode_number: u32,
}

impl Run {
    /// Parses and validates a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a directory's header", bytes);
        let (last, inode_block, inode_number) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if last >= RUN_MAX {
            return Err(wrong("the number of names in a run", last));
        }
        Ok(Self { count: last + 1, inode_block, inode_number })
    }

    /// Appends the encoded header, as [`Run::decode`] reads it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.count - 1);
        out.u32(self.inode_block);
        out.u32(self.inode_number);
    }
}

/// Entry of a run, without the name that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the inode in the run's metadata block, in bytes.
    pub inode_offset: u16,
    /// Inode number relative to the run's.
    pub number_delta: i16,
    /// Type of the inode; the basic type also for an extended inode.
    pub kind: InodeType,
    /// Length of the name in bytes: 1 to [`NAME_MAX`].
    pub name_len: usize,
}

impl Entry {
    /// Parses and validates an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a directory's entry", bytes);
        let (inode_offset, delta, kind, last) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let name_len = usize::from(last) + 1;
        if name_len > NAME_MAX {
            return Err(wrong("the length of a name", name_len as u64));
        }
        let kind = InodeType::decode(kind)?.basic();
        Ok(Self { inode_offset, number_delta: delta.cast_signed(), kind, name_len })
    }

    /// Appends the encoded entry, as [`Entry::decode`] reads it; the caller appends the name.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.inode_offset);
        out.u16(self.number_delta.cast_unsigned());
        out.u16(self.kind.basic() as u16);
        out.u16(u16::try_from(self.name_len - 1).expect("a name has at most 256 bytes"));
    }
}

/// Index entry of a large directory, without its name: the first name of the first run in a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset of the run from the start of the directory, in bytes.
    pub position: u32,
    /// Position of the metadata block in which the run begins, relative to the directory table.
    pub block: u32,
    /// Length of the name in bytes: 1 to [`NAME_MAX`].
    pub name_len: usize,
}

impl IndexEntry {
    /// Parses and validates an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a directory's index", bytes);
        let (position, block, last) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let name_len = usize::try_from(last).ok().and_then(|last| last.checked_add(1));
        match name_len {
            Some(name_len) if name_len <= NAME_MAX => Ok(Self { position, block, name_len }),
            _ => Err(wrong("the length of a name in an index", last)),
        }
    }

    /// Appends the encoded entry, as [`IndexEntry::decode`] reads it; the caller appends the name.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.position);
        out.u32(self.block);
        out.u32(u32::try_from(self.name_len - 1).expect("a name has at most 256 bytes"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_entries_and_indexes_survive_encoding() {
        let mut bytes = Vec::new();
        let run = Run { count: RUN_MAX, inode_block: 5, inode_number: 6 };
        run.encode(&mut bytes);
        assert_eq!(Run::decode(&bytes), Ok(run));
        bytes.clear();
        let entry = Entry { inode_offset: 9, number_delta: -3, kind: InodeType::File, name_len: NAME_MAX };
        entry.encode(&mut bytes);
        assert_eq!(bytes.len(), ENTRY_LEN);
        assert_eq!(Entry::decode(&bytes), Ok(entry));
        bytes.clear();
        let index = IndexEntry { position: 8192, block: 44, name_len: 1 };
        index.encode(&mut bytes);
        assert_eq!(bytes.len(), INDEX_LEN);
        assert_eq!(IndexEntry::decode(&bytes), Ok(index));
    }

    #[test]
    fn counts_and_lengths_are_bounded() {
        assert!(Run::decode(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(Entry::decode(&[0, 0, 0, 0, 2, 0, 0, 1]).is_err());
        assert!(IndexEntry::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]).is_err());
    }
}
