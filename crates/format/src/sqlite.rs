//! A reader of SQLite files that takes no lock, opens no connection and copies nothing it need not.
//!
//! ```text
//! header (100 bytes of page 1) ── page size, text encoding
//! page 1 = root of sqlite_schema ── for each table and index: root page, SQL text
//! table b-tree   interior 0x05, leaf 0x0d   rowid → record
//! index b-tree   interior 0x02, leaf 0x0a   (columns…, rowid)
//! record = header length, a type for each column (varints), then the values
//! ```
//!
//! A [`Database`] lies over bytes that never change (a map or a vector), so any number of threads may read it.
//! Whatever the bytes are, reading ends: descents have a largest depth, and a cursor gives up when it has seen
//! more pages than the file has, which only a file with a cycle in it can bring about.

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

pub use cursor::{IndexCursor, TableCursor};
pub use database::Database;
pub use index::{Index, Rowids};
pub(crate) use record::Slot;
pub use record::{Record, Value};
pub use table::{Finder, Rows, Table, TableRow};

/// Why a file can't be read as an SQLite database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqliteError {
    /// The file does not start like a database.
    #[error("the file is not an SQLite database: {0}")]
    NotADatabase(&'static str),
    /// The file is a database of a kind that is not read here.
    #[error("the SQLite database uses {0}, which is not supported")]
    Unsupported(&'static str),
    /// The file is shorter than its header says.
    #[error("the SQLite database is cut off: it has {present} of {stated} pages")]
    Truncated {
        /// Pages in the file.
        present: u32,
        /// Pages that the header states.
        stated: u32,
    },
    /// A page breaks the rules.
    #[error("page {page} of the SQLite database is damaged: {what}")]
    Damaged {
        /// The page, counted from 1.
        page: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The description of a table can't be understood.
    #[error("the description of `{name}` in the SQLite database can't be read: {what}")]
    Schema {
        /// The table or index.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A table that must be there is not.
    #[error("the SQLite database has no table `{0}`")]
    NoTable(&'static str),
    /// A column that must be there is not.
    #[error("table `{table}` of the SQLite database has no column `{column}`")]
    NoColumn {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
}

/// A result of reading a database.
pub type Result<T, E = SqliteError> = std::result::Result<T, E>;

const fn damaged<T>(page: u32, what: &'static str) -> Result<T> {
    Err(SqliteError::Damaged { page, what })
}
