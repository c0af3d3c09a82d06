//! Access to pages by number, and searches from a root to one entry.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::cursor::{IndexCursor, TableCursor};
use super::database::Layout;
use super::page::{CellPayload, Page, PageKind};
use super::record::{Record, Value, leading_integer};
use super::{Result, damaged};

/// Maximum depth of a tree, as in SQLite; a tree of the smallest pages reaches 2^64 bytes long before.
pub(super) const DEPTH_MAX: usize = 20;

/// All pages of a file.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

/// Remaining pages and records that an operation may read: in a valid file none is read twice.
///
/// Without it, pages in a reference cycle would never end, and overlapping cells would make much work (and,
/// for a caller that keeps their contents, much memory) of a small file.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    pages: u32,
    bytes: u64,
}

/// Number of pages that this thread read.
#[cfg(test)]
pub(crate) mod pages_read {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });

    pub(super) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Returns the number of pages that `run` reads.
    pub(crate) fn by(run: impl FnOnce()) -> u64 {
        let before = COUNT.get();
        run();
        COUNT.get() - before
    }
}

impl Budget {
    /// Consumes a page.
    #[inline]
    fn spend_page(&mut self, page: u32) -> Result<()> {
        #[cfg(test)]
        pages_read::count();
        match self.pages.checked_sub(1) {
            Some(left) => {
                self.pages = left;
                Ok(())
            }
            None => damaged(page, "it is part of a cycle"),
        }
    }

    /// Consumes a record that an iteration returns, with the two bytes of its pointer.
    #[inline]
    pub(super) fn spend_record(&mut self, page: u32, record: &Record<'_>) -> Result<()> {
        match self.bytes.checked_sub(record.payload().len() as u64 + 2) {
            Some(left) => {
                self.bytes = left;
                Ok(())
            }
            None => damaged(page, "its cells overlap"),
        }
    }
}

impl<'a> Pages<'a> {
    #[inline]
    pub(super) const fn new(bytes: &'a [u8], layout: Layout) -> Self {
        Self { bytes, layout }
    }

    pub(super) const fn budget(&self) -> Budget {
        Budget { pages: self.layout.page_count, bytes: self.bytes.len() as u64 }
    }

    /// Returns the usable bytes of a page.
    #[inline]
    fn raw(&self, number: u32) -> Result<&'a [u8]> {
        if number == 0 || number > self.layout.page_count {
            return damaged(number, "something refers to it, but the file has no such page");
        }
        let start = (number - 1) as usize * self.layout.page_size;
        match self.bytes.get(start..start + self.layout.usable) {
            Some(bytes) => Ok(bytes),
            None => damaged(number, "the file ends before it"),
        }
    }

    /// Returns a page of a table or index.
    #[inline]
    pub(super) fn page(&self, number: u32, budget: &mut Budget) -> Result<Page<'a>> {
        budget.spend_page(number)?;
        Page::parse(number, self.raw(number)?)
    }

    /// Returns the record of a cell, assembled if it is on several pages.
    #[inline]
    pub(super) fn record(&self, page: u32, cell: CellPayload<'a>, budget: &mut Budget) -> Result<Record<'a>> {
        if cell.overflow == 0 {
            return Ok(Record::new(Cow::Borrowed(cell.local)));
        }
        self.follow_overflow(page, cell, budget)
    }

    fn follow_overflow(&self, page: u32, cell: CellPayload<'a>, budget: &mut Budget) -> Result<Record<'a>> {
        // The vector grows with the pages found, never by the length that the cell states.
        let mut payload = cell.local.to_vec();
        let mut next = cell.overflow;
        loop {
            let missing = cell.len.saturating_sub(payload.len() as u64);
            if missing == 0 {
                return Ok(Record::new(Cow::Owned(payload)));
            }
            if next == 0 {
                return damaged(page, "a long payload ends too early");
            }
            budget.spend_page(next)?;
            let Some((link, content)) = self.raw(next)?.split_first_chunk() else {
                return damaged(next, "it has no room for a link");
            };
            let wanted = usize::try_from(missing).map_or(content.len(), |missing| missing.min(content.len()));
            payload.extend_from_slice(content.get(..wanted).unwrap_or_default());
            next = u32::from_be_bytes(*link);
        }
    }

    pub(super) fn table_cursor(self, root: u32) -> TableCursor<'a> {
        TableCursor::new(self, root)
    }

    pub(super) fn index_cursor(self, root: u32) -> IndexCursor<'a> {
        IndexCursor::new(self, root)
    }

    /// Returns the row of a table with this rowid. Overflow pages consume the `overflow` budget, which an
    /// iteration shares among its rows.
    pub(super) fn find_row(
        &self,
        root: u32,
        rowid: i64,
        overflow: &mut Budget,
    ) -> Result<Option<Record<'a>>> {
        let mut budget = self.budget();
        let mut number = root;
        let mut between = RowidRange::default();
        for _ in 0..DEPTH_MAX {
            let page = self.page(number, &mut budget)?;
            let cells = page.cells();
            let places = if page.is_leaf() { cells } else { cells + 1 };
            let index = search(cells, between.guess(rowid, places), true, |index| {
                Ok(page.rowid(index)?.cmp(&rowid))
            })?;
            match page.kind {
                PageKind::TableInterior => {
                    between.narrow(&page, index);
                    number = page.child(index)?;
                }
                PageKind::TableLeaf => {
                    if index == cells || page.rowid(index)? != rowid {
                        return Ok(None);
                    }
                    return self.record(number, page.payload(index)?, overflow).map(Some);
                }
                _ => return damaged(number, "a page of an index lies in a table"),
            }
        }
        damaged(number, "the table is too deep")
    }

    /// Returns an index entry that starts with these values.
    pub(super) fn find_entry(&self, root: u32, key: &[Value<'_>]) -> Result<Option<Record<'a>>> {
        // Compared entries may have overflow pages, and the found one is read once more.
        let (mut budget, mut compared, mut found) = (self.budget(), self.budget(), self.budget());
        let mut number = root;
        for _ in 0..DEPTH_MAX {
            let page = self.page(number, &mut budget)?;
            let index = self.seek(&page, key, &mut compared)?;
            if index < page.cells() {
                let entry = self.record(number, page.payload(index)?, &mut found)?;
                if compare(&entry, key) == Ordering::Equal {
                    return Ok(Some(entry));
                }
            }
            if page.is_leaf() {
                return Ok(None);
            }
            number = page.child(index)?;
        }
        damaged(number, "the index is too deep")
    }

    /// Returns the first cell of an index page that does not come before the key.
    pub(super) fn seek(&self, page: &Page<'a>, key: &[Value<'_>], budget: &mut Budget) -> Result<usize> {
        if !matches!(page.kind, PageKind::IndexInterior | PageKind::IndexLeaf) {
            return damaged(page.number, "a page of a table lies in an index");
        }
        let compare_whole = |index, budget: &mut Budget| {
            let entry = self.record(page.number, page.payload(index)?, budget)?;
            Ok(compare(&entry, key))
        };
        let cells = page.cells();
        let Some(Value::Integer(wanted)) = key.first() else {
            return search(cells, None, false, |index| compare_whole(index, budget));
        };
        let leading = |index| page.short_entry(index).and_then(leading_integer);
        search(cells, None, false, |index| match leading(index) {
            Some(found) if found != *wanted => Ok(found.cmp(wanted)),
            _ => compare_whole(index, budget),
        })
    }
}

/// Range of rowids that the parent pages allow on a page. As rowids are nearly dense, a rowid's position can
/// be estimated, which avoids cache misses on cells.
#[derive(Clone, Copy, Default)]
struct RowidRange {
    low: Option<i64>,
    high: Option<i64>,
}

impl RowidRange {
    /// Returns the likely index of a rowid among `places` cells.
    fn guess(&self, wanted: i64, places: usize) -> Option<usize> {
        let (low, high) = (self.low?, self.high?);
        // On damaged pages rowids may descend.
        let span = (i128::from(high) - i128::from(low)).max(1);
        let offset = (i128::from(wanted) - i128::from(low) - 1).clamp(0, span);
        #[expect(clippy::cast_possible_truncation, reason = "a wrong guess costs time and nothing else")]
        let guess = (offset as f64 / span as f64 * places as f64) as usize;
        Some(guess.min(places.saturating_sub(1)))
    }

    /// Narrows the range to the child left of a cell.
    fn narrow(&mut self, page: &Page<'_>, index: usize) {
        if let Some(before) = index.checked_sub(1) {
            self.low = page.rowid(before).ok();
        }
        if index < page.cells() {
            self.high = page.rowid(index).ok();
        }
    }
}

/// Compares the first columns of an index entry to a key; a missing column comes before every value.
#[inline]
pub(super) fn compare(entry: &Record<'_>, key: &[Value<'_>]) -> Ordering {
    let mut slots = entry.slots();
    for wanted in key {
        let Some(slot) = slots.next() else { return Ordering::Less };
        let ordering = entry.value(slot).order(wanted);
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    Ordering::Equal
}

/// Returns the first of `count` ascending items that is not less than the target; if items are `unique`, an
/// equal one is as good.
#[inline]
fn search(
    count: usize,
    guess: Option<usize>,
    unique: bool,
    mut compare: impl FnMut(usize) -> Result<Ordering>,
) -> Result<usize> {
    let (mut low, mut high) = (0, count);
    let guess = guess.filter(|guess| *guess < count);
    let (mut next, mut step, mut rightward) = (guess, 0, None);
    while low < high {
        let at = next.take().unwrap_or(low + (high - low) / 2);
        let is_less = match compare(at)? {
            Ordering::Equal if unique => return Ok(at),
            ordering => ordering == Ordering::Less,
        };
        if is_less {
            low = at + 1;
        } else {
            high = at;
        }
        // From an estimate on, steps in the same direction grow until one passes the target.
        if guess.is_some() && *rightward.get_or_insert(is_less) == is_less {
            step = 2 * step + 1;
            next = Some(if is_less { low + step - 1 } else { high.saturating_sub(step) });
            next = next.map(|next| next.clamp(low, high.max(low + 1) - 1));
        }
    }
    Ok(low)
}
