//! Lists the objects of a fixture's revision, read with SQLite itself.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension};

use crate::fixture::Repository;
use crate::object::{self, Algorithm};

/// A named snapshot in the history database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Textual hash of the root catalog.
    pub root: String,
    /// Revision of the root catalog.
    pub revision: u64,
    /// UNIX time of publishing.
    pub timestamp: u64,
    /// Size of the uncompressed root catalog.
    pub size: u64,
}

impl Tag {
    /// Finds a tag in the bytes of a history database.
    pub fn find(history: &[u8], name: &str) -> Tag {
        let (_file, database) = open(history);
        database
            .query_row("SELECT hash, revision, timestamp, size FROM tags WHERE name = ?1", [name], |row| {
                Ok(Tag {
                    root: row.get(0)?,
                    revision: row.get(1)?,
                    timestamp: row.get(2)?,
                    size: row.get(3)?,
                })
            })
            .optional()
            .expect("a history database")
            .unwrap_or_else(|| panic!("no tag {name:?}"))
    }
}

/// Objects of one regular file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileObjects {
    /// Path of the object that contains the whole file, if there is one.
    pub whole: Option<String>,
    /// Paths of the chunks, in the order of the file, with the offset each starts at.
    pub chunks: Vec<(u64, String)>,
}

/// The objects of one revision; every path is relative to the repository.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Catalogs by the directory they describe; the root's is the empty string.
    pub catalogs: BTreeMap<String, String>,
    /// Regular files by path.
    pub files: BTreeMap<Vec<u8>, FileObjects>,
}

impl Contents {
    /// Reads the catalogs below the root catalog with this textual hash.
    pub fn read(repository: &Repository, root: &str) -> Contents {
        let mut contents = Contents::default();
        let mut waiting = vec![(String::new(), root.to_owned())];
        while let Some((mountpoint, hash)) = waiting.pop() {
            let path = object::path(&hash, "C");
            let (_file, catalog) = open(&object::inflate(&repository.read(&path)));
            contents.catalogs.insert(mountpoint.clone(), path);
            contents.add_files(&catalog, &mountpoint, Algorithm::of_text(&hash));
            let mut nested = catalog.prepare("SELECT path, sha1 FROM nested_catalogs").expect("a catalog");
            let rows = nested.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("nested catalogs");
            waiting.extend(rows.map(|row| row.expect("a nested catalog")));
        }
        contents
    }

    /// Returns the path of the object that contains this whole file.
    pub fn whole(&self, file: &str) -> &str {
        self.file(file).whole.as_deref().unwrap_or_else(|| panic!("{file} is stored in chunks only"))
    }

    /// Returns the chunks of this file, which must have some.
    pub fn chunks(&self, file: &str) -> &[(u64, String)] {
        let chunks = &self.file(file).chunks;
        assert!(!chunks.is_empty(), "{file} is not chunked");
        chunks
    }

    fn file(&self, file: &str) -> &FileObjects {
        self.files.get(file.as_bytes()).unwrap_or_else(|| panic!("no regular file {file}"))
    }

    /// Walks one catalog from the directory it describes, since rows only know hashes of paths.
    fn add_files(&mut self, catalog: &Connection, mountpoint: &str, algorithm: Algorithm) {
        let mut by_parent: BTreeMap<[i64; 2], Vec<Row>> = BTreeMap::new();
        let mut top = None;
        let mut rows = catalog
            .prepare("SELECT md5path_1, md5path_2, parent_1, parent_2, hash, flags, CAST(name AS BLOB) FROM catalog")
            .expect("a catalog");
        let rows = rows
            .query_map([], |row| {
                Ok(Row {
                    path: [row.get(0)?, row.get(1)?],
                    parent: [row.get(2)?, row.get(3)?],
                    hash: row.get(4)?,
                    flags: row.get(5)?,
                    name: row.get(6)?,
                })
            })
            .expect("rows");
        for row in rows {
            let row = row.expect("a row");
            if row.flags & FLAG_ROOT != 0 || row.name.is_empty() {
                top = Some(row.path);
            } else {
                by_parent.entry(row.parent).or_default().push(row);
            }
        }
        let mut waiting = vec![(mountpoint.as_bytes().to_vec(), top.expect("a catalog has a top directory"))];
        while let Some((directory, key)) = waiting.pop() {
            for row in by_parent.get(&key).into_iter().flatten() {
                let path = [&directory[..], b"/", &row.name].concat();
                if row.flags & FLAG_DIRECTORY != 0 {
                    waiting.push((path, row.path));
                } else if row.flags & FLAG_FILE != 0 && row.flags & (FLAG_LINK | FLAG_SPECIAL) == 0 {
                    self.files.insert(path, row.objects(catalog, algorithm));
                }
            }
        }
    }
}

const FLAG_DIRECTORY: i64 = 1;
const FLAG_FILE: i64 = 4;
const FLAG_LINK: i64 = 8;
const FLAG_SPECIAL: i64 = 16;
const FLAG_ROOT: i64 = 32;

struct Row {
    path: [i64; 2],
    parent: [i64; 2],
    hash: Option<Vec<u8>>,
    flags: i64,
    name: Vec<u8>,
}

impl Row {
    fn objects(&self, catalog: &Connection, algorithm: Algorithm) -> FileObjects {
        let mut chunks = catalog
            .prepare(
                "SELECT offset, hash FROM chunks WHERE md5path_1 = ?1 AND md5path_2 = ?2 ORDER BY offset",
            )
            .expect("chunks");
        let chunks = chunks
            .query_map(self.path, |row| Ok((row.get::<_, u64>(0)?, row.get::<_, Vec<u8>>(1)?)))
            .expect("chunks")
            .map(|chunk| chunk.expect("a chunk"))
            .map(|(offset, hash)| (offset, object::path(&text(&hash, algorithm), "P")))
            .collect();
        FileObjects { whole: self.hash.as_ref().map(|hash| object::path(&text(hash, algorithm), "")), chunks }
    }
}

fn text(digest: &[u8], algorithm: Algorithm) -> String {
    let tag = match algorithm {
        Algorithm::Sha1 => "",
        Algorithm::Rmd160 => "-rmd160",
        Algorithm::Shake128 => "-shake128",
    };
    format!("{}{tag}", object::hex(digest))
}

/// Opens a database from its bytes; the file lives as long as the first half of the pair.
pub fn open(database: &[u8]) -> (tempfile::NamedTempFile, Connection) {
    let file = crate::disk::scratch_file();
    std::fs::write(file.path(), database).expect("writing a database");
    let connection = Connection::open(file.path()).expect("opening a database");
    (file, connection)
}
