//! File catalogs: the entries of a directory tree, found by path or listed by directory.
//!
//! ```text
//! catalog          one row an entry, keyed by the MD5 of its path; indexed by the MD5 of its directory too
//! chunks           the pieces of chunked files
//! nested_catalogs  directories whose contents other catalogs hold
//! bind_mountpoints directories that show another revision
//! properties, statistics
//! ```
//!
//! A [`Catalog`] lies over the bytes of the database. It has no state that a reader could change, so any
//! number of threads look up entries without waiting for each other.

mod chunks;
mod flags;
mod key;
mod nested;
mod placement;
mod properties;
mod row;
mod statistics;
pub mod symlink;
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
pub use walk::{Children, InKeyOrder, Scan};
pub use xattr::{XattrError, XattrList};

/// Why a catalog, or something in it, can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] SqliteError),
    /// The version of the tables is not known.
    #[error("the catalog has schema {0}, which is not supported (1.0, 2.4 and 2.5 are)")]
    Schema(String),
    /// An entry makes no sense.
    #[error("row {rowid} of the catalog is damaged: {what}")]
    Row {
        /// The row.
        rowid: i64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A chunk makes no sense.
    #[error("chunk {rowid} of the catalog is damaged: {what}")]
    Chunk {
        /// The row in the table of chunks.
        rowid: i64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A file catalog over bytes that do not change.
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

    /// What the catalog says about itself.
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The version of its tables.
    pub const fn schema(&self) -> Schema {
        self.properties.schema
    }

    /// The number of bytes of the database.
    pub fn size(&self) -> u64 {
        self.database.bytes().len() as u64
    }

    /// Finds the entry with this key.
    pub fn find(&self, key: PathKey) -> Result<Option<Row<'_>>, CatalogError> {
        let table = self.table()?;
        let Some(index) = table.index(&self.layout.key_columns()) else {
            // A catalog without its index is slow, not wrong.
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

    /// Lists the entries of a directory, in no order that a reader could rely on.
    ///
    /// An entry that can't be read is an error in its place; a page that can't be read ends the listing.
    pub fn children(&self, directory: PathKey) -> Result<Children<'_>, CatalogError> {
        Children::new(self.table()?, &self.layout, directory)
    }

    /// Walks over all entries in the order of their keys, which two revisions share.
    pub fn rows(&self) -> Result<InKeyOrder<'_>, CatalogError> {
        InKeyOrder::new(self.table()?, &self.layout)
    }

    /// Walks over all entries in the order they are stored, which is the fastest.
    pub fn scan(&self) -> Result<Scan<'_>, CatalogError> {
        Ok(Scan::new(self.table()?, &self.layout))
    }

    /// Reads the chunks of a chunked file of this catalog, in order and without gap.
    pub fn chunks(&self, file: &Row<'_>) -> Result<Vec<Chunk>, CatalogError> {
        chunks::read(&self.database, file)
    }

    /// Lists the nested catalogs and bind mountpoints.
    pub fn nested(&self) -> Result<Vec<NestedCatalog>, CatalogError> {
        Ok(nested::list(&self.database)?)
    }

    /// Finds the nested catalog or bind mountpoint at exactly this path (as stored in this catalog).
    pub fn nested_at(&self, path: &[u8]) -> Result<Option<NestedCatalog>, CatalogError> {
        Ok(nested::at(&self.database, path)?)
    }

    /// Reads the counters.
    pub fn statistics(&self) -> Result<Statistics, CatalogError> {
        Ok(Statistics::read(&self.database)?)
    }

    fn table(&self) -> Result<Table<'_>, SqliteError> {
        self.database.table("catalog")
    }
}
