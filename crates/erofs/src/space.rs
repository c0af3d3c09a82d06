//! Where in the image everything lies. Nothing has a place before somebody comes by it, and it keeps the one it gets.
//!
//! The number of an inode is its place, and programs see it. So that it is the same whenever the tree is mounted, the place
//! of a directory follows from its key, and the inodes of what is in it lie there in the order of the names; an inode with
//! several names has a place of its own. Addresses cost nothing: there are 2^48 blocks of them. What is asked costs, a page at a
//! time: so the names of a directory follow its inode, and the inodes of its files those, wherever names have room in that page.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use esker_vfs::{Attr, Kind, Node, NodeKey};
use foldhash::HashMap;

use crate::layout::{self, BLOCK, Content, INODE, SLOT};

/// Contents lie from here on, one after another, as somebody comes by them.
const DATA: u64 = 1 << 40;
/// The first block of the large places, and how many blocks each has.
const LARGE: u64 = 1 << 45;
const LARGE_BLOCKS: u64 = 1 << 24;
/// The same of the small ones.
const SMALL: u64 = 1 << 46;
const SMALL_BLOCKS: u64 = 1 << 12;
/// The first block that is in no place.
const PLACES_END: u64 = 1 << 47;
/// The first that can't be addressed.
pub(crate) const END: u64 = 1 << 48;

/// At the beginning of a place there is an inode, with room for its extended attributes.
const INODE_BLOCKS: u64 = 65;

/// The number of the inode at the beginning of a block.
pub(crate) const fn inode_number(block: u64) -> u64 {
    block * (BLOCK / SLOT)
}

/// A directory that somebody has come by.
pub(crate) struct Directory {
    pub(crate) node: Node,
    attr: Attr,
    /// As they follow the inode.
    attributes: Box<[u8]>,
    /// Where its inode is.
    pub(crate) block: u64,
    /// Number of the inode of the directory that it is in; its own, if it is the root.
    pub(crate) parent: u64,
    /// Known once it was listed.
    pub(crate) shape: OnceLock<Shape>,
}

/// Where what a directory holds lies: its names and, behind them, the inodes of whatever has one name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// From this block on, which is the one with the directory's inode if all its names have room behind that.
    first: u64,
    /// Where the names begin in there, in bytes.
    pub(crate) names: u64,
    /// Length of the names.
    pub(crate) bytes: u64,
    /// Where the inodes begin in there.
    pub(crate) table: u64,
    /// The first block after them.
    end: u64,
    /// Contents of what is in the directory, in blocks.
    pub(crate) data: u64,
    pub(crate) data_end: u64,
}

impl Shape {
    /// The number of the inode that begins at a byte of the table.
    pub(crate) const fn in_table(&self, at: usize) -> u64 {
        (self.first * BLOCK + self.table + at as u64) / SLOT
    }

    /// Whether a directory with so many bytes of names and of inodes, and contents up to this block, is another one.
    pub(crate) fn has_changed(&self, bytes: u64, table: usize, data_end: u64) -> bool {
        let end = self.first + (self.table + table as u64).div_ceil(BLOCK);
        (bytes, end, data_end) != (self.bytes, self.end, self.data_end)
    }

    fn holds(&self, block: u64) -> bool {
        (self.first..self.end).contains(&block)
    }
}

impl Directory {
    /// Its inode, with the extended attributes that follow.
    pub(crate) fn inode(&self, shape: &Shape) -> Vec<u8> {
        let content = if self.is_inline(shape) { Content::Inline } else { Content::At(shape.first) };
        let mut bytes = layout::inode(&self.attr, shape.bytes, content, self.attributes.len()).to_vec();
        bytes.extend_from_slice(&self.attributes);
        bytes
    }

    /// Its inode, if it is known and nothing follows it.
    pub(crate) fn inode_alone(&self) -> Option<Vec<u8>> {
        let shape = self.shape.get().filter(|shape| !self.is_inline(shape))?;
        Some(self.inode(shape))
    }

    /// Whether its names follow its inode.
    pub(crate) fn is_inline(&self, shape: &Shape) -> bool {
        shape.first == self.block
    }
}

/// A file that has several names, or anything else but a directory that has.
pub(crate) struct Linked {
    pub(crate) inode: Vec<u8>,
    pub(crate) stored: Option<Stored>,
}

/// A file or link with a content, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) node: Node,
    pub(crate) size: u64,
}

/// Whose a place is.
#[derive(Clone)]
enum Owner {
    Directory(Arc<Directory>),
    Linked(Arc<Linked>),
}

/// What lies at an address.
pub(crate) enum Place {
    /// What the whole says of itself.
    First,
    /// A directory's inode, and what may follow it, from this byte on.
    Inode(Arc<Directory>, u64),
    /// Another one, that has several names.
    Linked(Arc<Linked>, u64),
    /// What a directory holds, from this byte on.
    Held(Arc<Directory>, u64),
    /// The content of something in a directory.
    Within(Arc<Directory>),
    /// The content of what has several names.
    Stored(Stored),
}

/// Who is where.
#[derive(Default)]
pub(crate) struct Space {
    /// How many blocks of contents there are so far, and may be.
    used: u64,
    most: u64,
    /// Places that are taken, by their first block.
    small: HashMap<u64, Owner>,
    large: HashMap<u64, Arc<Directory>>,
    /// Who has which small one.
    blocks: HashMap<NodeKey, u64>,
    /// Who has contents, by their first block.
    data: BTreeMap<u64, Owner>,
}

/// One of `count` places, of which all are as likely.
fn place(key: NodeKey, count: u64) -> u64 {
    // Keys are digests, but for those of images; the steps are those of MurmurHash3's last mixing.
    let key = u128::from_le_bytes(key.0);
    let mut hash = (key >> 64) as u64 ^ (key as u64).rotate_left(29);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    (hash ^ hash >> 33) % count
}

impl Space {
    /// Of a tree with this root; its extended attributes are as they follow an inode.
    pub(crate) fn new(root: (Node, Attr), attributes: &[u8]) -> (Self, u64) {
        let mut space = Self { most: LARGE - DATA, ..Self::default() };
        let (block, _) = space.take(root.0.key);
        space.put(block, root, attributes, inode_number(block));
        (space, inode_number(block))
    }

    /// The small place of a key, and whether it is new.
    fn take(&mut self, key: NodeKey) -> (u64, bool) {
        if let Some(block) = self.blocks.get(&key) {
            return (*block, false);
        }
        const COUNT: u64 = (PLACES_END - SMALL) / SMALL_BLOCKS;
        let first = place(key, COUNT);
        let mut places = (0..COUNT).map(|step| SMALL + (first + step) % COUNT * SMALL_BLOCKS);
        // There are more of them than anybody has memory for.
        let block = places.find(|block| !self.small.contains_key(block)).unwrap_or(SMALL);
        self.blocks.insert(key, block);
        (block, true)
    }

    fn take_large(&mut self, directory: &Arc<Directory>) -> u64 {
        const COUNT: u64 = (SMALL - LARGE) / LARGE_BLOCKS;
        let first = place(directory.node.key, COUNT);
        let mut places = (0..COUNT).map(|step| LARGE + (first + step) % COUNT * LARGE_BLOCKS);
        let block = places.find(|block| !self.large.contains_key(block)).unwrap_or(LARGE);
        self.large.insert(block, Arc::clone(directory));
        block
    }

    fn put(&mut self, block: u64, (node, attr): (Node, Attr), attributes: &[u8], parent: u64) {
        let shape = OnceLock::new();
        let directory = Directory { node, attr, attributes: attributes.into(), block, parent, shape };
        self.small.insert(block, Owner::Directory(Arc::new(directory)));
    }

    /// The number of a directory that is in `parent`.
    pub(crate) fn directory(&mut self, found: (Node, Attr), attributes: &[u8], parent: u64) -> u64 {
        let (block, is_new) = self.take(found.0.key);
        if is_new {
            self.put(block, found, attributes, parent);
        }
        inode_number(block)
    }

    /// The number of what has several names.
    pub(crate) fn linked(&mut self, (node, attr): (Node, Attr), attributes: &[u8]) -> u64 {
        let (block, is_new) = self.take(node.key);
        if is_new {
            let mut free = self.free();
            let (size, content, stored) = self.place(&node, &attr, &mut free);
            self.used = free - DATA;
            let mut inode = layout::inode(&attr, size, content, attributes.len()).to_vec();
            inode.extend_from_slice(attributes);
            let linked = Owner::Linked(Arc::new(Linked { inode, stored }));
            if let Some(stored) = stored {
                self.data.insert(stored.start, linked.clone());
            }
            self.small.insert(block, linked);
        }
        inode_number(block)
    }

    /// The first block of contents that nobody has.
    fn free(&self) -> u64 {
        DATA + self.used
    }

    /// Where a content goes if `free` is the first block that nobody has: what its inode says, and how it is found.
    pub(crate) fn place(&self, node: &Node, attr: &Attr, free: &mut u64) -> (u64, Content, Option<Stored>) {
        if !matches!(attr.kind, Kind::File | Kind::Symlink) {
            return (0, Content::Device(attr.rdev), None);
        }
        let (start, blocks) = (*free, attr.size.div_ceil(BLOCK));
        // No path is as long, and of a link target that is the kernel would show a part.
        let is_too_long = attr.kind == Kind::Symlink && attr.size >= BLOCK;
        if is_too_long || blocks > (DATA + self.most).saturating_sub(start) {
            return (attr.size, Content::Unreadable, None);
        }
        *free += blocks;
        let stored = Stored { start, end: *free, node: *node, size: attr.size };
        (attr.size, Content::At(start), (blocks > 0).then_some(stored))
    }

    /// Where things will be of a directory that wasn't listed before, with so many bytes of names and of inodes.
    pub(crate) fn shape(&mut self, directory: &Arc<Directory>, bytes: u64, table: usize) -> Shape {
        let behind = (INODE + directory.attributes.len()) as u64;
        // No inode lies in two blocks.
        let inline_table = (behind + bytes).next_multiple_of(INODE as u64);
        let blocks_to = |table_at: u64| (table_at + table as u64).div_ceil(BLOCK);
        let (data, data_end) = (self.free(), self.free());
        if behind + bytes <= BLOCK && blocks_to(inline_table) <= SMALL_BLOCKS {
            let first = directory.block;
            let end = first + blocks_to(inline_table);
            return Shape { first, names: behind, bytes, table: inline_table, end, data, data_end };
        }
        let table_at = bytes.next_multiple_of(BLOCK);
        let first = if INODE_BLOCKS + blocks_to(table_at) <= SMALL_BLOCKS {
            directory.block + INODE_BLOCKS
        } else {
            self.take_large(directory)
        };
        Shape { first, names: 0, bytes, table: table_at, end: first + blocks_to(table_at), data, data_end }
    }

    /// A directory was listed: from now on everything in it is where `shape` says.
    pub(crate) fn settle(&mut self, directory: &Arc<Directory>, shape: Shape) {
        self.used = shape.data_end - DATA;
        if shape.data < shape.data_end {
            self.data.insert(shape.data, Owner::Directory(Arc::clone(directory)));
        }
        // Whoever is here has the space alone, so nobody else has set it.
        let _ = directory.shape.set(shape);
    }

    /// What lies at a block that somebody was told of.
    pub(crate) fn find(&self, block: u64) -> Option<Place> {
        match block {
            0 => Some(Place::First),
            DATA..LARGE => match self.data.range(..=block).next_back()?.1 {
                Owner::Directory(directory) => {
                    let is_there = block < directory.shape.get()?.data_end;
                    is_there.then(|| Place::Within(Arc::clone(directory)))
                }
                Owner::Linked(linked) => linked.stored.filter(|stored| block < stored.end).map(Place::Stored),
            },
            LARGE..SMALL => Self::held(self.large.get(&(block - block % LARGE_BLOCKS))?, block),
            SMALL..PLACES_END => {
                let first = block - block % SMALL_BLOCKS;
                let from = (block - first) * BLOCK;
                match self.small.get(&first)? {
                    Owner::Linked(linked) => Some(Place::Linked(Arc::clone(linked), from)),
                    Owner::Directory(directory) => Self::held(directory, block).or_else(|| {
                        let is_inode = block < first + INODE_BLOCKS;
                        is_inode.then(|| Place::Inode(Arc::clone(directory), from))
                    }),
                }
            }
            _ => None,
        }
    }

    fn held(directory: &Arc<Directory>, block: u64) -> Option<Place> {
        let shape = directory.shape.get().filter(|shape| shape.holds(block))?;
        Some(Place::Held(Arc::clone(directory), (block - shape.first) * BLOCK))
    }

    #[cfg(test)]
    pub(crate) fn end_after(&mut self, blocks: u64) {
        self.most = self.used + blocks;
    }
}
