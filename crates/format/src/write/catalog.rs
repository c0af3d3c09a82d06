//! Writes file catalogs: schema 2.5, revision 7.
//!
//! Entries are stored in the order in which they are pushed. Pushing whole directories, one after the other,
//! is best for readers: the entries of a directory are adjacent, and their equal owners, times and parent
//! keys compress well.

use crate::catalog::{
    CarriedRow, CarriedValue, Chunk, Counters, EntryKind, Flags, NestedCatalog, PathKey, REVISION, Row,
    Statistics, is_name,
};
use crate::hash::ContentHash;
use crate::time::UnixTime;

use super::sqlite::{DatabaseBuilder, TableWriter, Value};

mod counters;

/// An entry to be written. Bits of `flags` that follow from other fields need not be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Last component of the path; empty for the root of the repository.
    pub name: Vec<u8>,
    /// `st_mode`, type bits included.
    pub mode: u32,
    /// Size of a regular file or directory in bytes, device number of a device, otherwise zero.
    pub size: u64,
    /// Modification time in seconds since the epoch.
    pub mtime: i64,
    /// Nanoseconds of the modification time, if they are to be recorded.
    pub mtime_ns: Option<u32>,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Flag bits: storage, hidden, direct I/O, nested catalogs, and unknown bits of newer publishers.
    pub flags: Flags,
    /// Hash of the object of a regular file that is stored whole.
    pub hash: Option<ContentHash>,
    /// Chunks of a regular file that is stored in chunks.
    pub chunks: Vec<Chunk>,
    /// Target of a symlink.
    pub symlink: Vec<u8>,
    /// Encoded extended attributes; those of a published entry as they are, also if they can't be decoded.
    pub xattrs: Option<Vec<u8>>,
    /// Hardlink group in this catalog; zero is none.
    pub hardlink_group: u32,
    /// The link count.
    pub link_count: u32,
}

impl Entry {
    /// Creates an entry with only its mode set.
    pub fn of_mode(mode: u32) -> Self {
        Self {
            name: Vec::new(),
            mode,
            size: 0,
            mtime: 0,
            mtime_ns: None,
            uid: 0,
            gid: 0,
            flags: Flags(0),
            hash: None,
            chunks: Vec::new(),
            symlink: Vec::new(),
            xattrs: None,
            hardlink_group: 0,
            link_count: 1,
        }
    }

    /// Copies an entry of a published catalog; `chunks` are those that the catalog lists for it.
    pub fn from_row(row: &Row<'_>, chunks: Vec<Chunk>) -> Self {
        Self {
            name: row.name().to_vec(),
            mode: row.mode(),
            size: match row.kind() {
                EntryKind::File | EntryKind::Directory => row.size(),
                _ => row.device().unwrap_or(0),
            },
            mtime: row.mtime(),
            mtime_ns: row.mtime_ns(),
            uid: row.uid().unwrap_or(0),
            gid: row.gid().unwrap_or(0),
            flags: row.flags(),
            hash: row.hash(),
            chunks,
            symlink: row.symlink().to_vec(),
            xattrs: row.stored_xattrs().map(<[u8]>::to_vec),
            hardlink_group: row.hardlink_group(),
            link_count: row.link_count(),
        }
    }

    /// Returns an error text if readers would reject the entry, and with it its catalog, or ignore a part of
    /// it.
    pub fn check(&self) -> Result<(), &'static str> {
        let kind = self.kind().ok_or("its mode has an unknown type")?;
        if i64::try_from(self.size).is_err() && !kind.is_device() {
            return Err("its size is beyond what catalogs can hold");
        }
        if !is_name(&self.name) {
            return Err("its name is not a file name");
        }
        if self.symlink.contains(&0) {
            return Err("its symlink target has a zero byte in it");
        }
        // Its digest can't be kept without the algorithm.
        if self.flags.hash_algorithm().is_none() {
            return Err("the algorithm of its hash is unknown");
        }
        Ok(())
    }

    /// Returns the type of the entry; none if the mode is invalid.
    pub fn kind(&self) -> Option<EntryKind> {
        EntryKind::from_mode(self.mode)
    }

    /// Returns true for directories.
    pub fn is_directory(&self) -> bool {
        self.kind() == Some(EntryKind::Directory)
    }

    /// Returns true for regular files.
    pub fn is_file(&self) -> bool {
        self.kind() == Some(EntryKind::File)
    }

    /// Returns the bits that the reference requires for this type of entry, plus those of `flags`.
    fn stored_flags(&self) -> u64 {
        const DERIVED: u64 =
            Flags::DIRECTORY | Flags::FILE | Flags::SYMLINK | Flags::SPECIAL | Flags::CHUNKED;
        let requested = self.flags.0 & !DERIVED;
        let directory_only = Flags::NESTED_MOUNTPOINT | Flags::NESTED_ROOT | Flags::BIND_MOUNTPOINT;
        let file_only = Flags::EXTERNAL | Flags::DIRECT_IO | Flags::BUNDLE_TRIGGER;
        // Entries of other types may have a hash, too: that of a micro catalog, for example.
        let storage_bits = if self.hash.is_some() { 0 } else { 7 << 11 | 7 << 8 };
        match self.kind() {
            Some(EntryKind::Directory) => requested & !(file_only | storage_bits) | Flags::DIRECTORY,
            Some(EntryKind::File) => {
                let chunked = if self.chunks.is_empty() { 0 } else { Flags::CHUNKED };
                requested & !directory_only | Flags::FILE | chunked
            }
            Some(EntryKind::Symlink) => {
                requested & !(directory_only | file_only | storage_bits) | Flags::FILE | Flags::SYMLINK
            }
            _ => requested & !(directory_only | file_only | storage_bits) | Flags::FILE | Flags::SPECIAL,
        }
    }

    /// Returns the stored size, which for symlinks is the length of the target.
    fn stored_size(&self) -> i64 {
        match self.kind() {
            Some(EntryKind::Symlink) => i64::try_from(self.symlink.len()).unwrap_or(i64::MAX),
            Some(EntryKind::Fifo | EntryKind::Socket) => 0,
            _ => self.size.cast_signed(),
        }
    }
}

/// Properties of a catalog to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogHeader {
    /// Revision of the catalog.
    pub revision: u64,
    /// Time of the publish.
    pub last_modified: UnixTime,
    /// Hash of this catalog's previous version.
    pub previous: Option<ContentHash>,
    /// Directory of a nested catalog; empty for root catalogs.
    pub root_prefix: Vec<u8>,
    /// Seconds for which clients may use a root catalog.
    pub ttl: Option<u32>,
    /// True if content changes often.
    pub volatile: bool,
    /// Authorization of a secured repository.
    pub authorization: Option<String>,
    /// Branch of a root catalog.
    pub branch: Option<String>,
    /// Properties of the catalog before; those with the name of a field above are left out.
    pub carried_properties: Vec<CarriedRow>,
    /// Counters of the catalog before whose meaning is unknown.
    pub carried_counters: Vec<CarriedRow>,
}

/// A finished catalog.
#[derive(Clone, Debug)]
pub struct WrittenCatalog {
    /// Bytes of the database.
    pub bytes: Vec<u8>,
    /// Counters of the catalog.
    pub statistics: Statistics,
}

/// Collects the entries of one catalog.
#[derive(Debug, Default)]
pub struct CatalogWriter {
    entries: Vec<(PathKey, PathKey, Entry)>,
    nested: Vec<NestedCatalog>,
}

impl CatalogWriter {
    /// Creates a catalog without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry.
    pub fn push(&mut self, key: PathKey, parent: PathKey, entry: Entry) {
        self.entries.push((key, parent, entry));
    }

    /// Adds a nested catalog or a bind mountpoint.
    pub fn push_nested(&mut self, nested: NestedCatalog) {
        self.nested.push(nested);
    }

    /// Returns the number of entries so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the catalog; `subtree` has the counters of the nested catalogs.
    pub fn finish(mut self, header: &CatalogHeader, subtree: Counters) -> WrittenCatalog {
        let own = Counters::of(self.entries.iter().map(|(_, _, entry)| entry), self.nested.iter());
        let statistics = Statistics { own, subtree, faulty: false };
        self.nested.sort_by(|a, b| a.path.cmp(&b.path));
        let mut database = DatabaseBuilder::new();
        write_entries(&mut database, &self.entries);
        write_chunks(&mut database, &self.entries);
        let (bind, nested): (Vec<_>, Vec<_>) = self.nested.iter().partition(|nested| nested.bind);
        let index = "sqlite_autoindex_nested_catalogs_1";
        database.keyed_table("nested_catalogs", NESTED_CATALOGS, index, &nested_rows(&nested));
        let index = "sqlite_autoindex_bind_mountpoints_1";
        database.keyed_table("bind_mountpoints", BIND_MOUNTPOINTS, index, &nested_rows(&bind));
        let mut rows = counters::rows(&statistics);
        rows.extend(header.carried_counters.iter().map(carried_row));
        database.keyed_table("statistics", STATISTICS, "sqlite_autoindex_statistics_1", &rows);
        let rows = property_rows(header);
        database.keyed_table("properties", PROPERTIES, "sqlite_autoindex_properties_1", &rows);
        WrittenCatalog { bytes: database.finish(), statistics }
    }
}

const CATALOG: &str = "CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER, \
    parent_2 INTEGER, hardlinks INTEGER, hash BLOB, size INTEGER, mode INTEGER, mtime INTEGER, mtimens INTEGER, \
    flags INTEGER, name TEXT, symlink TEXT, uid INTEGER, gid INTEGER, xattr BLOB, \
    CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2))";
const PARENT_INDEX: &str = "CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2)";
const CHUNKS: &str = "CREATE TABLE chunks (md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, \
    hash BLOB, CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size), \
    FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog(md5path_1, md5path_2))";
const NESTED_CATALOGS: &str = "CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER, \
    CONSTRAINT pk_nested_catalogs PRIMARY KEY (path))";
const BIND_MOUNTPOINTS: &str = "CREATE TABLE bind_mountpoints (path TEXT, sha1 TEXT, size INTEGER, \
    CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path))";
const STATISTICS: &str = "CREATE TABLE statistics (counter TEXT, value INTEGER, \
    CONSTRAINT pk_statistics PRIMARY KEY (counter))";
pub(super) const PROPERTIES: &str =
    "CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key))";

fn write_entries(database: &mut DatabaseBuilder, entries: &[(PathKey, PathKey, Entry)]) {
    database.table("catalog", CATALOG, |table| {
        for (key, parent, entry) in entries {
            push_entry(table, *key, *parent, entry);
        }
    });
    let sorted = |key_of: fn(&(PathKey, PathKey, Entry)) -> PathKey| {
        let mut keys: Vec<(PathKey, i64)> = entries.iter().map(key_of).zip(1..).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(key, rowid)| {
            let (first, second) = key.columns();
            vec![Value::Integer(first), Value::Integer(second), Value::Integer(rowid)]
        })
    };
    database.index("sqlite_autoindex_catalog_1", "catalog", None, sorted(|(key, _, _)| *key));
    database.index("idx_catalog_parent", "catalog", Some(PARENT_INDEX), sorted(|(_, parent, _)| *parent));
}

fn push_entry(table: &mut TableWriter<'_>, key: PathKey, parent: PathKey, entry: &Entry) {
    let hardlinks = u64::from(entry.hardlink_group) << 32 | u64::from(entry.link_count);
    table.push(&[
        Value::Integer(key.columns().0),
        Value::Integer(key.columns().1),
        Value::Integer(parent.columns().0),
        Value::Integer(parent.columns().1),
        Value::Integer(hardlinks.cast_signed()),
        entry.hash.as_ref().map_or(Value::Null, |hash| Value::blob(hash.digest().as_slice())),
        Value::Integer(entry.stored_size()),
        Value::Integer(i64::from(entry.mode)),
        Value::Integer(entry.mtime),
        entry.mtime_ns.map_or(Value::Null, |nanoseconds| Value::Integer(i64::from(nanoseconds))),
        Value::Integer(entry.stored_flags().cast_signed()),
        Value::text(entry.name.as_slice()),
        Value::text(entry.symlink.as_slice()),
        Value::Integer(i64::from(entry.uid)),
        Value::Integer(i64::from(entry.gid)),
        entry.xattrs.as_ref().map_or(Value::Null, |blob| Value::blob(blob.as_slice())),
    ]);
}

fn write_chunks(database: &mut DatabaseBuilder, entries: &[(PathKey, PathKey, Entry)]) {
    let chunks = || entries.iter().flat_map(|(key, _, entry)| entry.chunks.iter().map(|chunk| (*key, chunk)));
    let columns = |key: PathKey, chunk: &Chunk| {
        let (first, second) = key.columns();
        [first, second, chunk.offset.cast_signed(), chunk.size.cast_signed()]
    };
    database.table("chunks", CHUNKS, |table| {
        for (key, chunk) in chunks() {
            let [first, second, offset, size] = columns(key, chunk).map(Value::Integer);
            table.push(&[first, second, offset, size, Value::blob(chunk.hash.digest().as_slice())]);
        }
    });
    let mut keys: Vec<([i64; 4], i64)> = chunks().map(|(key, chunk)| columns(key, chunk)).zip(1..).collect();
    keys.sort_unstable();
    let entries = keys.iter().map(|(columns, rowid)| {
        columns.iter().chain([rowid]).map(|number| Value::Integer(*number)).collect()
    });
    database.index("sqlite_autoindex_chunks_1", "chunks", None, entries);
}

fn nested_rows<'a>(nested: &[&'a NestedCatalog]) -> Vec<Vec<Value<'a>>> {
    let row = |nested: &&'a NestedCatalog| {
        let hash = nested.hash.map(|hash| hash.to_string()).unwrap_or_default();
        vec![
            Value::text(nested.path.as_slice()),
            Value::text(hash.into_bytes()),
            Value::Integer(nested.size.unwrap_or(0).cast_signed()),
        ]
    };
    nested.iter().map(row).collect()
}

fn property_rows(header: &CatalogHeader) -> Vec<Vec<Value<'_>>> {
    let mut pairs: Vec<(&str, Vec<u8>)> = vec![
        ("schema", b"2.5".to_vec()),
        ("schema_revision", REVISION.to_string().into_bytes()),
        ("revision", header.revision.to_string().into_bytes()),
        ("last_modified", header.last_modified.0.to_string().into_bytes()),
    ];
    // For a nested catalog without an earlier version, the reference writes zeros; for a root catalog,
    // nothing.
    let none = || (!header.root_prefix.is_empty()).then(|| "0".repeat(40));
    if let Some(previous) = header.previous.map(|hash| hash.to_string()).or_else(none) {
        pairs.push(("previous_revision", previous.into_bytes()));
    }
    if !header.root_prefix.is_empty() {
        pairs.push(("root_prefix", header.root_prefix.clone()));
    }
    if let Some(ttl) = header.ttl {
        pairs.push(("TTL", ttl.to_string().into_bytes()));
    }
    if header.volatile {
        pairs.push(("volatile", b"1".to_vec()));
    }
    if let Some(authorization) = &header.authorization {
        pairs.push(("voms_authz", authorization.clone().into_bytes()));
    }
    if let Some(branch) = &header.branch {
        pairs.push(("branch", branch.clone().into_bytes()));
    }
    // A value that isn't understood, such as a requirement that is no text, is carried under its known name.
    let is_own = |key: &[u8]| {
        OWN_PROPERTIES.contains(&key) || pairs.iter().any(|(written, _)| written.as_bytes() == key)
    };
    let carried = header.carried_properties.iter().filter(|(key, _)| !is_own(key)).map(carried_row);
    let carried: Vec<_> = carried.collect();
    let own = pairs.into_iter().map(|(key, value)| vec![Value::text(key.as_bytes()), Value::text(value)]);
    own.chain(carried).collect()
}

/// Properties that each version of a catalog has anew, or not at all.
const OWN_PROPERTIES: [&[u8]; 2] = [b"previous_revision", b"root_prefix"];

fn carried_row((name, value): &CarriedRow) -> Vec<Value<'_>> {
    let value = match value {
        CarriedValue::Null => Value::Null,
        CarriedValue::Integer(number) => Value::Integer(*number),
        CarriedValue::Text(text) => Value::text(text.as_slice()),
        CarriedValue::Blob(bytes) => Value::blob(bytes.as_slice()),
    };
    vec![Value::text(name.as_slice()), value]
}

#[cfg(test)]
mod tests;
