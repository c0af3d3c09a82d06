//! Writes whole SQLite files.
//!
//! ```text
//! page 1         header (100 bytes), then sqlite_schema as one leaf
//! page 2 …       for each table and index: its leaves, then its interior pages, the root last
//! ```
//!
//! Rows arrive in rowid order and index entries in key order, so every b-tree is built from its leaves upwards
//! and no page is ever touched twice: pages are full, neighbours in key order are neighbours in the file, and
//! equal rows give equal bytes. SQLite itself would leave pages two thirds full after inserting hashes in any
//! order, and its own version number in the header.

mod btree;
mod page;
mod record;

use btree::{IndexBuilder, TableBuilder};
use page::Pages;
pub use record::Value;
use record::encode;

/// Length of every page in bytes.
///
/// Larger than the reference's 1024: searches are shorter, fewer rows overflow, and compressed files get
/// smaller (measured in `docs/decisions`); readers must support any size.
const PAGE_SIZE: usize = 4096;

/// Builder of a database.
#[derive(Debug)]
pub struct DatabaseBuilder {
    pages: Pages,
    schema: Vec<SchemaRow>,
}

#[derive(Debug)]
struct SchemaRow {
    kind: &'static str,
    name: &'static str,
    table: &'static str,
    root: u32,
    sql: Option<&'static str>,
}

/// Rows of a table, each with its columns in the order of the table.
pub type Row<'a> = &'a [Value<'a>];

impl Default for DatabaseBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DatabaseBuilder {
    /// Creates an empty database.
    pub fn new() -> Self {
        Self { pages: Pages::new(PAGE_SIZE), schema: Vec::new() }
    }

    /// Adds a table; `fill` passes all rows to the given writer, which numbers them from 1.
    pub fn table(&mut self, name: &'static str, sql: &'static str, fill: impl FnOnce(&mut TableWriter<'_>)) {
        let mut writer =
            TableWriter { builder: TableBuilder::new(&mut self.pages), rowid: 0, record: Vec::new() };
        fill(&mut writer);
        let root = writer.builder.finish();
        self.schema.push(SchemaRow { kind: "table", name, table: name, root, sql: Some(sql) });
    }

    /// Adds an index over rows of [`Self::table`]; entries are `(columns, rowid)` in ascending order.
    ///
    /// `sql` is none for the index that a `PRIMARY KEY` of the table implies.
    pub fn index<'a>(
        &mut self,
        name: &'static str,
        table: &'static str,
        sql: Option<&'static str>,
        entries: impl Iterator<Item = Vec<Value<'a>>>,
    ) {
        let mut builder = IndexBuilder::new(&mut self.pages);
        let mut record = Vec::new();
        for entry in entries {
            record.clear();
            encode(&entry, &mut record);
            builder.push(&record);
        }
        let root = builder.finish();
        self.schema.push(SchemaRow { kind: "index", name, table, root, sql });
    }

    /// Adds a table with a text column as primary key, which must be the first, and its index.
    ///
    /// Rows keep their order; keys must be unique.
    pub fn keyed_table(
        &mut self,
        name: &'static str,
        sql: &'static str,
        index: &'static str,
        rows: &[Vec<Value<'_>>],
    ) {
        self.table(name, sql, |table| rows.iter().for_each(|row| table.push(row)));
        let mut keys: Vec<(&[u8], i64)> = rows
            .iter()
            .zip(1..)
            .map(|(row, rowid)| match row.first() {
                Some(Value::Text(key)) => (&**key, rowid),
                _ => (&[][..], rowid),
            })
            .collect();
        keys.sort_unstable();
        let entries = keys.iter().map(|(key, rowid)| vec![Value::text(*key), Value::Integer(*rowid)]);
        self.index(index, name, None, entries);
    }

    /// Returns the bytes of the database.
    pub fn finish(self) -> Vec<u8> {
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for row in &self.schema {
            let mut record = Vec::new();
            encode(
                &[
                    Value::text(row.kind.as_bytes()),
                    Value::text(row.name.as_bytes()),
                    Value::text(row.table.as_bytes()),
                    Value::Integer(i64::from(row.root)),
                    row.sql.map_or(Value::Null, |sql| Value::text(sql.as_bytes())),
                ],
                &mut record,
            );
            rows.push(record);
        }
        self.pages.finish(&rows)
    }
}

/// Writer of the rows of one table.
#[derive(Debug)]
pub struct TableWriter<'p> {
    builder: TableBuilder<'p>,
    rowid: i64,
    record: Vec<u8>,
}

impl TableWriter<'_> {
    /// Adds the next row.
    pub fn push(&mut self, row: Row<'_>) {
        self.rowid += 1;
        self.record.clear();
        encode(row, &mut self.record);
        self.builder.push(self.rowid, &self.record);
    }

    /// Returns the number of the last row.
    pub fn rowid(&self) -> i64 {
        self.rowid
    }
}

#[cfg(test)]
mod tests;
