//! Entries of a catalog and the encoding of their columns.

use crate::compress::Compression;
use crate::hash::{ContentHash, DIGEST_LEN};
use crate::sqlite::{Record, Slot, SqliteError, Table, TableRow, Value};

use super::{CatalogError, Flags, PathKey, XattrList};

/// Type of an entry, from the type bits of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symlink.
    Symlink,
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl EntryKind {
    /// Returns the kind that the type bits of a `st_mode` encode.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o040_000 => Self::Directory,
            0o100_000 => Self::File,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// Returns true for devices.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// Columns of table `catalog`, in the order of decoding.
pub(super) const COLUMNS: [&str; FIELDS] = [
    "md5path_1",
    "md5path_2",
    "parent_1",
    "parent_2",
    "hash",
    "size",
    "mode",
    "mtime",
    "flags",
    "name",
    "symlink",
    "hardlinks",
    "uid",
    "gid",
    "xattr",
    "mtimens",
];
const FIELDS: usize = 16;
/// First column that is missing in older catalogs.
const FIRST_OPTIONAL: usize = HARDLINKS;

const KEY: usize = 0;
const PARENT: usize = 2;
const HASH: usize = 4;
const SIZE: usize = 5;
const MODE: usize = 6;
const MTIME: usize = 7;
const FLAGS: usize = 8;
const NAME: usize = 9;
const SYMLINK: usize = 10;
const HARDLINKS: usize = 11;
const UID: usize = 12;
const GID: usize = 13;
const XATTR: usize = 14;
const MTIMENS: usize = 15;

/// Positions of the columns in the rows of one catalog; catalogs that were upgraded in place differ.
#[derive(Clone, Debug)]
pub(super) struct RowLayout {
    /// Field of each stored column.
    fields: Vec<Option<usize>>,
    /// Stored column of each field.
    columns: [Option<usize>; FIELDS],
}

impl RowLayout {
    pub(super) fn of(table: &Table<'_>) -> Result<Self, SqliteError> {
        let columns = COLUMNS.map(|name| table.column(name));
        let required = COLUMNS.iter().zip(&columns).take(FIRST_OPTIONAL);
        for (column, position) in required {
            if position.is_none() {
                return Err(SqliteError::NoColumn { table: "catalog", column });
            }
        }
        let field_of = |column| columns.iter().position(|position| *position == Some(column));
        Ok(Self { fields: (0..table.width()).map(field_of).collect(), columns })
    }

    /// Returns the stored columns of the key.
    pub(super) fn key_columns(&self) -> [usize; 2] {
        self.pair(KEY)
    }

    /// Returns the stored columns of the parent's key.
    pub(super) fn parent_columns(&self) -> [usize; 2] {
        self.pair(PARENT)
    }

    fn pair(&self, first: usize) -> [usize; 2] {
        let column = |field: usize| self.columns.get(field).copied().flatten().unwrap_or(usize::MAX);
        [column(first), column(first + 1)]
    }

    /// Decodes a row.
    pub(super) fn decode<'a>(&self, row: TableRow<'a>) -> Result<Row<'a>, CatalogError> {
        let mut slots = [None; FIELDS];
        for (slot, field) in row.record().slots().zip(&self.fields) {
            if let Some(target) = field.and_then(|field| slots.get_mut(field)) {
                *target = Some(slot);
            }
        }
        let rowid = row.rowid();
        let decoder = Decoder { layout: self, row: &row, slots };
        let parts = decoder.parts().map_err(|what| CatalogError::Row { rowid, what })?;
        Ok(Row { record: row.into_record(), parts })
    }
}

struct Decoder<'r, 'a> {
    layout: &'r RowLayout,
    row: &'r TableRow<'a>,
    slots: [Option<Slot>; FIELDS],
}

impl Decoder<'_, '_> {
    #[inline]
    fn value(&self, field: usize) -> Value<'_> {
        if let Some(Some(slot)) = self.slots.get(field) {
            return self.row.record().value(*slot);
        }
        match self.layout.columns.get(field) {
            Some(Some(column)) => self.row.default(*column),
            _ => Value::Null,
        }
    }

    /// Returns an integer; NULL is zero.
    #[inline]
    fn integer(&self, field: usize) -> Result<i64, &'static str> {
        match self.value(field) {
            Value::Integer(value) => Ok(value),
            Value::Null => Ok(0),
            _ => Err("a number column has a value of another type"),
        }
    }

    fn optional(&self, field: usize) -> Result<Option<i64>, &'static str> {
        if self.value(field) == Value::Null { Ok(None) } else { self.integer(field).map(Some) }
    }

    fn key(&self, first: usize) -> Result<PathKey, &'static str> {
        Ok(PathKey::from_columns(self.integer(first)?, self.integer(first + 1)?))
    }

    /// Returns the range of a text or blob; an empty one for NULL.
    fn bytes(&self, field: usize) -> Result<(usize, usize), &'static str> {
        match (self.value(field), self.slots.get(field)) {
            (Value::Text(_) | Value::Blob(_), Some(Some(slot))) => Ok(slot.range()),
            (Value::Null, _) | (Value::Text(b"") | Value::Blob(b""), _) => Ok((0, 0)),
            _ => Err("a text or blob column has a value of another type"),
        }
    }

    fn hash(&self) -> Result<Option<[u8; DIGEST_LEN]>, &'static str> {
        match self.value(HASH) {
            Value::Null => Ok(None),
            Value::Blob(bytes) | Value::Text(bytes) if bytes.is_empty() => Ok(None),
            Value::Blob(bytes) => bytes.try_into().map(Some).map_err(|_| "its hash does not have 20 bytes"),
            _ => Err("its hash is not a blob"),
        }
    }

    fn parts(&self) -> Result<Parts, &'static str> {
        let mode = u32::try_from(self.integer(MODE)?).map_err(|_| "its mode is out of range")?;
        let kind = EntryKind::from_mode(mode).ok_or("its mode has an unknown type")?;
        let size = self.integer(SIZE)?.cast_unsigned();
        if size > i64::MAX as u64 && !kind.is_device() {
            return Err("its size is negative");
        }
        if let Value::Text(name) | Value::Blob(name) = self.value(NAME)
            && !is_name(name)
        {
            return Err("its name is not a file name");
        }
        if let Value::Text(target) | Value::Blob(target) = self.value(SYMLINK)
            && target.contains(&0)
        {
            return Err("its symlink target has a zero byte in it");
        }
        let nanoseconds = self.optional(MTIMENS)?.and_then(|value| u32::try_from(value).ok());
        Ok(Parts {
            rowid: self.row.rowid(),
            key: self.key(KEY)?,
            parent: self.key(PARENT)?,
            mode,
            kind,
            size,
            mtime: self.integer(MTIME)?,
            mtime_ns: nanoseconds.filter(|value| *value < 1_000_000_000),
            flags: Flags(self.integer(FLAGS)?.cast_unsigned()),
            hardlinks: self.optional(HARDLINKS)?.map_or(1, i64::cast_unsigned),
            uid: self.optional(UID)?.map(low_half),
            gid: self.optional(GID)?.map(low_half),
            hash: self.hash()?,
            name: self.bytes(NAME)?,
            symlink: self.bytes(SYMLINK)?,
            xattr: match self.value(XATTR) {
                Value::Null => None,
                _ => Some(self.bytes(XATTR)?),
            },
        })
    }
}

/// Returns true if an entry can have this name; that of the root is empty.
pub fn is_name(name: &[u8]) -> bool {
    !name.iter().any(|byte| matches!(byte, b'/' | 0)) && !matches!(name, b"." | b"..")
}

/// Returns the low 32 bits: user and group numbers have 32 bits, and some writers store them as signed.
const fn low_half(value: i64) -> u32 {
    (value.cast_unsigned() & 0xffff_ffff) as u32
}

#[derive(Clone, Debug)]
struct Parts {
    rowid: i64,
    key: PathKey,
    parent: PathKey,
    mode: u32,
    kind: EntryKind,
    size: u64,
    mtime: i64,
    mtime_ns: Option<u32>,
    flags: Flags,
    hardlinks: u64,
    uid: Option<u32>,
    gid: Option<u32>,
    hash: Option<[u8; DIGEST_LEN]>,
    name: (usize, usize),
    symlink: (usize, usize),
    xattr: Option<(usize, usize)>,
}

/// An entry of a catalog. Names, targets and attributes borrow the catalog's bytes where possible.
#[derive(Clone)]
pub struct Row<'a> {
    record: Record<'a>,
    parts: Parts,
}

impl Row<'_> {
    /// Copies the entry's bytes, so that it can outlive the catalog.
    pub fn into_owned(self) -> Row<'static> {
        Row { record: self.record.into_owned(), parts: self.parts }
    }

    fn slice(&self, (start, end): (usize, usize)) -> &[u8] {
        self.record.payload().get(start..end).unwrap_or_default()
    }

    /// Returns the number of the row, from which the reference client derives inode numbers.
    pub const fn rowid(&self) -> i64 {
        self.parts.rowid
    }

    /// Returns the key of the entry's path.
    pub const fn key(&self) -> PathKey {
        self.parts.key
    }

    /// Returns the key of the parent directory's path.
    pub const fn parent(&self) -> PathKey {
        self.parts.parent
    }

    /// Returns the last component of the path; empty for the root of the repository.
    pub fn name(&self) -> &[u8] {
        self.slice(self.parts.name)
    }

    /// Returns the type of the entry.
    pub const fn kind(&self) -> EntryKind {
        self.parts.kind
    }

    /// Returns `st_mode`, type bits included.
    pub const fn mode(&self) -> u32 {
        self.parts.mode
    }

    /// Returns the size that `stat` reports; for symlinks the length of the stored target, before variables
    /// are replaced.
    pub fn size(&self) -> u64 {
        match self.parts.kind {
            EntryKind::Directory | EntryKind::File => self.parts.size,
            EntryKind::Symlink => self.symlink().len() as u64,
            EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice | EntryKind::BlockDevice => 0,
        }
    }

    /// Returns the device number of a device, encoded as by `makedev` of Linux.
    pub const fn device(&self) -> Option<u64> {
        if self.parts.kind.is_device() { Some(self.parts.size) } else { None }
    }

    /// Returns the seconds of the modification time.
    pub const fn mtime(&self) -> i64 {
        self.parts.mtime
    }

    /// Returns the nanoseconds of the modification time, if the publisher recorded them.
    pub const fn mtime_ns(&self) -> Option<u32> {
        self.parts.mtime_ns
    }

    /// Returns the owner; catalogs before 2.1 have none.
    pub const fn uid(&self) -> Option<u32> {
        self.parts.uid
    }

    /// Returns the group; catalogs before 2.1 have none.
    pub const fn gid(&self) -> Option<u32> {
        self.parts.gid
    }

    /// Returns the flag bits.
    pub const fn flags(&self) -> Flags {
        self.parts.flags
    }

    /// Returns the hash of the whole file's object; none for other types, for files stored only as chunks,
    /// and for an unknown algorithm.
    pub fn hash(&self) -> Option<ContentHash> {
        let algorithm = self.parts.flags.hash_algorithm()?;
        self.parts.hash.map(|digest| ContentHash::new(algorithm, digest))
    }

    /// The compression of the entry's objects; none if its number is unknown.
    pub const fn compression(&self) -> Option<Compression> {
        self.parts.flags.compression()
    }

    /// Returns the hardlink group, which is unique within its catalog only; zero is no group.
    pub const fn hardlink_group(&self) -> u32 {
        (self.parts.hardlinks >> 32) as u32
    }

    /// Returns the link count, at least one.
    pub const fn link_count(&self) -> u32 {
        let count = (self.parts.hardlinks & 0xffff_ffff) as u32;
        if count == 0 { 1 } else { count }
    }

    /// Returns the column of the hardlink group and link count as stored.
    pub const fn stored_hardlinks(&self) -> u64 {
        self.parts.hardlinks
    }

    /// Returns the column of the size as stored, which for devices is the device number.
    pub const fn stored_size(&self) -> u64 {
        self.parts.size
    }

    /// Returns true if the entry has a hash, also one of an unknown algorithm.
    pub const fn has_hash(&self) -> bool {
        self.parts.hash.is_some()
    }

    /// Returns the extended attributes as stored.
    pub fn stored_xattrs(&self) -> Option<&[u8]> {
        self.parts.xattr.map(|range| self.slice(range))
    }

    /// Returns the target of a symlink as stored, variables included; empty for other types.
    pub fn symlink(&self) -> &[u8] {
        self.slice(self.parts.symlink)
    }

    /// Returns true if the entry has extended attributes.
    pub const fn has_xattrs(&self) -> bool {
        self.parts.xattr.is_some()
    }

    /// Decodes the extended attributes.
    ///
    /// An invalid list counts as empty, as in the reference client: the kernel reads attributes of each
    /// program before it runs it, and an error would prevent that.
    pub fn xattrs(&self) -> XattrList {
        let unpack = |range| XattrList::parse(self.slice(range)).ok();
        self.parts.xattr.and_then(unpack).unwrap_or_default()
    }
}

impl std::fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("name", &String::from_utf8_lossy(self.name()))
            .field("parts", &self.parts)
            .finish()
    }
}
