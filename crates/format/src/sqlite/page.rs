//! Pages of a b-tree, and their cells.

use super::{Result, damaged, varint};

/// Length in bytes up to which an entry never overflows: the smallest page has 480 usable bytes, of which an
/// entry may take (480 - 12) * 64 / 255 - 23.
const SHORT_ENTRY: u8 = 94;

/// Type of a b-tree page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    IndexInterior,
    TableInterior,
    IndexLeaf,
    TableLeaf,
}

/// A b-tree page with a validated header.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    pub(super) number: u32,
    pub(super) kind: PageKind,
    /// The usable bytes of the page.
    bytes: &'a [u8],
    /// Offsets of the cells, two bytes each.
    pointers: &'a [u8],
    /// Last child of an interior page, zero on leaves.
    right: u32,
}

/// Part of a cell's payload that is on the page itself.
#[derive(Clone, Copy)]
pub(super) struct CellPayload<'a> {
    pub(super) local: &'a [u8],
    /// Length of the whole payload in bytes.
    pub(super) len: u64,
    /// First overflow page, zero if there is none.
    pub(super) overflow: u32,
}

impl<'a> Page<'a> {
    /// Validates the header of a page; `bytes` are its usable bytes.
    #[inline]
    pub(super) fn parse(number: u32, bytes: &'a [u8]) -> Result<Self> {
        // The first page starts with the header of the file.
        let start = if number == 1 { 100 } else { 0 };
        let Some((&[kind, _, _, count_high, count_low, _, _, _], after)) =
            bytes.get(start..).and_then(|rest| rest.split_first_chunk())
        else {
            return damaged(number, "it has no room for a header");
        };
        let kind = match kind {
            2 => PageKind::IndexInterior,
            5 => PageKind::TableInterior,
            10 => PageKind::IndexLeaf,
            13 => PageKind::TableLeaf,
            _ => return damaged(number, "it is not a b-tree page"),
        };
        let (right, after) = match kind {
            PageKind::IndexLeaf | PageKind::TableLeaf => (0, after),
            PageKind::IndexInterior | PageKind::TableInterior => match after.split_first_chunk() {
                Some((right, after)) => (u32::from_be_bytes(*right), after),
                None => return damaged(number, "it has no room for its last child"),
            },
        };
        let count = usize::from(u16::from_be_bytes([count_high, count_low]));
        match after.get(..2 * count) {
            Some(pointers) => Ok(Self { number, kind, bytes, pointers, right }),
            None => damaged(number, "it has more cells than fit"),
        }
    }

    pub(super) const fn is_leaf(&self) -> bool {
        matches!(self.kind, PageKind::IndexLeaf | PageKind::TableLeaf)
    }

    /// Returns the number of cells.
    pub(super) const fn cells(&self) -> usize {
        self.pointers.len() / 2
    }

    /// Returns the bytes from the start of a cell to the end of the page.
    #[inline]
    fn cell(&self, index: usize) -> Result<&'a [u8]> {
        let pointer = self.pointers.get(2 * index..).and_then(|rest| rest.first_chunk::<2>());
        let cell = pointer.and_then(|at| self.bytes.get(usize::from(u16::from_be_bytes(*at))..));
        cell.map_or_else(|| damaged(self.number, "a cell lies outside the page"), Ok)
    }

    /// Returns the child left of a cell of an interior page; for the index after the last cell, the rightmost
    /// child.
    #[inline]
    pub(super) fn child(&self, index: usize) -> Result<u32> {
        if index >= self.cells() {
            return Ok(self.right);
        }
        match self.cell(index)?.first_chunk() {
            Some(child) => Ok(u32::from_be_bytes(*child)),
            None => damaged(self.number, "a cell has no room for its child"),
        }
    }

    /// Returns the rowid in a cell of a table.
    #[inline]
    pub(super) fn rowid(&self, index: usize) -> Result<i64> {
        let cell = self.cell(index)?;
        let rowid = match self.kind {
            PageKind::TableInterior => cell.get(4..).and_then(varint::read),
            PageKind::TableLeaf => varint::read(cell).and_then(|(_, rest)| varint::read(rest)),
            PageKind::IndexInterior | PageKind::IndexLeaf => None,
        };
        match rowid {
            Some((rowid, _)) => Ok(rowid.cast_signed()),
            None => damaged(self.number, "a cell has no rowid"),
        }
    }

    /// Returns the payload of a cell; cells of interior table pages have none.
    #[inline]
    pub(super) fn payload(&self, index: usize) -> Result<CellPayload<'a>> {
        let cell = self.cell(index)?;
        let start = match self.kind {
            PageKind::IndexInterior => cell.get(4..),
            PageKind::IndexLeaf | PageKind::TableLeaf => Some(cell),
            PageKind::TableInterior => None,
        };
        let after_len = start.and_then(varint::read);
        let after_rowid = match self.kind {
            PageKind::TableLeaf => {
                after_len.and_then(|(len, rest)| varint::read(rest).map(|(_, rest)| (len, rest)))
            }
            _ => after_len,
        };
        let Some((len, rest)) = after_rowid else { return damaged(self.number, "a cell has no payload") };
        self.split_payload(len, rest)
    }

    /// Returns the payload of an index entry that is too short to overflow.
    #[inline(always)]
    pub(super) fn short_entry(&self, index: usize) -> Option<&'a [u8]> {
        let cell = self.cell(index).ok()?;
        let entry = if self.kind == PageKind::IndexInterior { cell.get(4..)? } else { cell };
        let (&len, payload) = entry.split_first()?;
        if len > SHORT_ENTRY { None } else { payload.get(..usize::from(len)) }
    }

    /// Splits a payload into its local part and the number of its overflow page.
    #[inline]
    fn split_payload(&self, len: u64, rest: &'a [u8]) -> Result<CellPayload<'a>> {
        let usable = self.bytes.len() as u64;
        let largest = match self.kind {
            PageKind::TableLeaf | PageKind::TableInterior => usable - 35,
            PageKind::IndexInterior | PageKind::IndexLeaf => (usable - 12) * 64 / 255 - 23,
        };
        let local_len = if len <= largest {
            len
        } else {
            let smallest = (usable - 12) * 32 / 255 - 23;
            let fitting = smallest + (len - smallest) % (usable - 4);
            if fitting <= largest { fitting } else { smallest }
        };
        let split = usize::try_from(local_len).ok().and_then(|local_len| rest.split_at_checked(local_len));
        let Some((local, rest)) = split else {
            return damaged(self.number, "a payload lies outside the page");
        };
        if local_len == len {
            return Ok(CellPayload { local, len, overflow: 0 });
        }
        match rest.first_chunk() {
            Some(next) => Ok(CellPayload { local, len, overflow: u32::from_be_bytes(*next) }),
            None => damaged(self.number, "a long payload has no second page"),
        }
    }
}
