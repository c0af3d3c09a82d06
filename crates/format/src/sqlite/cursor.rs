//! Cursors over all rows of a table, or over the entries of an index in order.

use super::btree::{Budget, DEPTH_MAX, Pages};
use super::page::{Page, PageKind};
use super::record::{Record, Value};
use super::{Result, damaged};

/// A page on the path from the root, and the next item to visit on it.
struct Frame<'a> {
    page: Page<'a>,
    next: usize,
}

/// Cursor over the rows of a table in order of their rowids.
pub struct TableCursor<'a> {
    pages: Pages<'a>,
    stack: Vec<Frame<'a>>,
    budget: Budget,
    /// The root page, until the cursor starts.
    root: Option<u32>,
}

impl<'a> TableCursor<'a> {
    pub(super) fn new(pages: Pages<'a>, root: u32) -> Self {
        Self { pages, stack: Vec::new(), budget: pages.budget(), root: Some(root) }
    }

    /// Returns the next row with its rowid. After an error there are no more rows.
    pub fn next_record(&mut self) -> Result<Option<(i64, Record<'a>)>> {
        let outcome = self.advance();
        if outcome.is_err() {
            self.stack.clear();
        }
        outcome
    }

    fn advance(&mut self) -> Result<Option<(i64, Record<'a>)>> {
        if let Some(root) = self.root.take() {
            self.descend(root)?;
        }
        while let Some(frame) = self.stack.last_mut() {
            let (page, index) = (frame.page, frame.next);
            frame.next += 1;
            match page.kind {
                PageKind::TableLeaf if index < page.cells() => {
                    let record = self.pages.record(page.number, page.payload(index)?, &mut self.budget)?;
                    self.budget.spend_record(page.number, &record)?;
                    return Ok(Some((page.rowid(index)?, record)));
                }
                PageKind::TableInterior if index <= page.cells() => {
                    let child = page.child(index)?;
                    self.descend(child)?;
                }
                _ => {
                    self.stack.pop();
                }
            }
        }
        Ok(None)
    }

    fn descend(&mut self, number: u32) -> Result<()> {
        if self.stack.len() >= DEPTH_MAX {
            return damaged(number, "the table is too deep");
        }
        let page = self.pages.page(number, &mut self.budget)?;
        if !matches!(page.kind, PageKind::TableInterior | PageKind::TableLeaf) {
            return damaged(number, "a page of an index lies in a table");
        }
        self.stack.push(Frame { page, next: 0 });
        Ok(())
    }
}

/// Cursor over the entries of an index in their order.
pub struct IndexCursor<'a> {
    pages: Pages<'a>,
    /// On interior pages, even steps are children and odd steps are the cells between them.
    stack: Vec<Frame<'a>>,
    budget: Budget,
    /// The root page, until the cursor starts.
    root: Option<u32>,
}

impl<'a> IndexCursor<'a> {
    pub(super) fn new(pages: Pages<'a>, root: u32) -> Self {
        Self { pages, stack: Vec::new(), budget: pages.budget(), root: Some(root) }
    }

    /// Moves to the first entry that does not come before the key.
    pub(super) fn seek(&mut self, key: &[Value<'_>]) -> Result<()> {
        self.stack.clear();
        let Some(mut number) = self.root.take() else {
            return Ok(());
        };
        let mut compared = self.pages.budget();
        loop {
            let page = self.open(number)?;
            let index = self.pages.seek(&page, key, &mut compared)?;
            if page.is_leaf() {
                self.stack.push(Frame { page, next: index });
                return Ok(());
            }
            self.stack.push(Frame { page, next: 2 * index + 1 });
            number = page.child(index)?;
        }
    }

    /// Returns the next entry. After an error there are no more entries.
    pub fn next_entry(&mut self) -> Result<Option<Record<'a>>> {
        let outcome = self.advance();
        if outcome.is_err() {
            self.stack.clear();
        }
        outcome
    }

    fn advance(&mut self) -> Result<Option<Record<'a>>> {
        if let Some(root) = self.root.take() {
            let page = self.open(root)?;
            self.stack.push(Frame { page, next: 0 });
        }
        while let Some(frame) = self.stack.last_mut() {
            let (page, step) = (frame.page, frame.next);
            frame.next += 1;
            let (index, is_child) = if page.is_leaf() { (step, false) } else { (step / 2, step % 2 == 0) };
            if is_child && index <= page.cells() {
                let child = self.open(page.child(index)?)?;
                self.stack.push(Frame { page: child, next: 0 });
            } else if index < page.cells() {
                let record = self.pages.record(page.number, page.payload(index)?, &mut self.budget)?;
                self.budget.spend_record(page.number, &record)?;
                return Ok(Some(record));
            } else {
                self.stack.pop();
            }
        }
        Ok(None)
    }

    fn open(&mut self, number: u32) -> Result<Page<'a>> {
        if self.stack.len() >= DEPTH_MAX {
            return damaged(number, "the index is too deep");
        }
        let page = self.pages.page(number, &mut self.budget)?;
        if !matches!(page.kind, PageKind::IndexInterior | PageKind::IndexLeaf) {
            return damaged(number, "a page of a table lies in an index");
        }
        Ok(page)
    }
}
