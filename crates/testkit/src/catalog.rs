//! Builds catalogs for trees that no fixture has.

use md5::{Digest, Md5};
use rusqlite::{Connection, params};

/// Statements that create the tables of schema 2.5, revision 7, as the reference does.
pub const TABLES: &str = "
    CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
    CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER, parent_2 INTEGER,
        hardlinks INTEGER, hash BLOB, size INTEGER, mode INTEGER, mtime INTEGER, mtimens INTEGER,
        flags INTEGER, name TEXT, symlink TEXT, uid INTEGER, gid INTEGER, xattr BLOB,
        CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
    CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
    CREATE TABLE chunks (md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, hash BLOB,
        CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size),
        FOREIGN KEY (md5path_1, md5path_2) REFERENCES catalog (md5path_1, md5path_2));
    CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER,
        CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
    CREATE TABLE bind_mountpoints (path TEXT, sha1 TEXT, size INTEGER,
        CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path));
    CREATE TABLE statistics (counter TEXT, value INTEGER, CONSTRAINT pk_statistics PRIMARY KEY (counter));
    INSERT INTO properties VALUES ('schema', '2.5'), ('schema_revision', '7');";

/// Pragmas that make writing catalogs fast, without durability and checks.
const QUICKLY: &str =
    "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; BEGIN;";

/// A row of a catalog with all columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Absolute path; the root of the repository is empty.
    pub path: String,
    /// Type and permissions.
    pub mode: u32,
    /// Flags of the catalog entry.
    pub flags: u64,
    /// Size of the content, or number of a device.
    pub size: u64,
    /// Digest of the object that holds the content.
    pub digest: Option<[u8; 20]>,
    /// Seconds of the time of change.
    pub mtime: i64,
    /// Hardlink group and link count.
    pub links: (u32, u32),
    /// Target of a symlink.
    pub target: String,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Packed extended attributes.
    pub xattrs: Option<Vec<u8>>,
    /// Chunks: offset, size, digest.
    pub chunks: Vec<(u64, u64, [u8; 20])>,
}

impl Row {
    /// Creates a directory.
    pub fn directory(path: &str) -> Row {
        Row { mode: libc::S_IFDIR | 0o755, flags: 1, size: 4096, links: (0, 2), ..Row::file(path, 0, None) }
    }

    /// Creates a file that consists of one object.
    pub fn file(path: &str, size: u64, digest: Option<[u8; 20]>) -> Row {
        Row {
            path: path.to_owned(),
            mode: libc::S_IFREG | 0o644,
            flags: 4,
            size,
            digest,
            mtime: 1_700_000_000,
            links: (0, 1),
            target: String::new(),
            owner: (0, 0),
            xattrs: None,
            chunks: Vec::new(),
        }
    }

    /// Creates a symlink.
    pub fn symlink(path: &str, target: &str) -> Row {
        Row { mode: libc::S_IFLNK | 0o777, flags: 12, target: target.to_owned(), ..Row::file(path, 0, None) }
    }
}

/// A catalog under construction.
#[derive(Debug)]
pub struct Draft {
    file: tempfile::NamedTempFile,
    database: Connection,
}

impl Draft {
    /// Starts a catalog for the directory `root_prefix` (empty for the root of a repository).
    pub fn new(root_prefix: &str) -> Draft {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let database = Connection::open(file.path()).expect("a database");
        database.execute_batch(QUICKLY).and_then(|()| database.execute_batch(TABLES)).expect("tables");
        let draft = Draft { file, database };
        if !root_prefix.is_empty() {
            draft.property("root_prefix", root_prefix);
        }
        draft
    }

    /// Sets a property.
    pub fn property(&self, key: &str, value: &str) {
        self.database
            .execute("INSERT OR REPLACE INTO properties VALUES (?, ?)", [key, value])
            .expect("a property");
    }

    /// Adds a row with its chunks.
    pub fn add(&self, row: &Row) {
        let key = halves(&row.path);
        let (parent, name) = match row.path.rsplit_once('/') {
            Some((parent, name)) => (halves(parent), name),
            None => ([0, 0], ""),
        };
        let hardlinks = i64::from(row.links.0) << 32 | i64::from(row.links.1);
        self.database
            .prepare_cached("INSERT INTO catalog VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?, ?, ?)")
            .expect("a statement")
            .execute(params![
                key[0],
                key[1],
                parent[0],
                parent[1],
                hardlinks,
                row.digest.map(Vec::from),
                row.size.cast_signed(),
                row.mode,
                row.mtime,
                row.flags.cast_signed(),
                name,
                row.target,
                row.owner.0,
                row.owner.1,
                row.xattrs
            ])
            .expect("adding a row");
        for (offset, size, digest) in &row.chunks {
            self.database
                .execute(
                    "INSERT INTO chunks VALUES (?, ?, ?, ?, ?)",
                    params![key[0], key[1], offset, size, Vec::from(*digest)],
                )
                .expect("adding a chunk");
        }
    }

    /// Mounts another catalog at a path.
    pub fn nest(&self, path: &str, hash: &str, size: usize) {
        self.mount("nested_catalogs", path, hash, size);
    }

    /// Binds a root catalog of another revision to a path.
    pub fn bind(&self, path: &str, hash: &str, size: usize) {
        self.mount("bind_mountpoints", path, hash, size);
    }

    fn mount(&self, table: &str, path: &str, hash: &str, size: usize) {
        let statement = format!("INSERT INTO {table} VALUES (?, ?, ?)");
        self.database.execute(&statement, params![path, hash, size]).expect("mounting a catalog");
    }

    /// Returns the bytes of the database.
    pub fn finish(self) -> Vec<u8> {
        self.database.execute_batch("COMMIT").expect("a transaction");
        self.database.close().expect("closing a database");
        std::fs::read(self.file.path()).expect("reading a database")
    }
}

/// Returns the two numbers by which a catalog identifies a path.
pub fn halves(path: &str) -> [i64; 2] {
    let digest: [u8; 16] = Md5::digest(path.as_bytes()).into();
    let (first, second) = digest.split_at(8);
    [first, second].map(|half| i64::from_le_bytes(half.try_into().expect("eight bytes")))
}
