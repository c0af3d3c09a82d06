//! Iterators over the entries of a catalog.

use crate::sqlite::{Finder, Rowids, Rows, Table, Value};

use super::row::RowLayout;
use super::{CatalogError, PathKey, Row};

/// Reads the row that an index entry refers to.
pub(super) fn indexed_row<'a>(
    finder: &mut Finder<'a>,
    layout: &RowLayout,
    rowid: i64,
) -> Result<Row<'a>, CatalogError> {
    match finder.row(rowid)? {
        Some(row) => layout.decode(row),
        None => Err(CatalogError::Row { rowid, what: "the index refers to it, but it is not there" }),
    }
}

/// Iterator over all entries in storage order.
pub struct Scan<'a> {
    rows: Rows<'a>,
    layout: &'a RowLayout,
}

impl<'a> Scan<'a> {
    pub(super) fn new(table: Table<'a>, layout: &'a RowLayout) -> Self {
        Self { rows: table.rows(), layout }
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Result<Row<'a>, CatalogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?;
        Some(row.map_err(CatalogError::from).and_then(|row| self.layout.decode(row)))
    }
}

/// Iterator over the entries of a directory.
pub struct Children<'a> {
    directory: PathKey,
    source: ChildSource<'a>,
}

enum ChildSource<'a> {
    Indexed { rowids: Rowids<'a>, finder: Finder<'a>, layout: &'a RowLayout },
    Scanned(Scan<'a>),
}

impl<'a> Children<'a> {
    pub(super) fn new(
        table: Table<'a>,
        layout: &'a RowLayout,
        directory: PathKey,
    ) -> Result<Self, CatalogError> {
        let (first, second) = directory.columns();
        let source = match table.index(&layout.parent_columns()) {
            Some(index) => ChildSource::Indexed {
                rowids: index.rowids_of(&[first, second])?,
                finder: table.finder(),
                layout,
            },
            None => ChildSource::Scanned(Scan::new(table, layout)),
        };
        Ok(Self { directory, source })
    }
}

impl<'a> Iterator for Children<'a> {
    type Item = Result<Row<'a>, CatalogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = match &mut self.source {
            ChildSource::Indexed { rowids, finder, layout } => match rowids.next()? {
                Ok(rowid) => indexed_row(finder, layout, rowid),
                Err(error) => Err(error.into()),
            },
            ChildSource::Scanned(rows) => {
                rows.find(|row| row.as_ref().map_or(true, |row| row.parent() == self.directory))?
            }
        };
        Some(row.and_then(|row| {
            let fault = |what| Err(CatalogError::Row { rowid: row.rowid(), what });
            if row.parent() != self.directory {
                fault("the index puts it into another directory")
            } else if row.name().is_empty() {
                fault("it is in a directory but has no name")
            } else {
                Ok(row)
            }
        }))
    }
}

/// Iterator over all entries in the order of their keys.
pub struct InKeyOrder<'a> {
    finder: Finder<'a>,
    layout: &'a RowLayout,
    source: KeySource<'a>,
    last: Option<PathKey>,
}

enum KeySource<'a> {
    Indexed(Rowids<'a>),
    Sorted(std::vec::IntoIter<i64>),
}

impl<'a> InKeyOrder<'a> {
    pub(super) fn new(table: Table<'a>, layout: &'a RowLayout) -> Result<Self, CatalogError> {
        let source = match table.index(&layout.key_columns()) {
            Some(index) => KeySource::Indexed(index.rowids()),
            None => KeySource::Sorted(sorted_rowids(&table, layout)?.into_iter()),
        };
        Ok(Self { finder: table.finder(), layout, source, last: None })
    }
}

fn sorted_rowids(table: &Table<'_>, layout: &RowLayout) -> Result<Vec<i64>, CatalogError> {
    let mut keys = Vec::new();
    let [first, second] = layout.key_columns();
    for row in table.rows() {
        let row = row?;
        if let (Value::Integer(first), Value::Integer(second)) = (row.get(first), row.get(second)) {
            keys.push((PathKey::from_columns(first, second), row.rowid()));
        }
    }
    keys.sort_unstable();
    Ok(keys.into_iter().map(|(_, rowid)| rowid).collect())
}

impl<'a> Iterator for InKeyOrder<'a> {
    type Item = Result<Row<'a>, CatalogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rowid = match &mut self.source {
            KeySource::Indexed(rowids) => match rowids.next()? {
                Ok(rowid) => rowid,
                Err(error) => return Some(Err(error.into())),
            },
            KeySource::Sorted(rowids) => rowids.next()?,
        };
        Some(indexed_row(&mut self.finder, self.layout, rowid).and_then(|row| {
            // A merge of two catalogs relies on the order, so a violation must be an error.
            if self.last.is_some_and(|last| last >= row.key()) {
                return Err(CatalogError::Row { rowid, what: "the index lists it out of order" });
            }
            self.last = Some(row.key());
            Ok(row)
        }))
    }
}
