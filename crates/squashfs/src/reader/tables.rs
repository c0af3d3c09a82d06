//! Reads the tables with one entry for each number: ids, fragments, and the export table.

use super::metadata::Stream;
use super::{Access, ReadResult};
use crate::layout::{
    FRAGMENT_LEN, Fragment, LayoutError, METADATA_BLOCK, MetaRef, NO_TABLE, SUPERBLOCK_LEN, Superblock,
    XATTR_TABLE_LEN, XattrTable, table_blocks,
};

/// Length in bytes of a metadata block's position in the list of a table.
const PLACE_LEN: usize = 8;
const ID_LEN: usize = 4;
const EXPORT_LEN: usize = 8;

/// Tables that stay in memory while the image is open.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// User and group ids.
    ids: Box<[u32]>,
    pub(super) xattrs: Option<XattrTable>,
}

/// Checks that an image of `len` bytes has room for everything that its superblock announces.
pub(super) fn check(superblock: &Superblock, len: u64) -> Result<(), LayoutError> {
    let end = superblock.bytes_used;
    if end > len {
        let what = "the length of the truncated image";
        return Err(LayoutError::Field { field: what, value: end });
    }
    let within = |field: &'static str, start: u64, size: Option<u64>| {
        let fits = size.and_then(|size| start.checked_add(size)).is_some_and(|last| last <= end);
        let placed = start >= SUPERBLOCK_LEN as u64;
        if fits && placed { Ok(()) } else { Err(LayoutError::Field { field, value: start }) }
    };
    let list = |count: u32, len: usize| table_blocks(count.into(), len).checked_mul(PLACE_LEN as u64);
    within("the place of the inodes", superblock.inode_table, Some(1))?;
    within("the place of the directories", superblock.directory_table, Some(0))?;
    if superblock.inode_table >= superblock.directory_table {
        let value = superblock.directory_table;
        return Err(LayoutError::Field { field: "the place of the directories", value });
    }
    within("the place of the ids", superblock.id_table, list(superblock.ids.into(), ID_LEN))?;
    if superblock.fragments > 0 {
        within(
            "the place of the fragments",
            superblock.fragment_table,
            list(superblock.fragments, FRAGMENT_LEN),
        )?;
    }
    if superblock.export_table != NO_TABLE {
        within(
            "the place of the export table",
            superblock.export_table,
            list(superblock.inodes, EXPORT_LEN),
        )?;
    }
    if superblock.xattr_table != NO_TABLE {
        within("the place of the attributes", superblock.xattr_table, Some(XATTR_TABLE_LEN as u64))?;
    }
    Ok(())
}

impl Access<'_> {
    /// Reads the tables that stay in memory while the image is open.
    pub(super) fn read_tables(self) -> ReadResult<Tables> {
        let superblock = self.core.superblock;
        let mut ids = Vec::with_capacity(usize::from(superblock.ids));
        for number in 0..u64::from(superblock.ids) {
            ids.push(u32::from_le_bytes(self.entry(superblock.id_table, number)?));
        }
        let xattrs = match superblock.xattr_table {
            NO_TABLE => None,
            at => {
                let mut bytes = [0; XATTR_TABLE_LEN];
                self.stored(at, &mut bytes)?;
                let fault = |error| self.core.fault(at, error);
                let table = XattrTable::decode(&bytes).map_err(fault)?;
                if table.start > superblock.xattr_table {
                    return Err(self.core.fault(at, "the attributes begin behind their table").into());
                }
                Some(table)
            }
        };
        Ok(Tables { ids: ids.into(), xattrs })
    }

    /// Returns entry `number` of the table whose block list is at `list`.
    pub(super) fn entry<const N: usize>(self, list: u64, number: u64) -> ReadResult<[u8; N]> {
        let a_block = (METADATA_BLOCK / N) as u64;
        let mut place = [0; PLACE_LEN];
        let listed = list.checked_add(number / a_block * PLACE_LEN as u64);
        let listed = listed.ok_or_else(|| self.core.fault(list, "a table is too long"))?;
        self.stored(listed, &mut place)?;
        let start = u64::from_le_bytes(place);
        let offset = u16::try_from(number % a_block * N as u64).unwrap_or(u16::MAX);
        // The blocks of a table are stored before their list.
        let mut cursor = self.cursor(Stream { start, end: list }, MetaRef::new(0, offset))?;
        cursor.array()
    }

    /// Returns the user or group id of index `number`.
    pub(crate) fn id(self, number: u16, inode: MetaRef) -> ReadResult<u32> {
        self.core.tables.ids.get(usize::from(number)).copied().ok_or_else(|| {
            let at = self.core.superblock.inode_table + inode.block();
            self.core.fault(at, format!("the owner of an inode is id {number}, which isn't there")).into()
        })
    }

    /// Returns the entry of fragment block `number`.
    pub(crate) fn fragment(self, number: u32) -> ReadResult<Fragment> {
        let superblock = &self.core.superblock;
        let table = superblock.fragment_table;
        if number >= superblock.fragments {
            return Err(self.core.fault(table, format!("there is no fragment {number}")).into());
        }
        let bytes: [u8; FRAGMENT_LEN] = self.entry(table, number.into())?;
        let fragment = Fragment::decode(&bytes, superblock.block_size);
        fragment.map_err(|error| self.core.fault(table, format!("fragment {number}: {error}")).into())
    }

    /// Returns the position of inode `number`; none without an export table.
    pub(crate) fn exported(self, number: u32) -> ReadResult<Option<MetaRef>> {
        let superblock = &self.core.superblock;
        if superblock.export_table == NO_TABLE || number == 0 || number > superblock.inodes {
            return Ok(None);
        }
        let bytes = self.entry::<EXPORT_LEN>(superblock.export_table, u64::from(number) - 1)?;
        Ok(Some(MetaRef(u64::from_le_bytes(bytes))))
    }
}
