//! Reads SQLite files without locks, connections or unnecessary copies.
//!
//! ```text
//! header (100 bytes of page 1) ── page size, text encoding
//! page 1 = root of sqlite_schema ── for each table and index: root page, SQL text
//! table b-tree   interior 0x05, leaf 0x0d   rowid → record
//! index b-tree   interior 0x02, leaf 0x0a   (columns…, rowid)
//! record = header length, a type for each column (varints), then the values
//! ```
//!
//! A [`Database`] borrows immutable bytes (a memory map or a vector), so any number of threads may read it.
//! Reading ends for any bytes: searches have a maximum depth, and a cursor fails when it has read more pages than
//! the file has, which happens only if the pages form a cycle.

mod btree;
mod cursor;
mod database;
mod ddl;
mod index;
mod page;
mod record;
mod table;
mod tokens;
mod varint;

#[cfg(test)]
pub(crate) use btree::pages_read;
pub use cursor::{IndexCursor, TableCursor};
pub use database::Database;
pub use index::{Index, Rowids};
pub(crate) use record::Slot;
pub use record::{Record, Value};
pub use table::{Finder, Rows, Table, TableRow};

/// Reasons why a file can't be read as an SQLite database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqliteError {
    /// The file does not start with a database header.
    #[error("the file is not an SQLite database: {0}")]
    NotADatabase(&'static str),
    /// The database uses an unsupported feature.
    #[error("the SQLite database uses {0}, which is not supported")]
    Unsupported(&'static str),
    /// The file is shorter than its header says.
    #[error("the SQLite database is cut off: it has {present} of {stated} pages")]
    Truncated {
        /// Pages in the file.
        present: u32,
        /// Number of pages in the header.
        stated: u32,
    },
    /// A page violates the format.
    #[error("page {page} of the SQLite database is damaged: {what}")]
    Damaged {
        /// Number of the page, counted from 1.
        page: u32,
        /// Description of the fault.
        what: &'static str,
    },
    /// The SQL of a table can't be parsed.
    #[error("the description of `{name}` in the SQLite database can't be read: {what}")]
    Schema {
        /// Name of the table or index.
        name: String,
        /// Description of the fault.
        what: &'static str,
    },
    /// A required table is missing.
    #[error("the SQLite database has no table `{0}`")]
    NoTable(&'static str),
    /// A required column is missing.
    #[error("table `{table}` of the SQLite database has no column `{column}`")]
    NoColumn {
        /// Name of the table.
        table: &'static str,
        /// Name of the column.
        column: &'static str,
    },
}

/// A result of reading a database.
pub type Result<T, E = SqliteError> = std::result::Result<T, E>;

const fn damaged<T>(page: u32, what: &'static str) -> Result<T> {
    Err(SqliteError::Damaged { page, what })
}
