//! Builds b-trees from the leaves upwards.
//!
//! A table keeps every row in a leaf, and its interior pages have the largest rowid of each child. An index
//! keeps each entry once: an entry that no longer fits a page moves up and separates it from the next. In
//! both cases every finished page comes with a *separator*, which goes into a cell of its parent, or further
//! up if the page is the last child there.

use super::page::{Cells, Kind, Pages};
use super::record::push_varint;

/// A finished page and its separator from the right neighbour.
type Child = (u32, Vec<u8>);

const ROOM: &str = "an empty page takes any cell because longer payloads overflow";

/// Builder of a table's b-tree.
#[derive(Debug)]
pub(super) struct TableBuilder<'p> {
    pages: &'p mut Pages,
    leaf: Cells,
    last: i64,
    cell: Vec<u8>,
    children: Vec<Child>,
}

impl<'p> TableBuilder<'p> {
    pub(super) fn new(pages: &'p mut Pages) -> Self {
        Self { pages, leaf: Cells::new(Kind::LeafTable), last: 0, cell: Vec::new(), children: Vec::new() }
    }

    pub(super) fn push(&mut self, rowid: i64, record: &[u8]) {
        self.cell.clear();
        push_varint(&mut self.cell, record.len() as u64);
        push_varint(&mut self.cell, rowid.cast_unsigned());
        self.pages.push_payload(Kind::LeafTable, record, &mut self.cell);
        if !self.pages.try_push(&mut self.leaf, &self.cell) {
            self.end_leaf();
            assert!(self.pages.try_push(&mut self.leaf, &self.cell), "{ROOM}");
        }
        self.last = rowid;
    }

    fn end_leaf(&mut self) {
        let mut separator = Vec::new();
        push_varint(&mut separator, self.last.cast_unsigned());
        self.children.push((self.pages.write(&mut self.leaf, None), separator));
    }

    /// Writes the remaining pages and returns the root page.
    pub(super) fn finish(mut self) -> u32 {
        self.end_leaf();
        grow(self.pages, Kind::InteriorTable, self.children)
    }
}

/// Builder of an index's b-tree.
#[derive(Debug)]
pub(super) struct IndexBuilder<'p> {
    pages: &'p mut Pages,
    leaf: Cells,
    /// Entry that did not fit `leaf`. It separates two leaves if another entry follows.
    waiting: Option<Vec<u8>>,
    children: Vec<Child>,
}

impl<'p> IndexBuilder<'p> {
    pub(super) fn new(pages: &'p mut Pages) -> Self {
        Self { pages, leaf: Cells::new(Kind::LeafIndex), waiting: None, children: Vec::new() }
    }

    pub(super) fn push(&mut self, record: &[u8]) {
        let mut cell = Vec::with_capacity(record.len() + 2);
        push_varint(&mut cell, record.len() as u64);
        self.pages.push_payload(Kind::LeafIndex, record, &mut cell);
        if let Some(separator) = self.waiting.take() {
            self.children.push((self.pages.write(&mut self.leaf, None), separator));
        }
        if !self.pages.try_push(&mut self.leaf, &cell) {
            self.waiting = Some(cell);
        }
    }

    /// Writes the remaining pages and returns the root page.
    pub(super) fn finish(mut self) -> u32 {
        if let Some(last) = self.waiting.take() {
            // No entry follows the last one, so the one before it becomes the separator.
            let separator =
                self.leaf.pop().expect("a full page has cells because each takes a quarter at most");
            self.children.push((self.pages.write(&mut self.leaf, None), separator));
            assert!(self.pages.try_push(&mut self.leaf, &last), "{ROOM}");
        }
        self.children.push((self.pages.write(&mut self.leaf, None), Vec::new()));
        grow(self.pages, Kind::InteriorIndex, self.children)
    }
}

/// Adds interior levels until one page is left, the root.
fn grow(pages: &mut Pages, kind: Kind, mut level: Vec<Child>) -> u32 {
    loop {
        match level.as_slice() {
            [] => unreachable!("a b-tree has a leaf, even without rows"),
            [(root, _)] => return *root,
            children => level = interior(pages, kind, children),
        }
    }
}

fn interior(pages: &mut Pages, kind: Kind, mut children: &[Child]) -> Vec<Child> {
    let mut parents = Vec::new();
    let mut cells = Cells::new(kind);
    while !children.is_empty() {
        // All children of a page except the last have a cell.
        let mut count = 1;
        for (page, separator) in children.iter().take(children.len() - 1) {
            let cell = [&page.to_be_bytes()[..], separator].concat();
            if !pages.try_push(&mut cells, &cell) {
                break;
            }
            count += 1;
        }
        // A page with one child would have no cell, so the last page gets a second child.
        if children.len() - count == 1 {
            cells.pop();
            count -= 1;
        }
        let (here, rest) = children.split_at(count);
        if let Some((last, separator)) = here.last() {
            parents.push((pages.write(&mut cells, Some(*last)), separator.clone()));
        }
        children = rest;
    }
    parents
}
