//! Catalogs mounted inside another catalog.

use crate::hash::ContentHash;
use crate::sqlite::{Database, SqliteError, Table, TableRow, Value};

/// A catalog that holds a directory of another catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedCatalog {
    /// Path of the directory from the root of the repository.
    pub path: Vec<u8>,
    /// Hash of the catalog; none if the publisher had not stored it yet, or if the text is not a hash.
    pub hash: Option<ContentHash>,
    /// Uncompressed size of the catalog in bytes; older catalogs don't record it.
    pub size: Option<u64>,
    /// True for the root catalog of another revision, mounted here as a bind mountpoint.
    pub bind: bool,
}

const TABLES: [(&str, bool); 2] = [("nested_catalogs", false), ("bind_mountpoints", true)];

/// Reads both tables; catalogs before revision 4 have no table of bind mountpoints.
pub(super) fn list<B: AsRef<[u8]>>(database: &Database<B>) -> Result<Vec<NestedCatalog>, SqliteError> {
    let mut found = Vec::new();
    for (name, bind) in TABLES {
        let Some(table) = database.find_table(name)? else { continue };
        let columns = Columns::of(&table, bind)?;
        for row in table.rows() {
            found.push(columns.read(&row?));
        }
    }
    Ok(found)
}

/// Finds the catalog that is mounted at exactly this path.
pub(super) fn at<B: AsRef<[u8]>>(
    database: &Database<B>,
    path: &[u8],
) -> Result<Option<NestedCatalog>, SqliteError> {
    for (name, bind) in TABLES {
        let Some(table) = database.find_table(name)? else { continue };
        let columns = Columns::of(&table, bind)?;
        let row = match table.index(&[columns.path]) {
            Some(index) => match index.find(&[Value::Text(path)])? {
                Some(rowid) => table.row(rowid)?,
                None => None,
            },
            None => table
                .rows()
                .find(|row| row.as_ref().map_or(true, |row| row.get(columns.path).bytes() == Some(path)))
                .transpose()?,
        };
        if let Some(row) = row {
            return Ok(Some(columns.read(&row)));
        }
    }
    Ok(None)
}

struct Columns {
    path: usize,
    /// Missing in the oldest catalogs, whose nested catalogs can't be reached.
    hash: Option<usize>,
    size: Option<usize>,
    bind: bool,
}

impl Columns {
    fn of(table: &Table<'_>, bind: bool) -> Result<Self, SqliteError> {
        let missing = SqliteError::NoColumn { table: "nested_catalogs", column: "path" };
        let path = table.column("path").ok_or(missing)?;
        Ok(Self { path, hash: table.column("sha1"), size: table.column("size"), bind })
    }

    fn read(&self, row: &TableRow<'_>) -> NestedCatalog {
        let hash = self.hash.and_then(|column| ContentHash::from_text_bytes(row.get(column).bytes()?));
        let size = self.size.and_then(|column| u64::try_from(row.get(column).integer()?).ok());
        NestedCatalog {
            path: row.get(self.path).bytes().unwrap_or_default().to_vec(),
            hash: hash.filter(|hash| !hash.is_null()),
            size: size.filter(|size| *size > 0),
            bind: self.bind,
        }
    }
}
