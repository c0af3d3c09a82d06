//! Builds the inode table and the directory table.

use std::collections::HashMap;

use super::encoder::Encoder;
use super::entry::{Device, Kind};
use super::metadata::Metadata;
use super::pipeline::Located;
use super::tree::{Node, NodeId, NodeKind, ROOT, Tree};
use super::{WriteError, listing};
use crate::layout::{
    Body, DIRECTORY_EXTRA, DirectoryBody, FileBody, InodeHeader, InodeType, MetaRef, NO_FRAGMENT, NO_XATTRS,
    encode_device,
};

/// The stored tables.
pub(super) struct Tables {
    pub(super) inodes: Vec<u8>,
    pub(super) directories: Vec<u8>,
    pub(super) root: MetaRef,
    /// Position of each inode, by inode number from 1.
    pub(super) places: Vec<MetaRef>,
    pub(super) ids: Vec<u32>,
    /// Latest modification time of all entries.
    pub(super) newest: u32,
}

/// A directory and its parent.
type Directory = (NodeId, Option<NodeId>);

/// Fields of an inode that a directory entry needs.
#[derive(Clone, Copy)]
pub(super) struct InodeRef {
    pub(super) place: MetaRef,
    pub(super) number: u32,
    pub(super) kind: InodeType,
}

struct Builder<'b> {
    tree: &'b Tree,
    /// Returns the location of a file's content, by the file's index.
    located: &'b dyn Fn(usize) -> Located,
    encoder: &'b mut Encoder,
    inodes: Metadata,
    directories: Metadata,
    /// Inode number of each node; 0 if it has none.
    numbers: Vec<u32>,
    /// Inode of each node, once written.
    written: Vec<Option<InodeRef>>,
    ids: Vec<u32>,
    id_places: HashMap<u32, u16>,
    newest: u32,
}

/// Builds the tables of a tree.
pub(super) fn build(
    tree: &Tree,
    located: &dyn Fn(usize) -> Located,
    encoder: &mut Encoder,
) -> Result<Tables, WriteError> {
    let mut builder = Builder {
        tree,
        located,
        encoder,
        inodes: Metadata::default(),
        directories: Metadata::default(),
        numbers: vec![0; tree.nodes.len()],
        written: vec![None; tree.nodes.len()],
        ids: Vec::new(),
        id_places: HashMap::new(),
        newest: 0,
    };
    let (directories, count) = builder.number()?;
    // A directory names inodes by position, so its entries are written first.
    for (id, parent) in directories.iter().rev() {
        builder.directory(*id, *parent, count)?;
    }
    builder.finish(count)
}

impl<'b> Builder<'b> {
    fn node(&self, id: NodeId) -> &'b Node {
        self.tree.nodes.get(id).expect("a node because its directory has it")
    }

    fn number_of(&self, id: NodeId) -> u32 {
        self.numbers.get(id).copied().unwrap_or(0)
    }

    /// Numbers all nodes, those of one directory consecutively.
    ///
    /// Returns the directories with their parents, each before its subdirectories, and the number of inodes.
    fn number(&mut self) -> Result<(Vec<Directory>, u32), WriteError> {
        let mut directories = vec![];
        let mut waiting = vec![(ROOT, None)];
        let mut count = 1;
        if let Some(root) = self.numbers.first_mut() {
            *root = count;
        }
        while let Some((id, parent)) = waiting.pop() {
            directories.push((id, parent));
            let NodeKind::Directory(children) = &self.node(id).kind else { continue };
            let children: Vec<NodeId> = children.values().copied().collect();
            for child in &children {
                if let Some(number) = self.numbers.get_mut(*child).filter(|number| **number == 0) {
                    count = u32::checked_add(count, 1)
                        .filter(|count| *count < u32::MAX)
                        .ok_or(WriteError::TooMany("inodes"))?;
                    *number = count;
                }
            }
            let below = children.into_iter().rev().filter(|child| self.node(*child).is_directory());
            waiting.extend(below.map(|child| (child, Some(id))));
        }
        Ok((directories, count))
    }

    fn directory(&mut self, id: NodeId, parent: Option<NodeId>, count: u32) -> Result<(), WriteError> {
        let NodeKind::Directory(children) = &self.node(id).kind else { return Ok(()) };
        let mut entries = Vec::with_capacity(children.len());
        let mut nlink = 2;
        for (name, child) in children {
            if self.node(*child).is_directory() {
                nlink += 1;
            } else if self.written.get(*child).is_some_and(Option::is_none) {
                self.leaf(*child)?;
            }
            let known = self.written.get(*child).copied().flatten();
            entries.push((&**name, known.expect("entries of a directory are written before it")));
        }
        let names = listing::encode(&entries)?;
        let start = self.directories.place();
        let at = self.directories.len();
        self.directories.append(&names.bytes, self.encoder)?;
        let size = u32::try_from(names.bytes.len()).ok().and_then(|len| len.checked_add(DIRECTORY_EXTRA));
        let node = self.node(id);
        let xattrs = node.xattrs.unwrap_or(NO_XATTRS);
        let body = DirectoryBody {
            block: u32::try_from(start.block()).map_err(|_| WriteError::TooMany("names"))?,
            offset: start.offset(),
            size: size.ok_or(WriteError::TooMany("names in one directory"))?,
            nlink,
            // The root's parent is a number that no inode has.
            parent: parent.map_or(count + 1, |parent| self.number_of(parent)),
            xattrs,
            indexes: u16::try_from(names.marks.len()).map_err(|_| WriteError::TooMany("names"))?,
        };
        let is_basic = names.marks.is_empty() && xattrs == NO_XATTRS && body.size <= u32::from(u16::MAX);
        let kind = if is_basic { InodeType::Directory } else { InodeType::ExtendedDirectory };
        let index = names.encode_index(|position| self.directories.block_of(at + u64::from(position)))?;
        self.inode(id, kind, &Body::Directory(body), &index)
    }

    /// Writes the inode of a node that is not a directory.
    fn leaf(&mut self, id: NodeId) -> Result<(), WriteError> {
        let node = self.node(id);
        let (nlink, xattrs) = (node.names, node.xattrs.unwrap_or(NO_XATTRS));
        let form = |basic: InodeType| if xattrs == NO_XATTRS { basic } else { basic.extended() };
        let device = |device: Device| encode_device(device.major, device.minor);
        match &node.kind {
            NodeKind::Directory(_) => Ok(()),
            NodeKind::File(file) => {
                let located = (self.located)(*file);
                let is_basic = nlink == 1
                    && xattrs == NO_XATTRS
                    && located.sparse == 0
                    && located.start <= u64::from(u32::MAX)
                    && located.size <= u64::from(u32::MAX);
                let kind = if is_basic { InodeType::File } else { InodeType::ExtendedFile };
                let (fragment, fragment_offset) = located.tail.unwrap_or((NO_FRAGMENT, 0));
                let (start, size, sparse) = (located.start, located.size, located.sparse);
                let body = FileBody { start, size, sparse, nlink, fragment, fragment_offset, xattrs };
                let words: Vec<u8> = located.words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.inode(id, kind, &Body::File(body), &words)
            }
            NodeKind::Other(Kind::Symlink(target)) => {
                let target_len = u32::try_from(target.len()).expect("targets are bounded");
                let mut rest = target.clone();
                if xattrs != NO_XATTRS {
                    rest.extend_from_slice(&xattrs.to_le_bytes());
                }
                self.inode(id, form(InodeType::Symlink), &Body::Symlink { nlink, target_len }, &rest)
            }
            NodeKind::Other(Kind::BlockDevice(number)) => {
                let body = Body::Device { nlink, device: device(*number), xattrs };
                self.inode(id, form(InodeType::BlockDevice), &body, &[])
            }
            NodeKind::Other(Kind::CharDevice(number)) => {
                let body = Body::Device { nlink, device: device(*number), xattrs };
                self.inode(id, form(InodeType::CharDevice), &body, &[])
            }
            NodeKind::Other(kind @ (Kind::Fifo | Kind::Socket | Kind::Directory)) => {
                let basic = if *kind == Kind::Socket { InodeType::Socket } else { InodeType::Fifo };
                self.inode(id, form(basic), &Body::Pipe { nlink, xattrs }, &[])
            }
        }
    }

    fn inode(&mut self, id: NodeId, kind: InodeType, body: &Body, rest: &[u8]) -> Result<(), WriteError> {
        let node = self.node(id);
        let (uid, gid, permissions, mtime) = (node.uid, node.gid, node.permissions, node.mtime);
        let header = InodeHeader {
            kind,
            permissions,
            uid: self.id_place(uid)?,
            gid: self.id_place(gid)?,
            mtime,
            number: self.number_of(id),
        };
        self.newest = self.newest.max(mtime);
        let mut bytes = Vec::with_capacity(64 + rest.len());
        header.encode(&mut bytes);
        body.encode(kind, &mut bytes);
        bytes.extend_from_slice(rest);
        let known = InodeRef { place: self.inodes.place(), number: header.number, kind };
        self.inodes.append(&bytes, self.encoder)?;
        if let Some(slot) = self.written.get_mut(id) {
            *slot = Some(known);
        }
        Ok(())
    }

    fn id_place(&mut self, id: u32) -> Result<u16, WriteError> {
        if let Some(place) = self.id_places.get(&id) {
            return Ok(*place);
        }
        let place = u16::try_from(self.ids.len()).ok().filter(|place| *place < u16::MAX);
        let place = place.ok_or(WriteError::TooMany("owners and groups"))?;
        self.ids.push(id);
        self.id_places.insert(id, place);
        Ok(place)
    }

    fn finish(self, count: u32) -> Result<Tables, WriteError> {
        let mut places = vec![MetaRef(0); count as usize];
        for known in self.written.iter().flatten() {
            if let Some(place) = places.get_mut((known.number - 1) as usize) {
                *place = known.place;
            }
        }
        let root = self.written.get(ROOT).copied().flatten();
        Ok(Tables {
            inodes: self.inodes.finish(self.encoder)?,
            directories: self.directories.finish(self.encoder)?,
            root: root.expect("the root is a directory and written last").place,
            places,
            ids: self.ids,
            newest: self.newest,
        })
    }
}
