//! What a directory holds, as the kernel reads it.

use std::sync::Arc;

use esker_vfs::{Attr, DirEntry, Kind, Node, NodeKey};
use foldhash::{HashMap, HashMapExt};

use crate::gather::Named;
use crate::layout::{self, BLOCK, Content, DIRENT, Dirent, INODE};
use crate::space::{Directory, Shape, Space, inode_number};

/// A file or link with a content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) node: Node,
    pub(crate) size: u64,
}

/// A directory in a directory: node, attributes, and extended attributes as they follow an inode.
pub(crate) type Within = (Node, Attr, Box<[u8]>);

/// What a directory holds, as the kernel reads it.
pub(crate) struct Contents {
    pub(crate) dirents: Vec<u8>,
    pub(crate) table: Vec<u8>,
    /// By where they are.
    pub(crate) stored: Box<[Stored]>,
    pub(crate) directories: Box<[Within]>,
}

impl Contents {
    /// About how much memory it takes.
    pub(crate) fn cost(&self) -> usize {
        let stored = self.stored.len() * size_of::<Stored>();
        let directories = self.directories.len() * size_of::<Within>();
        self.dirents.len() + self.table.len() + stored + directories
    }

    pub(crate) fn stored_at(&self, block: u64) -> Option<&Stored> {
        let at = self.stored.partition_point(|stored| stored.end <= block);
        self.stored.get(at).filter(|stored| stored.start <= block)
    }
}

/// Where the inode of a name is.
enum Slot {
    /// Among those of the directories.
    Directory,
    /// In the table, from this byte on, to be written there.
    Own(usize),
    /// In the table, from this byte on, for an earlier name.
    Same(usize),
    /// With another directory, under this number.
    Elsewhere(u64),
}

const DOT: &[u8] = b".";
const DOTS: &[u8] = b"..";

impl Space {
    /// Writes down what a directory holds. `names` is all of it, sorted. The first time everything gets its place, later it
    /// is found there.
    pub(crate) fn write_down(&mut self, directory: &Arc<Directory>, names: &[Named]) -> Contents {
        let known = directory.shape.get().copied();
        let (slots, table) = self.slots(known.as_ref(), names);
        let directories = names.iter().filter(|named| named.is_directory()).count() as u64;
        let bytes = dirent_bytes(names);
        let mut shape = known.unwrap_or_else(|| Shape::next(self, bytes, table as u64, directories));
        let mut writer =
            Writer { free: shape.data, end: self.end, table: Vec::with_capacity(table), stored: Vec::new() };
        let mut directories = Vec::new();
        let mut entries: Vec<Dirent<'_>> = Vec::with_capacity(names.len() + 2);
        for (named, slot) in names.iter().zip(slots) {
            let DirEntry { name, node, attr, .. } = &named.entry;
            let inode = match slot {
                Slot::Directory => {
                    directories.push((*node, *attr, named.attributes.as_slice().into()));
                    inode_number(shape.child(directories.len() - 1))
                }
                Slot::Own(at) => {
                    writer.inode(at, node, attr, &named.attributes);
                    if attr.nlink > 1 {
                        self.links.insert(node.key, shape.in_table(at));
                    }
                    shape.in_table(at)
                }
                Slot::Same(at) => shape.in_table(at),
                Slot::Elsewhere(inode) => inode,
            };
            entries.push(Dirent { name, inode, kind: attr.kind });
        }
        for (name, inode) in [(DOT, inode_number(directory.block)), (DOTS, directory.parent)] {
            let at = entries.partition_point(|entry| entry.name < name);
            entries.insert(at, Dirent { name, inode, kind: Kind::Directory });
        }
        if known.is_none() {
            shape.data_end = writer.free;
            self.settle(directory, shape);
        }
        Contents {
            dirents: dirents(&entries, shape.bytes),
            table: writer.table,
            stored: writer.stored.into_boxed_slice(),
            directories: directories.into_boxed_slice(),
        }
    }

    /// Where each name's inode is, and how long the table of inodes is. An inode with several names is in the table of the
    /// directory that was listed first.
    fn slots(&self, known: Option<&Shape>, names: &[Named]) -> (Vec<Slot>, usize) {
        let mut end = 0;
        let mut earlier: HashMap<NodeKey, usize> = HashMap::new();
        let slots = names.iter().map(|named| {
            if named.is_directory() {
                return Slot::Directory;
            }
            let key = named.entry.node.key;
            if named.entry.attr.nlink > 1 {
                if let Some(at) = earlier.get(&key) {
                    return Slot::Same(*at);
                }
                let elsewhere =
                    self.links.get(&key).filter(|inode| !known.is_some_and(|known| known.has(**inode)));
                if let Some(inode) = elsewhere {
                    return Slot::Elsewhere(*inode);
                }
                earlier.insert(key, end);
            }
            let at = end;
            end += (INODE + named.attributes.len()).next_multiple_of(INODE);
            Slot::Own(at)
        });
        let slots = slots.collect();
        (slots, end)
    }
}

/// Writes inodes, and finds places for what they hold.
struct Writer {
    free: u64,
    end: u64,
    table: Vec<u8>,
    stored: Vec<Stored>,
}

impl Writer {
    fn inode(&mut self, at: usize, node: &Node, attr: &Attr, attributes: &[u8]) {
        let holds = matches!(attr.kind, Kind::File | Kind::Symlink);
        let size = if holds { attr.size } else { 0 };
        let content = if holds { self.place(node, size) } else { Content::Device(attr.rdev) };
        self.table.resize(at, 0);
        self.table.extend_from_slice(&layout::inode(attr, size, content, attributes.len()));
        self.table.extend_from_slice(attributes);
    }

    fn place(&mut self, node: &Node, size: u64) -> Content {
        let blocks = size.div_ceil(BLOCK);
        if blocks > self.end.saturating_sub(self.free) {
            return Content::Unreadable;
        }
        let start = self.free;
        self.free += blocks;
        if blocks > 0 {
            self.stored.push(Stored { start, end: self.free, node: *node, size });
        }
        Content::At(start)
    }
}

/// The names of a directory and the two that each has, in their order.
fn with_dots(names: &[Named]) -> impl Iterator<Item = &[u8]> {
    let (before, rest) = names.split_at(names.partition_point(|named| &*named.entry.name < DOT));
    let (between, after) = rest.split_at(rest.partition_point(|named| &*named.entry.name < DOTS));
    fn of(part: &[Named]) -> impl Iterator<Item = &[u8]> {
        part.iter().map(|named| &*named.entry.name)
    }
    of(before).chain([DOT]).chain(of(between)).chain([DOTS]).chain(of(after))
}

/// How many bytes the names take: whole blocks, and a last one that is as long as it is.
fn dirent_bytes(names: &[Named]) -> u64 {
    let (mut blocks, mut used) = (0, 0);
    for name in with_dots(names) {
        let len = (DIRENT + name.len()) as u64;
        if used + len > BLOCK {
            blocks += 1;
            used = 0;
        }
        used += len;
    }
    blocks * BLOCK + used
}

fn dirents(entries: &[Dirent<'_>], bytes: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes as usize);
    let mut rest = entries;
    while !rest.is_empty() {
        out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
        // A name is at most 255 bytes long, so one always fits.
        let (block, after) = rest.split_at(layout::fit(rest.iter().map(|entry| entry.name)).max(1));
        layout::dirents(block, &mut out);
        rest = after;
    }
    debug_assert_eq!(out.len() as u64, bytes);
    out
}
