//! Format of extended attributes: sets of names and values that inodes share.

use super::fields::{Fields, Put};
use super::{LayoutError, MetaRef, wrong};

/// Length of the table's description in bytes.
pub const XATTR_TABLE_LEN: usize = 16;
/// Length of a set's entry in the table, in bytes.
pub const XATTR_ID_LEN: usize = 16;
/// Length of an attribute's entry in bytes, without its name.
pub const XATTR_ENTRY_LEN: usize = 4;
/// Maximum length of a value that the kernel returns, in bytes.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Maximum length of a list of names that the kernel returns, in bytes, with a zero after each name.
pub const XATTR_LIST_MAX: usize = 64 << 10;

/// Description of the attribute table. The positions of the metadata blocks that hold the sets follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrTable {
    /// Offset of the metadata with names and values, in bytes.
    pub start: u64,
    /// Number of sets.
    pub sets: u32,
}

impl XattrTable {
    /// Parses the description.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("the table of extended attributes", bytes);
        Ok(Self { start: fields.u64()?, sets: fields.u32()? })
    }

    /// Appends the encoded description, as [`XattrTable::decode`] reads it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.start);
        out.u32(self.sets);
        out.u32(0);
    }
}

/// Entry of a set of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrId {
    /// Position of the set's first name, relative to [`XattrTable::start`].
    pub place: MetaRef,
    /// Number of attributes in the set.
    pub count: u32,
    /// Bytes that listxattr(2) needs for the names with prefixes and final zeros, plus the values.
    pub size: u32,
}

impl XattrId {
    /// Parses a set's entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a set of extended attributes", bytes);
        Ok(Self { place: MetaRef(fields.u64()?), count: fields.u32()?, size: fields.u32()? })
    }

    /// Appends the encoded entry, as [`XattrId::decode`] reads it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.place.0);
        out.u32(self.count);
        out.u32(self.size);
    }
}

/// Namespace prefix of a name, which is stored as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Prefix {
    /// `user.`
    User,
    /// `trusted.`
    Trusted,
    /// `security.`
    Security,
}

impl Prefix {
    /// Every prefix.
    pub const ALL: [Self; 3] = [Self::User, Self::Trusted, Self::Security];

    /// Returns the prefix with its dot.
    pub const fn text(self) -> &'static str {
        match self {
            Self::User => "user.",
            Self::Trusted => "trusted.",
            Self::Security => "security.",
        }
    }
}

/// Entry of an attribute, followed by its name and then its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry {
    /// Namespace prefix of the name.
    pub prefix: Prefix,
    /// True if the value is stored out of line; then the value field is the eight bytes of its [`MetaRef`].
    pub elsewhere: bool,
    /// Length of the name without its prefix, in bytes.
    pub name_len: u16,
}

impl XattrEntry {
    const ELSEWHERE: u16 = 0x100;

    /// Parses and validates an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("an extended attribute", bytes);
        let (kind, name_len) = (fields.u16()?, fields.u16()?);
        let prefix = Prefix::ALL.into_iter().find(|prefix| *prefix as u16 == kind & !Self::ELSEWHERE);
        let prefix = prefix.ok_or(wrong("the prefix of an extended attribute", kind))?;
        Ok(Self { prefix, elsewhere: kind & Self::ELSEWHERE != 0, name_len })
    }

    /// Appends the encoded entry, as [`XattrEntry::decode`] reads it; the caller appends the name.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.prefix as u16 | if self.elsewhere { Self::ELSEWHERE } else { 0 });
        out.u16(self.name_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_sets_and_entries_survive_encoding() {
        let mut bytes = Vec::new();
        let table = XattrTable { start: 1 << 41, sets: 5 };
        table.encode(&mut bytes);
        assert_eq!((bytes.len(), XattrTable::decode(&bytes)), (XATTR_TABLE_LEN, Ok(table)));
        bytes.clear();
        let set = XattrId { place: MetaRef::new(7, 8), count: 2, size: 99 };
        set.encode(&mut bytes);
        assert_eq!((bytes.len(), XattrId::decode(&bytes)), (XATTR_ID_LEN, Ok(set)));
        for prefix in Prefix::ALL {
            for elsewhere in [false, true] {
                let entry = XattrEntry { prefix, elsewhere, name_len: 12 };
                bytes.clear();
                entry.encode(&mut bytes);
                assert_eq!((bytes.len(), XattrEntry::decode(&bytes)), (XATTR_ENTRY_LEN, Ok(entry)));
            }
        }
        assert!(XattrEntry::decode(&[3, 0, 1, 0]).is_err());
    }
}
