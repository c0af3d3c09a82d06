//! What a directory holds, as the kernel reads it.

use std::sync::Arc;

use esker_vfs::{DirEntry, Kind};

use crate::gather::Named;
use crate::layout::{self, BLOCK, Dirent, INODE};
use crate::space::{Directory, Space, Stored, inode_number};

/// What a directory holds, as the kernel reads it.
pub(crate) struct Contents {
    /// Names, and inodes of whatever has one name and is no directory, from the first block on in which there are names.
    pub(crate) bytes: Vec<u8>,
    /// Contents of the above, by where they are.
    pub(crate) stored: Box<[Stored]>,
}

const DOT: &[u8] = b".";
const DOTS: &[u8] = b"..";

impl Contents {
    /// About how much memory it takes.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.stored)
    }

    /// Which of the contents in a directory lies at a block.
    pub(crate) fn stored_at(&self, block: u64) -> Option<Stored> {
        let at = self.stored.partition_point(|stored| stored.end <= block);
        self.stored.get(at).filter(|stored| stored.start <= block).copied()
    }
}

impl Space {
    /// Writes down what a directory holds. `names` is all of it, sorted. The first time everything gets its place, later it
    /// is found there, or has changed, which it never may: then there is nothing to show.
    pub(crate) fn write_down(&mut self, directory: &Arc<Directory>, names: &[Named]) -> Option<Contents> {
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
                self.settle(directory, shape);
            }
            Some(known) if known.has_changed(bytes, table.len(), free) => return None,
            Some(_) => {}
        }
        // What has a place of its own may need one among the contents, too.
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
        Some(Contents { bytes: held, stored: stored.into_boxed_slice() })
    }
}

fn has_place_in_table(named: &Named) -> bool {
    named.entry.attr.kind != Kind::Directory && named.entry.attr.nlink <= 1
}

/// How many bytes of a table are for it.
fn table_bytes(named: &Named) -> usize {
    (INODE + named.attributes.len()).next_multiple_of(INODE)
}

/// The names of a directory and the two that each has, in their order.
fn with_dots(names: &[Named]) -> impl Iterator<Item = &[u8]> + Clone {
    let (before, rest) = names.split_at(names.partition_point(|named| &*named.entry.name < DOT));
    let (between, after) = rest.split_at(rest.partition_point(|named| &*named.entry.name < DOTS));
    fn of(part: &[Named]) -> impl Iterator<Item = &[u8]> + Clone {
        part.iter().map(|named| &*named.entry.name)
    }
    of(before).chain([DOT]).chain(of(between)).chain([DOTS]).chain(of(after))
}

/// Adds the names of a directory, block by block.
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
