//! Reads extended attributes.

use super::metadata::{Cursor, Stream};
use super::{Access, ReadError, ReadResult};
use crate::layout::{
    MetaRef, NO_XATTRS, Prefix, XATTR_ENTRY_LEN, XATTR_ID_LEN, XATTR_LIST_MAX, XATTR_TABLE_LEN,
    XATTR_VALUE_MAX, XattrEntry, XattrId,
};

/// Maximum number of an inode's attributes, which the kernel's limit on name lists implies.
const COUNT_MAX: u32 = 64 << 10;
/// Maximum bytes of a set that are scanned: a few compressed bytes may expand to gigabytes of metadata.
const SET_MAX: u64 = 16 << 20;

/// Iterator over the attributes of a set.
struct Attributes<'a> {
    access: Access<'a>,
    cursor: Cursor<'a>,
    stream: Stream,
    left: u32,
    /// Bytes of the name list, and of the set, so far.
    list: usize,
    scanned: u64,
}

impl<'a> Access<'a> {
    /// Returns the names in a set.
    pub(crate) fn xattr_names(self, set: u32) -> ReadResult<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let Some(mut attributes) = self.attributes(set)? else { return Ok(names) };
        while let Some((entry, rest)) = attributes.name()? {
            names.push([entry.prefix.text().as_bytes(), &rest].concat());
            attributes.skip_value()?;
        }
        Ok(names)
    }

    /// Returns the value of `name` in a set.
    pub(crate) fn xattr(self, set: u32, name: &[u8]) -> ReadResult<Option<Vec<u8>>> {
        let split = |prefix: Prefix| Some((prefix, name.strip_prefix(prefix.text().as_bytes())?));
        let Some((prefix, wanted)) = Prefix::ALL.into_iter().find_map(split) else { return Ok(None) };
        let Some(mut attributes) = self.attributes(set)? else { return Ok(None) };
        while let Some((entry, rest)) = attributes.name()? {
            if entry.prefix == prefix && rest == wanted {
                return attributes.value(entry.elsewhere).map(Some);
            }
            attributes.skip_value()?;
        }
        Ok(None)
    }

    fn attributes(self, set: u32) -> ReadResult<Option<Attributes<'a>>> {
        let core = self.core;
        if set == NO_XATTRS {
            return Ok(None);
        }
        let at = core.superblock.xattr_table;
        let Some(table) = core.tables.xattrs.filter(|table| set < table.sets) else {
            return Err(core.fault(at, format!("there is no set {set} of extended attributes")).into());
        };
        let bytes = self.entry::<XATTR_ID_LEN>(at + XATTR_TABLE_LEN as u64, set.into())?;
        let id = XattrId::decode(&bytes).map_err(|error| core.fault(at, error))?;
        if id.count > COUNT_MAX {
            return Err(core.fault(at, format!("set {set} has {} extended attributes", id.count)).into());
        }
        let stream = Stream { start: table.start, end: at };
        let cursor = self.cursor(stream, id.place)?;
        Ok(Some(Attributes { access: self, cursor, stream, left: id.count, list: 0, scanned: 0 }))
    }
}

impl Attributes<'_> {
    /// Returns the next attribute without its value, which the caller must read or skip.
    fn name(&mut self) -> ReadResult<Option<(XattrEntry, Vec<u8>)>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let entry = XattrEntry::decode(&self.cursor.array::<XATTR_ENTRY_LEN>()?);
        let entry = entry.map_err(|error| self.cursor.fault(&error))?;
        self.list += entry.prefix.text().len() + usize::from(entry.name_len) + 1;
        if self.list > XATTR_LIST_MAX {
            return Err(self.too_many("more names of extended attributes than an inode can have"));
        }
        let rest = self.cursor.bytes(entry.name_len.into())?;
        Ok(Some((entry, rest)))
    }

    fn skip_value(&mut self) -> ReadResult<()> {
        let len = u32::from_le_bytes(self.cursor.array()?).into();
        self.scanned += len;
        if self.scanned > SET_MAX {
            return Err(self.too_many("extended attributes of more than 16 MiB"));
        }
        self.cursor.skip(len)
    }

    fn too_many(&self, what: &str) -> ReadError {
        self.access.core.fault(self.stream.start, what).into()
    }

    fn value(&mut self, elsewhere: bool) -> ReadResult<Vec<u8>> {
        let mut len = u32::from_le_bytes(self.cursor.array()?);
        if elsewhere {
            let place = MetaRef(u64::from_le_bytes(self.cursor.array()?));
            self.cursor = self.access.cursor(self.stream, place)?;
            len = u32::from_le_bytes(self.cursor.array()?);
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > XATTR_VALUE_MAX {
            let what = format!("an extended attribute of {len} bytes");
            return Err(self.access.core.fault(self.stream.start, what).into());
        }
        self.cursor.bytes(len)
    }
}
