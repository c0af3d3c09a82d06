//! Where in the image everything lies. Nothing has a place before somebody comes by it, and it keeps the one it gets.
//!
//! Names and inodes of a directory lie together below [`DATA`], contents above it. Addresses cost nothing, so none is used
//! again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use esker_vfs::{Attr, Node, NodeKey};
use foldhash::HashMap;

use crate::contents::Contents;
use crate::layout::{self, BLOCK, Content, SLOT};

/// The block of the root's inode.
pub(crate) const ROOT: u64 = 1;
/// The first block of metadata that is given away.
const METADATA: u64 = ROOT + INODE_BLOCKS;
/// The first block of contents.
const DATA: u64 = 1 << 40;
/// The first that can't be addressed.
pub(crate) const END: u64 = 1 << 48;
/// A directory's inode begins a block, and has this many for its extended attributes.
const INODE_BLOCKS: u64 = 65;

/// The number of the inode at the beginning of a block.
pub(crate) const fn inode_number(block: u64) -> u64 {
    block * (BLOCK / SLOT)
}

/// A directory that somebody has come by.
pub(crate) struct Directory {
    pub(crate) node: Node,
    pub(crate) attr: Attr,
    /// As they follow the inode.
    pub(crate) attributes: Box<[u8]>,
    /// Where its inode is.
    pub(crate) block: u64,
    /// Number of the inode of the directory that it is in; its own, if it is the root.
    pub(crate) parent: u64,
    /// Known once it was listed.
    pub(crate) shape: OnceLock<Shape>,
}

/// Where what a directory holds lies, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) dirents: u64,
    /// Length of the above.
    pub(crate) bytes: u64,
    /// Inodes of whatever is in it but directories.
    pub(crate) table: u64,
    /// The inode of the first directory in it.
    pub(crate) directories: u64,
    /// The first block behind the inodes.
    pub(crate) end: u64,
    pub(crate) data: u64,
    pub(crate) data_end: u64,
}

impl Directory {
    pub(crate) fn new(node: Node, attr: Attr, attributes: &[u8], block: u64, parent: u64) -> Self {
        Self { node, attr, attributes: attributes.into(), block, parent, shape: OnceLock::new() }
    }

    /// The blocks of its inode, if it was listed.
    pub(crate) fn inode(&self) -> Option<Vec<u8>> {
        let shape = self.shape.get()?;
        let content = Content::At(shape.dirents);
        let mut bytes = layout::inode(&self.attr, shape.bytes, content, self.attributes.len()).to_vec();
        bytes.extend_from_slice(&self.attributes);
        Some(bytes)
    }
}

impl Shape {
    /// Where things will be of a directory that nobody has come by, with so many bytes of names and of inodes, and so
    /// many directories in it.
    pub(crate) fn next(space: &Space, bytes: u64, table: u64, directories: u64) -> Self {
        let dirents = space.next;
        let table_at = dirents + bytes.div_ceil(BLOCK);
        let directories_at = table_at + table.div_ceil(BLOCK);
        let end = directories_at + directories * INODE_BLOCKS;
        let data = space.next_data;
        Self { dirents, bytes, table: table_at, directories: directories_at, end, data, data_end: data }
    }

    /// The block of the inode of a directory in it.
    pub(crate) fn child(&self, number: usize) -> u64 {
        self.directories + number as u64 * INODE_BLOCKS
    }

    /// The number of the inode that begins at a byte of the table.
    pub(crate) fn in_table(&self, at: usize) -> u64 {
        (self.table * BLOCK + at as u64) / SLOT
    }

    /// Whether an inode of this number is in the table.
    pub(crate) fn has(&self, inode: u64) -> bool {
        (inode_number(self.table)..inode_number(self.directories)).contains(&inode)
    }
}

/// What lies at an address.
pub(crate) enum Place {
    /// What the whole says of itself.
    First,
    /// The inode of a directory, from this byte on.
    Inode(Arc<Directory>, u64),
    /// The inode of a directory in a directory: which of them, and from which byte on.
    ChildInode(Arc<Directory>, usize, u64),
    /// A directory's names, from this byte on.
    Dirents(Arc<Directory>, u64),
    /// Inodes of what is in a directory, from this byte on.
    Table(Arc<Directory>, u64),
    /// The content of something in a directory.
    Data(Arc<Directory>),
}

/// Who is where.
pub(crate) struct Space {
    next: u64,
    next_data: u64,
    /// Contents may be put up to here; [`END`] but for tests.
    pub(crate) end: u64,
    /// Directories by the block of their inode.
    directories: HashMap<u64, Arc<Directory>>,
    /// Those that were listed, by their first block of names, and of contents.
    metadata: BTreeMap<u64, Arc<Directory>>,
    data: BTreeMap<u64, Arc<Directory>>,
    /// Inodes that have several names: their numbers.
    pub(crate) links: HashMap<NodeKey, u64>,
}

impl Space {
    pub(crate) fn new(root: Directory, end: u64) -> Self {
        Self {
            next: METADATA,
            next_data: DATA,
            end,
            directories: HashMap::from_iter([(root.block, Arc::new(root))]),
            metadata: BTreeMap::new(),
            data: BTreeMap::new(),
            links: HashMap::default(),
        }
    }

    /// What lies at a block that somebody was told of.
    pub(crate) fn find(&self, block: u64) -> Option<Place> {
        if block == 0 {
            return Some(Place::First);
        }
        if block < METADATA {
            let root = self.directories.get(&ROOT)?;
            return Some(Place::Inode(Arc::clone(root), (block - ROOT) * BLOCK));
        }
        let all = if block < DATA { &self.metadata } else { &self.data };
        let (_, directory) = all.range(..=block).next_back()?;
        let directory = Arc::clone(directory);
        let shape = *directory.shape.get()?;
        if block >= DATA {
            return (block < shape.data_end).then_some(Place::Data(directory));
        }
        let from = |start: u64| (block - start) * BLOCK;
        if block < shape.table {
            return Some(Place::Dirents(directory, from(shape.dirents)));
        }
        if block < shape.directories {
            return Some(Place::Table(directory, from(shape.table)));
        }
        if block >= shape.end {
            return None;
        }
        let number = (block - shape.directories) / INODE_BLOCKS;
        let at = shape.directories + number * INODE_BLOCKS;
        Some(match self.directories.get(&at) {
            Some(known) => Place::Inode(Arc::clone(known), from(at)),
            None => Place::ChildInode(directory, usize::try_from(number).ok()?, from(at)),
        })
    }

    /// The record of a directory in `parent`, made if this is the first time that somebody asks for it.
    pub(crate) fn enter(
        &mut self,
        parent: &Directory,
        contents: &Contents,
        number: usize,
    ) -> Option<Arc<Directory>> {
        let block = parent.shape.get()?.child(number);
        let (node, attr, attributes) = contents.directories.get(number)?;
        let new = || Arc::new(Directory::new(*node, *attr, attributes, block, inode_number(parent.block)));
        Some(Arc::clone(self.directories.entry(block).or_insert_with(new)))
    }

    /// Gives a directory that was listed its place for good.
    pub(crate) fn settle(&mut self, directory: &Arc<Directory>, shape: Shape) {
        self.next = shape.end;
        self.next_data = shape.data_end;
        self.metadata.insert(shape.dirents, Arc::clone(directory));
        if shape.data < shape.data_end {
            self.data.insert(shape.data, Arc::clone(directory));
        }
        // Whoever is here first holds the space alone, so nobody else has set it.
        let _ = directory.shape.set(shape);
    }
}
