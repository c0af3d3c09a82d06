//! A table: its columns by name, its rows, its indexes.

use super::btree::{Budget, Pages};
use super::cursor::TableCursor;
use super::ddl::{self, Definition};
use super::index::Index;
use super::record::{Record, Value};
use super::{Result, SqliteError};

/// Entry of a table in the list of tables.
pub(super) struct TableInfo {
    pub(super) name: String,
    pub(super) root: u32,
    /// Parsed definition, or the reason why it can't be parsed, which is an error only if the table is used.
    pub(super) definition: Result<Definition, &'static str>,
    pub(super) indexes: Vec<IndexInfo>,
}

/// An index that can be searched: plain columns in ascending order without collation.
pub(super) struct IndexInfo {
    root: u32,
    columns: Vec<usize>,
}

impl IndexInfo {
    /// Parses an index; none if it is of a kind that is not supported.
    pub(super) fn new(name: &str, root: u32, sql: &str, definition: &Definition) -> Option<Self> {
        let columns = if sql.is_empty() {
            // Index of a UNIQUE or PRIMARY KEY constraint; its name ends in the number of the constraint.
            let number: usize = name.rsplit_once('_')?.1.parse().ok()?;
            definition.unique.get(number.checked_sub(1)?)?.clone()?
        } else {
            ddl::parse_index(sql, definition)?
        };
        Some(Self { root, columns })
    }
}

/// A table of a database.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    pages: Pages<'a>,
    root: u32,
    definition: &'a Definition,
    indexes: &'a [IndexInfo],
}

impl<'a> Table<'a> {
    pub(super) fn new(pages: Pages<'a>, info: &'a TableInfo) -> Result<Self> {
        match &info.definition {
            Ok(definition) => Ok(Self { pages, root: info.root, definition, indexes: &info.indexes }),
            Err(what) => Err(SqliteError::Schema { name: info.name.clone(), what }),
        }
    }

    /// Returns the position of a column, if the table has it.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.definition.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Iterates over the names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &'a str> {
        self.definition.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.definition.columns.len()
    }

    /// Returns the column that is an alias of the rowid, if there is one.
    pub fn rowid_alias(&self) -> Option<usize> {
        self.definition.rowid_alias
    }

    /// Returns a searchable index that starts with these columns, if there is one.
    pub fn index(&self, columns: &[usize]) -> Option<Index<'a>> {
        let info = self.indexes.iter().find(|index| index.columns.starts_with(columns))?;
        Some(Index::new(self.pages, info.root, info.columns.len()))
    }

    /// Returns the row with this rowid.
    pub fn row(&self, rowid: i64) -> Result<Option<TableRow<'a>>> {
        self.finder().row(rowid)
    }

    /// Returns a finder of single rows, for iterations along an index.
    pub fn finder(&self) -> Finder<'a> {
        Finder { table: *self, overflow: self.pages.budget() }
    }

    /// Iterates over all rows in order of their rowids.
    pub fn rows(&self) -> Rows<'a> {
        Rows { table: *self, cursor: self.pages.table_cursor(self.root), ended: false }
    }

    fn wrap(&self, rowid: i64, record: Record<'a>) -> Result<TableRow<'a>> {
        // A row that is older than a column may lack it, but a truncated record is an error.
        if !record.is_complete() {
            return super::damaged(self.root, "a row of the table that starts here is cut off");
        }
        Ok(TableRow { rowid, record, definition: self.definition })
    }
}

/// Finds single rows by rowid, with one budget for all of them.
pub struct Finder<'a> {
    table: Table<'a>,
    overflow: Budget,
}

impl<'a> Finder<'a> {
    /// Returns the row with this rowid.
    pub fn row(&mut self, rowid: i64) -> Result<Option<TableRow<'a>>> {
        let table = &self.table;
        let record = table.pages.find_row(table.root, rowid, &mut self.overflow)?;
        record.map(|record| table.wrap(rowid, record)).transpose()
    }
}

/// A row of a table.
#[derive(Clone)]
pub struct TableRow<'a> {
    rowid: i64,
    record: Record<'a>,
    definition: &'a Definition,
}

impl<'a> TableRow<'a> {
    /// Returns the rowid.
    pub const fn rowid(&self) -> i64 {
        self.rowid
    }

    /// Returns the value of a column. A column that was added after the row was written has its default.
    pub fn get(&self, column: usize) -> Value<'_> {
        if self.definition.rowid_alias == Some(column) {
            return Value::Integer(self.rowid);
        }
        self.record.get(column).unwrap_or_else(|| self.default(column))
    }

    /// Returns the value of a column in rows that were written before the column was added.
    pub fn default(&self, column: usize) -> Value<'_> {
        self.definition.columns.get(column).map_or(Value::Null, |column| column.default.value())
    }

    /// Returns the encoded columns.
    pub const fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// Returns the encoded columns and drops the rest.
    pub fn into_record(self) -> Record<'a> {
        self.record
    }
}

/// Iterator over the rows of a table.
pub struct Rows<'a> {
    table: Table<'a>,
    cursor: TableCursor<'a>,
    ended: bool,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<TableRow<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.cursor.next_record().transpose();
        self.ended = !matches!(step, Some(Ok(_)));
        step.map(|step| step.and_then(|(rowid, record)| self.table.wrap(rowid, record)))
    }
}
