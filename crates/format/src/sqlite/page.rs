//! Pages of a b-tree, and the cells on them.

use super::{Result, damaged, varint};

/// An entry of this length lies on its page whatever the size of the page: the smallest one that is allowed has
/// 480 usable bytes, of which an entry may take (480 - 12) * 64 / 255 - 23.
const SHORT_ENTRY: u8 = 94;

/// What a b-tree page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    IndexInterior,
    TableInterior,
    IndexLeaf,
    TableLeaf,
}

/// A b-tree page whose header was checked.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    pub(super) number: u32,
    pub(super) kind: PageKind,
    /// The usable bytes of the page.
    bytes: &'a [u8],
    /// Where each cell lies, two bytes a cell.
    pointers: &'a [u8],
    /// The last child of an interior page, zero on leaves.
    right: u32,
}

/// The payload of a cell as far as it lies on the page.
#[derive(Clone, Copy)]
pub(super) struct CellPayload<'a> {
    pub(super) local: &'a [u8],
    /// The length of the whole payload.
    pub(super) len: u64,
    /// The first page of the rest, zero if there is none.
    pub(super) overflow: u32,
}

impl<'a> Page<'a> {
    /// Checks the header of a page; `bytes` are its usable bytes.
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

    /// The number of cells.
    pub(super) const fn cells(&self) -> usize {
        self.pointers.len() / 2
    }

    /// The bytes from the start of a cell to the end of the page.
    #[inline]
    fn cell(&self, index: usize) -> Result<&'a [u8]> {
        let pointer = self.pointers.get(2 * index..).and_then(|rest| rest.first_chunk::<2>());
        let cell = pointer.and_then(|at| self.bytes.get(usize::from(u16::from_be_bytes(*at))..));
        cell.map_or_else(|| damaged(self.number, "a cell lies outside the page"), Ok)
    }

    /// The child left of a cell of an interior page; past the last cell, the right-most child.
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

    /// The rowid in a cell of a table.
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

    /// The payload of a cell; interior pages of tables have none.
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

    /// The payload of an index entry that is so short that it can't continue on another page.
    #[inline(always)]
    pub(super) fn short_entry(&self, index: usize) -> Option<&'a [u8]> {
        let cell = self.cell(index).ok()?;
        let entry = if self.kind == PageKind::IndexInterior { cell.get(4..)? } else { cell };
        let (&len, payload) = entry.split_first()?;
        if len > SHORT_ENTRY { None } else { payload.get(..usize::from(len)) }
    }

    /// Tells how much of a payload lies on the page, and where the rest is.
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
