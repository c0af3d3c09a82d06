//! An index of a table.

use super::Result;
use super::btree::{Pages, compare};
use super::cursor::IndexCursor;
use super::record::{Record, Value};

use std::cmp::Ordering;

/// An index in the order of its values, without collation.
#[derive(Clone, Copy)]
pub struct Index<'a> {
    pages: Pages<'a>,
    root: u32,
    /// Number of indexed columns, which precede the rowid.
    columns: usize,
}

impl<'a> Index<'a> {
    pub(super) const fn new(pages: Pages<'a>, root: u32, columns: usize) -> Self {
        Self { pages, root, columns }
    }

    /// Returns the rowid of one row whose first indexed columns have these values.
    pub fn find(&self, key: &[Value<'_>]) -> Result<Option<i64>> {
        let entry = self.pages.find_entry(self.root, key)?;
        entry.map(|entry| self.rowid(&entry)).transpose()
    }

    /// Iterates over the rowids of all rows in the order of the index.
    pub fn rowids(&self) -> Rowids<'a> {
        Rowids { index: *self, cursor: self.pages.index_cursor(self.root), prefix: Vec::new(), ended: false }
    }

    /// Iterates over the rowids of the rows whose first indexed columns have these integers.
    pub fn rowids_of(&self, prefix: &[i64]) -> Result<Rowids<'a>> {
        let prefix: Vec<Value<'static>> = prefix.iter().map(|value| Value::Integer(*value)).collect();
        let mut cursor = self.pages.index_cursor(self.root);
        cursor.seek(&prefix)?;
        Ok(Rowids { index: *self, cursor, prefix, ended: false })
    }

    fn rowid(&self, entry: &Record<'_>) -> Result<i64> {
        match entry.get(self.columns) {
            Some(Value::Integer(rowid)) => Ok(rowid),
            _ => super::damaged(self.root, "an entry of the index that starts here has no rowid"),
        }
    }
}

/// Iterator over rowids in the order of an index.
pub struct Rowids<'a> {
    index: Index<'a>,
    cursor: IndexCursor<'a>,
    prefix: Vec<Value<'static>>,
    ended: bool,
}

impl Rowids<'_> {
    fn advance(&mut self) -> Result<Option<i64>> {
        match self.cursor.next_entry()? {
            Some(entry) if compare(&entry, &self.prefix) == Ordering::Equal => {
                self.index.rowid(&entry).map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Iterator for Rowids<'_> {
    type Item = Result<i64>;

    fn next(&mut self) -> Option<Result<i64>> {
        if self.ended {
            return None;
        }
        let step = self.advance().transpose();
        self.ended = !matches!(step, Some(Ok(_)));
        step
    }
}
