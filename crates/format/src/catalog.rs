//! Reads file catalogs: entries of a directory tree, found by path or listed by directory.
//!
//! ```text
//! catalog          one row an entry, keyed by the MD5 of its path; indexed by the MD5 of its directory too
//! chunks           the chunks of large files
//! nested_catalogs  directories whose contents other catalogs hold
//! bind_mountpoints directories that show another revision
//! properties, statistics
//! ```
//!
//! A [`Catalog`] borrows the bytes of the database and has no mutable state, so any number of threads can look up
//! entries without locks.

mod chunks;
#[cfg(test)]
mod costs;
mod flags;
mod key;
mod nested;
mod placement;
mod properties;
mod row;
mod statistics;
mod strays;
pub mod symlink;
mod unknown;
mod walk;
mod xattr;

use crate::sqlite::{Database, SqliteError, Table, Value};

pub use chunks::Chunk;
pub use flags::Flags;
pub use key::PathKey;
pub use nested::NestedCatalog;
pub use placement::Placement;
pub use properties::{Properties, Schema};
use row::RowLayout;
pub use row::{EntryKind, Row, is_name};
pub use statistics::{Counters, Statistics};
pub(crate) use unknown::REVISION;
pub use unknown::{CarriedRow, CarriedValue, UnknownParts};
pub use walk::{Children, InKeyOrder, Scan};
pub use xattr::{XattrError, XattrList};

/// Reasons why a catalog, or a part of it, can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] SqliteError),
    /// The schema version is not supported.
    #[error("the catalog has schema {0}, which is not supported (1.0, 2.4 and 2.5 are)")]
    Schema(String),
    /// A row has invalid values.
    #[error("row {rowid} of the catalog is damaged: {what}")]
    Row {
        /// Number of the row.
        rowid: i64,
        /// Description of the fault.
        what: &'static str,
    },
    /// A chunk has invalid values.
    #[error("chunk {rowid} of the catalog is damaged: {what}")]
    Chunk {
        /// Number of the row in the table of chunks.
        rowid: i64,
        /// Description of the fault.
        what: &'static str,
    },
}

/// Maximum depth of an entry: more than a path can have, so that a loop ends.
const DEPTH_MAX: usize = 2048;

/// A file catalog over immutable bytes.
#[derive(Debug)]
pub struct Catalog<B> {
    database: Database<B>,
    layout: RowLayout,
    properties: Properties,
}

impl<B: AsRef<[u8]>> Catalog<B> {
    /// Opens a catalog; reads no entry yet.
    pub fn open(bytes: B) -> Result<Self, CatalogError> {
        let database = Database::open(bytes)?;
        let properties = Properties::read(&database)?;
        let layout = RowLayout::of(&database.table("catalog")?)?;
        Ok(Self { database, layout, properties })
    }

    /// Returns the properties of the catalog.
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Returns the schema version.
    pub const fn schema(&self) -> Schema {
        self.properties.schema
    }

    /// Returns the size of the database in bytes.
    pub fn size(&self) -> u64 {
        self.database.bytes().len() as u64
    }

    /// Finds the entry with this key.
    pub fn find(&self, key: PathKey) -> Result<Option<Row<'_>>, CatalogError> {
        let table = self.table()?;
        let Some(index) = table.index(&self.layout.key_columns()) else {
            // Without its index a catalog is slow but still correct.
            return self.scan()?.find(|row| row.as_ref().map_or(true, |row| row.key() == key)).transpose();
        };
        let (first, second) = key.columns();
        match index.find(&[Value::Integer(first), Value::Integer(second)])? {
            Some(rowid) => {
                let row = walk::indexed_row(&mut table.finder(), &self.layout, rowid)?;
                if row.key() != key {
                    return Err(CatalogError::Row { rowid, what: "the index refers to another entry" });
                }
                Ok(Some(row))
            }
            None => Ok(None),
        }
    }

    /// Lists the entries of a directory in unspecified order.
    ///
    /// An unreadable entry is an error in its place; an unreadable page ends the listing.
    pub fn children(&self, directory: PathKey) -> Result<Children<'_>, CatalogError> {
        Children::new(self.table()?, &self.layout, directory)
    }

    /// Iterates over all entries in the order of their keys, which is the same in all revisions.
    pub fn rows(&self) -> Result<InKeyOrder<'_>, CatalogError> {
        InKeyOrder::new(self.table()?, &self.layout)
    }

    /// Iterates over all entries in storage order, which is the fastest.
    pub fn scan(&self) -> Result<Scan<'_>, CatalogError> {
        Ok(Scan::new(self.table()?, &self.layout))
    }

    /// Reads the chunks of a chunked file of this catalog, in order and without gaps.
    pub fn chunks(&self, file: &Row<'_>) -> Result<Vec<Chunk>, CatalogError> {
        chunks::read(&self.database, file)
    }

    /// Counts all chunks, also those that belong to no file.
    pub fn count_chunks(&self) -> Result<u64, CatalogError> {
        let Some(table) = self.database.find_table("chunks")? else { return Ok(0) };
        let mut count = 0;
        for row in table.rows() {
            row?;
            count += 1;
        }
        Ok(count)
    }

    /// Lists the nested catalogs and bind mountpoints.
    pub fn nested(&self) -> Result<Vec<NestedCatalog>, CatalogError> {
        Ok(nested::list(&self.database)?)
    }

    /// Finds the nested catalog or bind mountpoint at exactly this path, as stored in this catalog.
    pub fn nested_at(&self, path: &[u8]) -> Result<Option<NestedCatalog>, CatalogError> {
        Ok(nested::at(&self.database, path)?)
    }

    /// Reads the counters.
    pub fn statistics(&self) -> Result<Statistics, CatalogError> {
        Ok(Statistics::read(&self.database)?)
    }

    /// Returns the counters whose values are no counts, with these values.
    pub fn faulty_counters(&self) -> Result<Vec<(String, String)>, CatalogError> {
        Ok(statistics::faulty(&self.database)?)
    }

    /// Finds what the catalog holds beyond the newest known schema.
    pub fn unknown_parts(&self) -> Result<UnknownParts, CatalogError> {
        Ok(UnknownParts::of(&self.database, self.properties.schema)?)
    }

    /// Describes rows that no walk from the root meets: entries outside of the tree, nested catalogs without a mountpoint and
    /// chunks without a file.
    pub fn strays(&self) -> Result<Vec<String>, CatalogError> {
        strays::find(self, &self.database)
    }

    /// Returns the path of an entry, from the names of the directories above it; none if they don't lead to the root of this
    /// catalog.
    pub fn path_of(&self, row: &Row<'_>) -> Result<Option<Vec<u8>>, CatalogError> {
        let prefix = &self.properties.root_prefix;
        let top = PathKey::of(prefix);
        if row.key() == top {
            return Ok(Some(prefix.clone()));
        }
        let mut names = vec![row.name().to_vec()];
        let mut parent = row.parent();
        while parent != top {
            let Some(above) = self.find(parent)?.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
            names.push(above.name().to_vec());
            parent = above.parent();
        }
        Ok(Some(names.iter().rev().fold(prefix.clone(), |path, name| crate::path::join(&path, name))))
    }

    fn table(&self) -> Result<Table<'_>, SqliteError> {
        self.database.table("catalog")
    }
}
