//! Pages under construction: the growing file, the cells of a page, and the file header.

use super::record::{push_varint, varint_len};

/// Types of b-tree pages, by their first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    InteriorIndex = 0x02,
    InteriorTable = 0x05,
    LeafIndex = 0x0a,
    LeafTable = 0x0d,
}

impl Kind {
    const fn header_len(self) -> usize {
        match self {
            Self::InteriorIndex | Self::InteriorTable => 12,
            Self::LeafIndex | Self::LeafTable => 8,
        }
    }

    /// Returns the maximum payload in bytes that stays in the cell, as the file format defines it.
    const fn payload_max(self, usable: usize) -> usize {
        match self {
            Self::LeafTable => usable - 35,
            _ => (usable - 12) * 64 / 255 - 23,
        }
    }
}

/// Length in bytes of the file header, which precedes the first page's own.
const FILE_HEADER_LEN: usize = 100;

/// Pages written so far; the first is reserved for the header and the schema.
#[derive(Debug)]
pub(super) struct Pages {
    size: usize,
    bytes: Vec<u8>,
}

/// Cells of a page.
#[derive(Debug)]
pub(super) struct Cells {
    kind: Kind,
    content: Vec<u8>,
    starts: Vec<usize>,
}

impl Cells {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, content: Vec::new(), starts: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Removes the last cell and returns it.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let start = self.starts.pop()?;
        Some(self.content.split_off(start))
    }
}

impl Pages {
    pub(super) fn new(size: usize) -> Self {
        Self { size, bytes: vec![0; size] }
    }

    /// Returns the number of the next page.
    pub(super) fn next(&self) -> u32 {
        u32::try_from(self.bytes.len() / self.size + 1)
            .expect("a database has fewer than 2^32 pages because its rows were in memory")
    }

    /// Adds a cell if it fits; returns false otherwise.
    pub(super) fn try_push(&self, cells: &mut Cells, cell: &[u8]) -> bool {
        let used = cells.kind.header_len() + 2 * (cells.len() + 1) + cells.content.len() + cell.len();
        if used > self.size {
            return false;
        }
        cells.starts.push(cells.content.len());
        cells.content.extend_from_slice(cell);
        true
    }

    /// Writes the cells as the next page and clears them; `right` is the last child of an interior page.
    pub(super) fn write(&mut self, cells: &mut Cells, right: Option<u32>) -> u32 {
        let number = self.next();
        let mut page = Vec::with_capacity(self.size);
        push_cells(&mut page, self.size, cells, right);
        self.bytes.extend_from_slice(&page);
        cells.content.clear();
        cells.starts.clear();
        number
    }

    /// Appends the local part of a payload to its cell, and writes the rest to overflow pages.
    pub(super) fn push_payload(&mut self, kind: Kind, payload: &[u8], cell: &mut Vec<u8>) {
        let usable = self.size;
        let most = kind.payload_max(usable);
        if payload.len() <= most {
            cell.extend_from_slice(payload);
            return;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let fitting = least + (payload.len() - least) % (usable - 4);
        let local = if fitting <= most { fitting } else { least };
        let (here, mut rest) = payload.split_at(local);
        cell.extend_from_slice(here);
        cell.extend_from_slice(&self.next().to_be_bytes());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(usable - 4));
            let following = if after.is_empty() { 0 } else { self.next() + 1 };
            self.bytes.extend_from_slice(&following.to_be_bytes());
            self.bytes.extend_from_slice(piece);
            self.bytes.resize(self.bytes.len().next_multiple_of(self.size), 0);
            rest = after;
        }
    }

    /// Writes the first page and returns the file.
    pub(super) fn finish(mut self, schema: &[Vec<u8>]) -> Vec<u8> {
        let mut cells = Cells::new(Kind::LeafTable);
        for (record, rowid) in schema.iter().zip(1..) {
            let mut cell = Vec::with_capacity(record.len() + varint_len(record.len() as u64) + 1);
            push_varint(&mut cell, record.len() as u64);
            push_varint(&mut cell, rowid);
            cell.extend_from_slice(record);
            cells.starts.push(cells.content.len());
            cells.content.extend_from_slice(&cell);
        }
        let count = self.next() - 1;
        let mut first = file_header(self.size, count);
        push_cells(&mut first, self.size, &cells, None);
        self.bytes.splice(..self.size, first);
        self.bytes
    }
}

/// Appends a page whose first `page.len()` bytes exist already.
fn push_cells(page: &mut Vec<u8>, size: usize, cells: &Cells, right: Option<u32>) {
    let content_start = size
        .checked_sub(cells.content.len())
        .filter(|start| page.len() + cells.kind.header_len() + 2 * cells.len() <= *start)
        .expect("the cells fit because they were counted when they were added, and the schemas are fixed");
    let short = |number: usize| {
        u16::try_from(number).expect("offsets in a page fit 16 bits because pages are small").to_be_bytes()
    };
    page.push(cells.kind as u8);
    page.extend_from_slice(&[0, 0]); // no free blocks
    page.extend_from_slice(&short(cells.len()));
    page.extend_from_slice(&short(content_start));
    page.push(0); // no fragmented bytes
    if let Some(right) = right {
        page.extend_from_slice(&right.to_be_bytes());
    }
    for start in &cells.starts {
        page.extend_from_slice(&short(content_start + start));
    }
    page.resize(content_start, 0);
    page.extend_from_slice(&cells.content);
}

/// SQLite version in the header; a constant, so that the bytes don't depend on a library.
const WRITER_VERSION: u32 = 3_040_001;

fn file_header(page_size: usize, page_count: u32) -> Vec<u8> {
    let page_size =
        u16::try_from(page_size).expect("the page size fits 16 bits because it is a small constant");
    let mut header = Vec::with_capacity(usize::from(page_size));
    header.extend_from_slice(b"SQLite format 3\0");
    header.extend_from_slice(&page_size.to_be_bytes());
    header.extend_from_slice(&[1, 1]); // rollback journal, not a write-ahead log
    header.extend_from_slice(&[0, 64, 32, 32]); // nothing reserved; the fractions are fixed by the format
    for word in [
        1, // change counter
        page_count, 0, 0, // no free pages
        1, // schema cookie
        4, // schema format
        0, 0, // default cache size, no automatic vacuum
        1, // UTF-8
        0, 0, 0, // user version, incremental vacuum, application id
    ] {
        header.extend_from_slice(&u32::to_be_bytes(word));
    }
    header.resize(92, 0);
    header.extend_from_slice(&1u32.to_be_bytes()); // the change counter that the page count belongs to
    header.extend_from_slice(&WRITER_VERSION.to_be_bytes());
    debug_assert_eq!(header.len(), FILE_HEADER_LEN);
    header
}
