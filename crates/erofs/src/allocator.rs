//! Allocates positions in the image. An entry gets its position when it is first seen, and keeps it.
//!
//! The number of an inode is its position, and programs see it. So that it is the same at each mount, the
//! position of a directory is derived from its key, and the inodes of its entries follow in the order of the
//! names; an inode with several names has a position of its own. Addresses are free: there are 2^48 blocks.
//! Requests are not, and each returns a page: so the names of a directory follow its inode, and the inodes of
//! its files follow the names, where they fit into that page.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use esker_journal::Journal;
use esker_vfs::{Attr, Kind, Node, NodeKey};
use foldhash::HashMap;

use crate::layout::{self, BLOCK, Content, INODE, SLOT};
use crate::record::{Reader, Writer};

/// First block of file contents, which are allocated consecutively in the order of first use.
const DATA: u64 = 1 << 40;
/// First block of the large regions; the next constant is the length of a region in blocks.
const LARGE: u64 = 1 << 45;
const LARGE_BLOCKS: u64 = 1 << 24;
/// First block of the small regions; the next constant is the length of a region in blocks.
const SMALL: u64 = 1 << 46;
const SMALL_BLOCKS: u64 = 1 << 12;
/// First block after all regions.
const PLACES_END: u64 = 1 << 47;
/// First block beyond the addressable ones.
pub(crate) const END: u64 = 1 << 48;

/// Number of blocks reserved at the start of a region for an inode with its extended attributes.
const INODE_BLOCKS: u64 = 65;

/// Returns the number of an inode at the start of a block.
pub(crate) const fn inode_number(block: u64) -> u64 {
    block * (BLOCK / SLOT)
}

/// A directory with allocated positions.
pub(crate) struct Directory {
    pub(crate) node: Node,
    attr: Attr,
    /// Encoded extended attributes.
    attributes: Box<[u8]>,
    /// Block of the inode.
    pub(crate) block: u64,
    /// Inode number of the parent directory; the root is its own parent.
    pub(crate) parent: u64,
    /// Positions of the directory's entries; set once it was listed.
    pub(crate) shape: OnceLock<DirectoryLayout>,
}

/// Positions of a directory's names and of the inodes behind them, which belong to entries with a single
/// name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryLayout {
    /// First block: the block of the directory's inode if all names fit behind it.
    first: u64,
    /// Offset of the names from the first block, in bytes.
    pub(crate) names: u64,
    /// Length of the names in bytes.
    pub(crate) bytes: u64,
    /// Offset of the inode table from the first block, in bytes.
    pub(crate) table: u64,
    /// First block after the inode table.
    end: u64,
    /// Number of the first block of the entries' file contents.
    pub(crate) data: u64,
    pub(crate) data_end: u64,
}

impl DirectoryLayout {
    /// Returns the number of the inode at byte `at` of the table.
    pub(crate) const fn in_table(&self, at: usize) -> u64 {
        (self.first * BLOCK + self.table + at as u64) / SLOT
    }

    /// Returns true if these lengths of names and inodes, or this end of contents, differ from those
    /// allocated.
    pub(crate) fn has_changed(&self, bytes: u64, table: usize, data_end: u64) -> bool {
        let end = self.first + (self.table + table as u64).div_ceil(BLOCK);
        (bytes, end, data_end) != (self.bytes, self.end, self.data_end)
    }

    fn holds(&self, block: u64) -> bool {
        (self.first..self.end).contains(&block)
    }
}

impl Directory {
    /// Returns the encoded inode with its extended attributes.
    pub(crate) fn inode(&self, shape: &DirectoryLayout) -> Vec<u8> {
        let content = if self.is_inline(shape) { Content::Inline } else { Content::At(shape.first) };
        let mut bytes = layout::inode(&self.attr, shape.bytes, content, self.attributes.len()).to_vec();
        bytes.extend_from_slice(&self.attributes);
        bytes
    }

    /// Returns the encoded inode, if it is known and no names follow it.
    pub(crate) fn inode_alone(&self) -> Option<Vec<u8>> {
        let shape = self.shape.get().filter(|shape| !self.is_inline(shape))?;
        Some(self.inode(shape))
    }

    /// Returns true if the names directly follow the inode.
    pub(crate) fn is_inline(&self, shape: &DirectoryLayout) -> bool {
        shape.first == self.block
    }
}

/// An entry with several names (hard links) that is not a directory.
pub(crate) struct HardLinked {
    pub(crate) inode: Vec<u8>,
    pub(crate) stored: Option<FileExtent>,
}

/// File or link content in consecutive blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileExtent {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) node: Node,
    pub(crate) size: u64,
}

/// Owner of a region.
#[derive(Clone)]
enum Owner {
    Directory(Arc<Directory>),
    HardLinked(Arc<HardLinked>),
}

/// Meaning of an address.
pub(crate) enum Location {
    /// The block with the superblock.
    Superblock,
    /// A directory's inode and the data after it, from this byte on.
    Inode(Arc<Directory>, u64),
    /// The inode of an entry with several names, from this byte on.
    HardLinked(Arc<HardLinked>, u64),
    /// Names and inodes of a directory, from this byte on.
    DirectoryContent(Arc<Directory>, u64),
    /// The content of a file in a directory.
    FileData(Arc<Directory>),
    /// The content of a file with several names.
    FileExtent(FileExtent),
}

/// Allocator of all positions in an image.
#[derive(Default)]
pub(crate) struct Allocator {
    /// Number of allocated blocks of contents, and the limit.
    used: u64,
    most: u64,
    /// Owners of the small and large regions, by first block.
    small: HashMap<u64, Owner>,
    large: HashMap<u64, Arc<Directory>>,
    /// Small region of each key, by first block.
    blocks: HashMap<NodeKey, u64>,
    /// Owners of contents, by first block.
    data: BTreeMap<u64, Owner>,
    /// Record of all positions for a process that takes over, since the kernel keeps inodes with positions in them. A
    /// record that can't be written makes it invalid, and then no process takes over.
    journal: Option<Arc<Journal>>,
}

/// Kinds of records: a directory, an entry with several names, and the positions of a directory's entries.
const DIRECTORY: u8 = b'd';
const LINKED: u8 = b'l';
const LAYOUT: u8 = b's';

/// Returns the preferred region of a key among `count`, uniformly distributed.
fn place(key: NodeKey, count: u64) -> u64 {
    // Keys are digests, except those of images; the steps are the final mix of MurmurHash3.
    let key = u128::from_le_bytes(key.0);
    let mut hash = (key >> 64) as u64 ^ (key as u64).rotate_left(29);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    (hash ^ hash >> 33) % count
}

impl Allocator {
    /// Creates the allocator for a tree with this root and its encoded extended attributes; returns the
    /// root's inode number, too.
    pub(crate) fn new(root: (Node, Attr), attributes: &[u8]) -> (Self, u64) {
        let mut allocator = Self { most: LARGE - DATA, ..Self::default() };
        let (block, _) = allocator.take(root.0.key);
        allocator.put(block, root, attributes, inode_number(block));
        (allocator, inode_number(block))
    }

    /// Creates the allocator that records all positions, or continues the one of another process that did.
    pub(crate) fn recorded(
        root: (Node, Attr),
        attributes: &[u8],
        journal: Arc<Journal>,
    ) -> std::io::Result<(Self, u64)> {
        let records = journal.records()?;
        let mut allocator = Self { most: LARGE - DATA, ..Self::default() };
        for record in &records {
            allocator.restore(record).ok_or(std::io::ErrorKind::InvalidData)?;
        }
        allocator.journal = Some(journal);
        let (block, is_new) = allocator.take(root.0.key);
        if is_new {
            allocator.put(block, root, attributes, inode_number(block));
        }
        Ok((allocator, inode_number(block)))
    }

    fn restore(&mut self, record: &[u8]) -> Option<()> {
        let (kind, rest) = record.split_first()?;
        let mut from = Reader(rest);
        match *kind {
            DIRECTORY => {
                let (block, parent) = (from.number()?, from.number()?);
                let (node, attr) = (from.node()?, from.attr()?);
                self.blocks.insert(node.key, block);
                self.put(block, (node, attr), from.0, parent);
            }
            LINKED => {
                let (block, node) = (from.number()?, from.node()?);
                let (start, end, size) = (from.number()?, from.number()?, from.number()?);
                let stored = (start < end).then_some(FileExtent { start, end, node, size });
                self.blocks.insert(node.key, block);
                self.put_linked(block, HardLinked { inode: from.0.to_vec(), stored });
            }
            LAYOUT => {
                let block = from.number()?;
                let mut numbers = [0; 7];
                for number in &mut numbers {
                    *number = from.number()?;
                }
                let [first, names, bytes, table, end, data, data_end] = numbers;
                let Owner::Directory(directory) = self.small.get(&block)?.clone() else { return None };
                if (LARGE..SMALL).contains(&first) {
                    self.large.insert(first, Arc::clone(&directory));
                }
                self.set_layout(
                    &directory,
                    DirectoryLayout { first, names, bytes, table, end, data, data_end },
                );
            }
            _ => return None,
        }
        Some(())
    }

    fn note(&self, record: impl FnOnce() -> Vec<u8>) {
        if let Some(journal) = &self.journal {
            let _ = journal.append(&record());
        }
    }

    /// Returns the small region of a key, and true if it is new.
    fn take(&mut self, key: NodeKey) -> (u64, bool) {
        if let Some(block) = self.blocks.get(&key) {
            return (*block, false);
        }
        const COUNT: u64 = (PLACES_END - SMALL) / SMALL_BLOCKS;
        let first = place(key, COUNT);
        let mut places = (0..COUNT).map(|step| SMALL + (first + step) % COUNT * SMALL_BLOCKS);
        // There are more regions than memory can hold entries for.
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
        self.note(|| {
            Writer::new(DIRECTORY).number(block).number(parent).node(&node).attr(&attr).bytes(attributes)
        });
        let shape = OnceLock::new();
        let directory = Directory { node, attr, attributes: attributes.into(), block, parent, shape };
        self.small.insert(block, Owner::Directory(Arc::new(directory)));
    }

    /// Returns the inode number of a directory that is in `parent`.
    pub(crate) fn directory(&mut self, found: (Node, Attr), attributes: &[u8], parent: u64) -> u64 {
        let (block, is_new) = self.take(found.0.key);
        if is_new {
            self.put(block, found, attributes, parent);
        }
        inode_number(block)
    }

    /// Returns the inode number of an entry with several names.
    pub(crate) fn linked(&mut self, (node, attr): (Node, Attr), attributes: &[u8]) -> u64 {
        let (block, is_new) = self.take(node.key);
        if is_new {
            let mut free = self.free();
            let (size, content, stored) = self.place(&node, &attr, &mut free);
            let mut inode = layout::inode(&attr, size, content, attributes.len()).to_vec();
            inode.extend_from_slice(attributes);
            self.note(|| {
                let (start, end, size) =
                    stored.map_or((0, 0, 0), |stored| (stored.start, stored.end, stored.size));
                let record = Writer::new(LINKED).number(block).node(&node);
                record.number(start).number(end).number(size).bytes(&inode)
            });
            self.put_linked(block, HardLinked { inode, stored });
        }
        inode_number(block)
    }

    fn put_linked(&mut self, block: u64, linked: HardLinked) {
        let stored = linked.stored;
        let linked = Owner::HardLinked(Arc::new(linked));
        if let Some(stored) = stored {
            self.used = stored.end - DATA;
            self.data.insert(stored.start, linked.clone());
        }
        self.small.insert(block, linked);
    }

    /// Returns the first unallocated block of contents.
    fn free(&self) -> u64 {
        DATA + self.used
    }

    /// Allocates a content at block `free` and advances it; returns the inode's content field and the extent.
    pub(crate) fn place(
        &self,
        node: &Node,
        attr: &Attr,
        free: &mut u64,
    ) -> (u64, Content, Option<FileExtent>) {
        if !matches!(attr.kind, Kind::File | Kind::Symlink) {
            return (0, Content::Device(attr.rdev), None);
        }
        let (start, blocks) = (*free, attr.size.div_ceil(BLOCK));
        // No path is as long, and the kernel would show only a part of such a target.
        let is_too_long = attr.kind == Kind::Symlink && attr.size >= BLOCK;
        if is_too_long || blocks > (DATA + self.most).saturating_sub(start) {
            return (attr.size, Content::Unreadable, None);
        }
        *free += blocks;
        let stored = FileExtent { start, end: *free, node: *node, size: attr.size };
        (attr.size, Content::At(start), (blocks > 0).then_some(stored))
    }

    /// Allocates positions for a directory that was not listed before, with these lengths of names and inodes
    /// in bytes.
    pub(crate) fn shape(&mut self, directory: &Arc<Directory>, bytes: u64, table: usize) -> DirectoryLayout {
        let behind = (INODE + directory.attributes.len()) as u64;
        // No inode crosses the end of a block.
        let inline_table = (behind + bytes).next_multiple_of(INODE as u64);
        let blocks_to = |table_at: u64| (table_at + table as u64).div_ceil(BLOCK);
        let (data, data_end) = (self.free(), self.free());
        if behind + bytes <= BLOCK && blocks_to(inline_table) <= SMALL_BLOCKS {
            let first = directory.block;
            let end = first + blocks_to(inline_table);
            return DirectoryLayout { first, names: behind, bytes, table: inline_table, end, data, data_end };
        }
        let table_at = bytes.next_multiple_of(BLOCK);
        let first = if INODE_BLOCKS + blocks_to(table_at) <= SMALL_BLOCKS {
            directory.block + INODE_BLOCKS
        } else {
            self.take_large(directory)
        };
        DirectoryLayout {
            first,
            names: 0,
            bytes,
            table: table_at,
            end: first + blocks_to(table_at),
            data,
            data_end,
        }
    }

    /// Sets the positions of a listed directory's entries.
    pub(crate) fn set_layout(&mut self, directory: &Arc<Directory>, shape: DirectoryLayout) {
        self.note(|| {
            let DirectoryLayout { first, names, bytes, table, end, data, data_end } = shape;
            let numbers = [first, names, bytes, table, end, data, data_end];
            let record = Writer::new(LAYOUT).number(directory.block);
            numbers.into_iter().fold(record, Writer::number).bytes(&[])
        });
        self.used = shape.data_end - DATA;
        if shape.data < shape.data_end {
            self.data.insert(shape.data, Owner::Directory(Arc::clone(directory)));
        }
        // The caller has exclusive access to the allocator, so no other thread has set it.
        let _ = directory.shape.set(shape);
    }

    /// Returns the meaning of an allocated block.
    pub(crate) fn find(&self, block: u64) -> Option<Location> {
        match block {
            0 => Some(Location::Superblock),
            DATA..LARGE => match self.data.range(..=block).next_back()?.1 {
                Owner::Directory(directory) => {
                    let is_there = block < directory.shape.get()?.data_end;
                    is_there.then(|| Location::FileData(Arc::clone(directory)))
                }
                Owner::HardLinked(linked) => {
                    linked.stored.filter(|stored| block < stored.end).map(Location::FileExtent)
                }
            },
            LARGE..SMALL => Self::directory_content(self.large.get(&(block - block % LARGE_BLOCKS))?, block),
            SMALL..PLACES_END => {
                let first = block - block % SMALL_BLOCKS;
                let from = (block - first) * BLOCK;
                match self.small.get(&first)? {
                    Owner::HardLinked(linked) => Some(Location::HardLinked(Arc::clone(linked), from)),
                    Owner::Directory(directory) => Self::directory_content(directory, block).or_else(|| {
                        let is_inode = block < first + INODE_BLOCKS;
                        is_inode.then(|| Location::Inode(Arc::clone(directory), from))
                    }),
                }
            }
            _ => None,
        }
    }

    fn directory_content(directory: &Arc<Directory>, block: u64) -> Option<Location> {
        let shape = directory.shape.get().filter(|shape| shape.holds(block))?;
        Some(Location::DirectoryContent(Arc::clone(directory), (block - shape.first) * BLOCK))
    }

    #[cfg(test)]
    pub(crate) fn limit_data_blocks(&mut self, blocks: u64) {
        self.most = self.used + blocks;
    }
}
