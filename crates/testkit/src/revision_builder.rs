//! Builds revisions without a publisher: a fixture's root catalog, changed with SQLite and signed again.

use rusqlite::{Connection, params};

use crate::catalog::halves;
use crate::contents;
use crate::fixture::Repository;
use crate::object;
use crate::signing::ManifestDraft;

/// Flag of a directory.
pub const FLAG_DIRECTORY: u32 = 1;
/// Flag of a regular file.
pub const FLAG_FILE: u32 = 4;
/// Flag of an entry that listings leave out.
pub const FLAG_HIDDEN: u32 = 0x8000;

/// A row of a catalog, with the columns that tests need.
#[derive(Clone, Debug)]
pub struct NewEntry<'a> {
    /// Path of the directory it is in; the root is the empty string.
    pub parent: &'a str,
    /// Name of the entry in its directory.
    pub name: &'a str,
    /// Type and permissions.
    pub mode: u32,
    /// The catalog's flags, without those of the hash algorithm.
    pub flags: u32,
    /// Size of the content.
    pub size: u64,
    /// Digest of the object that holds the content (SHA-1).
    pub digest: Option<[u8; 20]>,
}

/// The root catalog of a repository, open for changes.
#[derive(Debug)]
pub struct RevisionBuilder {
    draft: ManifestDraft,
    file: tempfile::NamedTempFile,
    catalog: Connection,
}

impl RevisionBuilder {
    /// Opens a copy of the published root catalog.
    pub fn of(repository: &Repository) -> RevisionBuilder {
        let draft = repository.manifest();
        let root = draft.get('C').expect("a manifest names its root catalog");
        let (file, catalog) = contents::open(&object::inflate(&repository.read(&object::path(&root, "C"))));
        catalog.execute_batch("BEGIN").expect("a transaction");
        RevisionBuilder { draft, file, catalog }
    }

    /// Returns the database, for rows without a method here.
    pub fn catalog(&self) -> &Connection {
        &self.catalog
    }

    /// Adds an entry.
    pub fn add(&self, entry: &NewEntry<'_>) {
        let path = halves(&format!("{}/{}", entry.parent, entry.name));
        let parent = halves(entry.parent);
        self.catalog
            .prepare_cached(
                "INSERT INTO catalog (md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, \
                 mtime, flags, name, symlink, uid, gid) VALUES (?, ?, ?, ?, 1, ?, ?, ?, 1700000000, ?, ?, '', 0, 0)",
            )
            .expect("a catalog")
            .execute(params![
                path[0],
                path[1],
                parent[0],
                parent[1],
                entry.digest.map(Vec::from),
                entry.size,
                entry.mode,
                entry.flags,
                entry.name
            ])
            .expect("adding an entry");
    }

    /// Adds a directory to the root directory.
    pub fn add_directory(&self, name: &str) {
        let (mode, flags) = (libc::S_IFDIR | 0o755, FLAG_DIRECTORY);
        self.add(&NewEntry { parent: "", name, mode, flags, size: 4096, digest: None });
    }

    /// Adds a readable file that consists of one object.
    pub fn add_file(&self, parent: &str, name: &str, size: u64, digest: [u8; 20]) {
        let (mode, flags) = (libc::S_IFREG | 0o644, FLAG_FILE);
        self.add(&NewEntry { parent, name, mode, flags, size, digest: Some(digest) });
    }

    /// Hides the entry at a path from listings.
    pub fn hide(&self, path: &str) {
        let key = halves(path);
        let changed = self
            .catalog
            .execute(
                "UPDATE catalog SET flags = flags | ? WHERE md5path_1 = ? AND md5path_2 = ?",
                params![FLAG_HIDDEN, key[0], key[1]],
            )
            .expect("a catalog");
        assert_eq!(changed, 1, "{path} is in the root catalog");
    }

    /// Stores the catalog as the next revision and publishes a head for it.
    pub fn publish(mut self, repository: &Repository) {
        let (revision, timestamp) = (1 + self.number('S'), self.number('T'));
        self.catalog
            .execute("UPDATE properties SET value = ? WHERE key = 'revision'", [revision.to_string()])
            .expect("a catalog");
        self.catalog.execute_batch("COMMIT").expect("a transaction");
        self.catalog.close().expect("closing a database");
        let plain = std::fs::read(self.file.path()).expect("reading a database");
        let root = repository.store(&plain, "C");
        let timestamp = 1 + timestamp;
        self.draft.set('C', root).set('B', plain.len()).set('S', revision).set('T', timestamp);
        repository.publish(&self.draft.sign(&repository.fixture().keys()));
    }

    fn number(&self, key: char) -> u64 {
        self.draft.get(key).expect("a key of the manifest").parse().expect("a number")
    }
}
