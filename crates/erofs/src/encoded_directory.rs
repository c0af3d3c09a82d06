//! Encodes a directory as the kernel reads it.

use std::sync::Arc;

use esker_vfs::{DirEntry, Kind};

use crate::allocator::{Allocator, Directory, FileExtent, inode_number};
use crate::layout::{self, BLOCK, Dirent, INODE};
use crate::list_all::ListedEntry;

/// An encoded directory: names and inodes in the format of the kernel.
pub(crate) struct EncodedDirectory {
    /// Bytes from the first block with names on: names, then inodes of entries with a single name that are
    /// not directories.
    pub(crate) bytes: Vec<u8>,
    /// File contents of these inodes, by position.
    pub(crate) stored: Box<[FileExtent]>,
}

const DOT: &[u8] = b".";
const DOTS: &[u8] = b"..";

impl EncodedDirectory {
    /// Returns the approximate memory use in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.stored)
    }

    /// Returns the file content of this directory that covers a block.
    pub(crate) fn stored_at(&self, block: u64) -> Option<FileExtent> {
        let at = self.stored.partition_point(|stored| stored.end <= block);
        self.stored.get(at).filter(|stored| stored.start <= block).copied()
    }
}

impl Allocator {
    /// Encodes a directory. `names` has all its entries, sorted.
    ///
    /// The first call assigns all positions, where later calls find the entries. Returns `None` if the directory
    /// differs from the first call, which the tree forbids.
    pub(crate) fn encode(
        &mut self,
        directory: &Arc<Directory>,
        names: &[ListedEntry],
    ) -> Option<EncodedDirectory> {
        let own = inode_number(directory.block);
        let len = names.iter().filter(|named| has_place_in_table(named)).map(table_bytes).sum();
        let mut table = Vec::with_capacity(len);
        let known = directory.shape.get().copied();
        let bytes = layout::names_bytes(with_dots(names));
        let mut shape = match known {
            Some(shape) => shape,
            None => self.shape(directory, bytes, len),
        };
        let (mut free, mut stored) = (shape.data, Vec::new());
        let mut entries: Vec<Dirent<'_>> = Vec::with_capacity(names.len() + 2);
        for named in names.iter().filter(|named| has_place_in_table(named)) {
            let DirEntry { name, node, attr, .. } = &named.entry;
            let (at, (size, content, its)) = (table.len(), self.place(node, attr, &mut free));
            table.extend_from_slice(&layout::inode(attr, size, content, named.attributes.len()));
            table.extend_from_slice(&named.attributes);
            table.resize(at + table_bytes(named), 0);
            stored.extend(its);
            entries.push(Dirent { name, inode: shape.in_table(at), kind: attr.kind });
        }
        match known {
            None => {
                shape.data_end = free;
                self.set_layout(directory, shape);
            }
            Some(known) if known.has_changed(bytes, table.len(), free) => return None,
            Some(_) => {}
        }
        // A file that has an inode elsewhere may still need a position for its content.
        for named in names.iter().filter(|named| !has_place_in_table(named)) {
            let DirEntry { name, node, attr, .. } = &named.entry;
            let inode = match attr.kind {
                Kind::Directory => self.directory((*node, *attr), &named.attributes, own),
                _ => self.linked((*node, *attr), &named.attributes),
            };
            entries.push(Dirent { name, inode, kind: attr.kind });
        }
        for (name, inode) in [(DOT, own), (DOTS, directory.parent)] {
            entries.push(Dirent { name, inode, kind: Kind::Directory });
        }
        entries.sort_unstable_by_key(|entry| entry.name);
        let mut held = if directory.is_inline(&shape) { directory.inode(&shape) } else { Vec::new() };
        debug_assert_eq!(held.len() as u64, shape.names);
        put_names(&entries, &mut held);
        debug_assert_eq!(held.len() as u64, shape.names + shape.bytes);
        held.resize(shape.table as usize, 0);
        held.extend_from_slice(&table);
        Some(EncodedDirectory { bytes: held, stored: stored.into_boxed_slice() })
    }
}

fn has_place_in_table(named: &ListedEntry) -> bool {
    named.entry.attr.kind != Kind::Directory && named.entry.attr.nlink <= 1
}

/// Returns the bytes that an entry needs in the inode table.
fn table_bytes(named: &ListedEntry) -> usize {
    (INODE + named.attributes.len()).next_multiple_of(INODE)
}

/// Returns the names of a directory, with `.` and `..`, in sorted order.
fn with_dots(names: &[ListedEntry]) -> impl Iterator<Item = &[u8]> + Clone {
    let (before, rest) = names.split_at(names.partition_point(|named| &*named.entry.name < DOT));
    let (between, after) = rest.split_at(rest.partition_point(|named| &*named.entry.name < DOTS));
    fn of(part: &[ListedEntry]) -> impl Iterator<Item = &[u8]> + Clone {
        part.iter().map(|named| &*named.entry.name)
    }
    of(before).chain([DOT]).chain(of(between)).chain([DOTS]).chain(of(after))
}

/// Appends the names of a directory, block by block.
fn put_names(entries: &[Dirent<'_>], out: &mut Vec<u8>) {
    let mut rest = entries;
    let mut end = out.len();
    while !rest.is_empty() {
        out.resize(end, 0);
        let (block, after) = rest.split_at(layout::fit(rest.iter().map(|entry| entry.name)));
        layout::dirents(block, out);
        end += BLOCK as usize;
        rest = after;
    }
}
