//! Extended attributes: sets of names and values that inodes share.

use super::fields::{Fields, Put};
use super::{LayoutError, MetaRef, wrong};

/// Length of the description of the table.
pub const XATTR_TABLE_LEN: usize = 16;
/// Length of a set's entry in the table.
pub const XATTR_ID_LEN: usize = 16;
/// Length of an attribute's entry without its name.
pub const XATTR_ENTRY_LEN: usize = 4;
/// Longest value that the kernel hands out.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Longest list of names that the kernel hands out, with a zero after each.
pub const XATTR_LIST_MAX: usize = 64 << 10;

/// Where the extended attributes are. The places of the metadata blocks that hold the sets follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrTable {
    /// Where the metadata of names and values begins.
    pub start: u64,
    /// Number of sets.
    pub sets: u32,
}

impl XattrTable {
    /// Reads the description.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("the table of extended attributes", bytes);
        Ok(Self { start: fields.u64()?, sets: fields.u32()? })
    }

    /// Appends the bytes that [`XattrTable::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.start);
        out.u32(self.sets);
        out.u32(0);
    }
}

/// A set of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrId {
    /// Where its first name is, relative to [`XattrTable::start`].
    pub place: MetaRef,
    /// How many attributes it has.
    pub count: u32,
    /// What listxattr(2) needs for their names with prefixes and final zeros, and their values.
    pub size: u32,
}

impl XattrId {
    /// Reads a set.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("a set of extended attributes", bytes);
        Ok(Self { place: MetaRef(fields.u64()?), count: fields.u32()?, size: fields.u32()? })
    }

    /// Appends the bytes that [`XattrId::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.place.0);
        out.u32(self.count);
        out.u32(self.size);
    }
}

/// What a name begins with; it isn't stored.
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

    /// The prefix with its dot.
    pub const fn text(self) -> &'static str {
        match self {
            Self::User => "user.",
            Self::Trusted => "trusted.",
            Self::Security => "security.",
        }
    }
}

/// An attribute, without its name, which follows it; the value follows that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry {
    /// What the name begins with.
    pub prefix: Prefix,
    /// Whether the value is elsewhere, and what is here is the eight bytes of its [`MetaRef`].
    pub elsewhere: bool,
    /// Length of the rest of the name.
    pub name_len: u16,
}

impl XattrEntry {
    const ELSEWHERE: u16 = 0x100;

    /// Reads and checks an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("an extended attribute", bytes);
        let (kind, name_len) = (fields.u16()?, fields.u16()?);
        let prefix = Prefix::ALL.into_iter().find(|prefix| *prefix as u16 == kind & !Self::ELSEWHERE);
        let prefix = prefix.ok_or(wrong("the prefix of an extended attribute", kind))?;
        Ok(Self { prefix, elsewhere: kind & Self::ELSEWHERE != 0, name_len })
    }

    /// Appends the bytes that [`XattrEntry::decode`] reads; the name is to follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.prefix as u16 | if self.elsewhere { Self::ELSEWHERE } else { 0 });
        out.u16(self.name_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_back() {
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
