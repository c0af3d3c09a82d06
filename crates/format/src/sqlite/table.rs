//! A table: its columns by name, its rows, its indexes.

use super::btree::{Budget, Pages};
use super::cursor::TableCursor;
use super::ddl::{self, Definition};
use super::index::Index;
use super::record::{Record, Value};
use super::{Result, SqliteError};

/// What the list of tables says about a table.
pub(super) struct TableInfo {
    pub(super) name: String,
    pub(super) root: u32,
    /// The description, or why it can't be read, which only matters to who asks for this table.
    pub(super) definition: Result<Definition, &'static str>,
    pub(super) indexes: Vec<IndexInfo>,
}

/// An index that can be searched: plain columns in ascending order without collation.
pub(super) struct IndexInfo {
    root: u32,
    columns: Vec<usize>,
}

impl IndexInfo {
    /// Understands an index; none if it is of a kind that is not searched here.
    pub(super) fn new(name: &str, root: u32, sql: &str, definition: &Definition) -> Option<Self> {
        let columns = if sql.is_empty() {
            // Made by a UNIQUE or PRIMARY KEY constraint; the name ends in the number of the constraint.
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

    /// The position of a column, if the table has it.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.definition.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.definition.columns.len()
    }

    /// The column that stands for the rowid, if there is one.
    pub fn rowid_alias(&self) -> Option<usize> {
        self.definition.rowid_alias
    }

    /// An index that starts with these columns, if there is one that can be searched.
    pub fn index(&self, columns: &[usize]) -> Option<Index<'a>> {
        let info = self.indexes.iter().find(|index| index.columns.starts_with(columns))?;
        Some(Index::new(self.pages, info.root, info.columns.len()))
    }

    /// The row with this rowid.
    pub fn row(&self, rowid: i64) -> Result<Option<TableRow<'a>>> {
        self.finder().row(rowid)
    }

    /// Finds one row after the other, for walks along an index.
    pub fn finder(&self) -> Finder<'a> {
        Finder { table: *self, overflow: self.pages.budget() }
    }

    /// All rows, in order of their rowids.
    pub fn rows(&self) -> Rows<'a> {
        Rows { table: *self, cursor: self.pages.table_cursor(self.root), ended: false }
    }

    fn wrap(&self, rowid: i64, record: Record<'a>) -> Result<TableRow<'a>> {
        // A row may have fewer columns than its table, but then because it is older, not because it is cut off.
        if !record.is_complete() {
            return super::damaged(self.root, "a row of the table that starts here is cut off");
        }
        Ok(TableRow { rowid, record, definition: self.definition })
    }
}

/// Finds rows that differ from each other by their rowids.
pub struct Finder<'a> {
    table: Table<'a>,
    overflow: Budget,
}

impl<'a> Finder<'a> {
    /// The row with this rowid.
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
    /// The rowid.
    pub const fn rowid(&self) -> i64 {
        self.rowid
    }

    /// The value of a column. A column that was added after the row was written has its default.
    pub fn get(&self, column: usize) -> Value<'_> {
        if self.definition.rowid_alias == Some(column) {
            return Value::Integer(self.rowid);
        }
        self.record.get(column).unwrap_or_else(|| self.default(column))
    }

    /// The value of a column in rows that were written before the column was added.
    pub fn default(&self, column: usize) -> Value<'_> {
        self.definition.columns.get(column).map_or(Value::Null, |column| column.default.value())
    }

    /// The packed columns.
    pub const fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// The packed columns without the rest.
    pub fn into_record(self) -> Record<'a> {
        self.record
    }
}

/// Walks over the rows of a table.
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
