//! Implements the tree whose only file is the EROFS image.

use std::sync::Arc;

use esker_journal::Journal;
use esker_vfs::{
    Attr, Cookie, Data, DirEntry, ErrorKind, FIRST_COOKIE, Ino, Kind, Listing, Node, NodeKey, NodeWithAttr,
    PAYLOAD_LEN, Payload, Reply, Segment, StatFs, Tree, TreeError, Watcher,
};
use parking_lot::Mutex;

use crate::allocator::{Allocator, Directory, END, FileExtent, Location};
use crate::directory_cache::DirectoryCache;
use crate::encoded_directory::EncodedDirectory;
use crate::layout::{self, BLOCK};
use crate::list_all::{Attributes, Callback, list_all};

/// Memory for encoded directories and positions of contents, in bytes.
const CACHE_BYTES: usize = 32 << 20;

/// Maximum number of failures remembered until they are reported.
const FAILURES_MAX: usize = 32;

/// A tree with one file, an EROFS image of another tree.
pub struct ErofsTree {
    core: Arc<Core>,
    /// Names on the path to the image.
    path: Vec<Box<[u8]>>,
}

/// Selects the extended attributes of an image.
#[derive(Clone, Copy, Debug)]
pub enum XattrPolicy {
    /// All attributes, unless the tree reports that none exist ([`Tree::xattr`]).
    All,
    /// Selected attributes of the root, and all of other nodes if those may have any.
    Some {
        /// Names of the root's attributes.
        of_root: &'static [&'static str],
        /// True if nodes other than the root may have extended attributes.
        of_others: bool,
    },
}

struct Core {
    tree: Arc<dyn Tree>,
    /// True if any node may have extended attributes.
    may_have_xattrs: bool,
    /// First block of the image.
    first: Vec<u8>,
    allocator: Mutex<Allocator>,
    directories: DirectoryCache,
    /// Recent read failures, each with its node.
    failures: Mutex<Vec<(TreeError, Node)>>,
}

impl ErofsTree {
    /// Creates an image of `tree` at `path`, given as names. Waits until the tree has answered with the
    /// extended attributes of its root.
    pub fn new(tree: Arc<dyn Tree>, path: &[u8], policy: XattrPolicy) -> Result<Self, TreeError> {
        Self::make(tree, path, policy, None)
    }

    /// Creates an image as [`ErofsTree::new`], whose positions are recorded for a process that takes over. A journal with
    /// records is that of the process before, and the image continues it.
    pub fn recorded(
        tree: Arc<dyn Tree>,
        path: &[u8],
        policy: XattrPolicy,
        journal: Arc<Journal>,
    ) -> Result<Self, TreeError> {
        Self::make(tree, path, policy, Some(journal))
    }

    fn make(
        tree: Arc<dyn Tree>,
        path: &[u8],
        policy: XattrPolicy,
        journal: Option<Arc<Journal>>,
    ) -> Result<Self, TreeError> {
        let root = tree.root();
        let of_root = root_xattrs(&*tree, &root.node, policy)?;
        let may_have_xattrs =
            of_root.is_some() && !matches!(policy, XattrPolicy::Some { of_others: false, .. });
        let attributes = of_root.unwrap_or_default();
        let (root, attributes) = ((root.node, root.attr), layout::attributes(&attributes));
        let (allocator, root) = match journal {
            Some(journal) => Allocator::recorded(root, &attributes, journal).map_err(|error| {
                TreeError::on(ErrorKind::Local, "the record of the EROFS image").because(error)
            })?,
            None => Allocator::new(root, &attributes),
        };
        let all = tree.statfs();
        let core = Core {
            tree,
            may_have_xattrs,
            first: layout::first_block(root, all.total_bytes.div_ceil(BLOCK).max(1), all.files),
            allocator: Mutex::new(allocator),
            directories: DirectoryCache::new(CACHE_BYTES),
            failures: Mutex::default(),
        };
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        Ok(Self { core: Arc::new(core), path: parts.map(Box::from).collect() })
    }

    /// Returns the tree that the image presents.
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &Arc<dyn Tree> {
        &self.core.tree
    }

    /// Sets the size of the directory cache to about `bytes` bytes.
    #[cfg(test)]
    pub(crate) fn with_cache_bytes(mut self, bytes: usize) -> Self {
        Arc::get_mut(&mut self.core).expect("the tree is not shared yet").directories =
            DirectoryCache::new(bytes);
        self
    }

    /// Limits the addresses of contents to `blocks` blocks.
    #[cfg(test)]
    pub(crate) fn limit_data_blocks(&self, blocks: u64) {
        self.core.allocator.lock().limit_data_blocks(blocks);
    }

    /// Returns the node at `depth` names of the path.
    fn at(&self, depth: usize) -> NodeWithAttr {
        let is_image = depth == self.path.len();
        let kind = if is_image { Kind::File } else { Kind::Directory };
        let ino = Ino(depth as u64 + 1);
        let node = Node {
            key: NodeKey(u128::from(ino.0).to_le_bytes()),
            ino,
            payload: Payload([0; PAYLOAD_LEN]),
            kind,
        };
        let attr = Attr {
            ino,
            size: if is_image { END * BLOCK } else { 0 },
            mtime: self.core.tree.root().attr.mtime,
            permissions: if is_image { 0o400 } else { 0o500 },
            kind,
            nlink: if is_image { 1 } else { 2 },
            uid: 0,
            gid: 0,
            rdev: esker_vfs::Device::default(),
        };
        NodeWithAttr { node, attr }
    }

    fn depth(node: &Node) -> usize {
        usize::try_from(node.ino.0).unwrap_or(0).saturating_sub(1)
    }
}

/// Returns the extended attributes of the root; none if no node has any.
fn root_xattrs(tree: &dyn Tree, root: &Node, policy: XattrPolicy) -> Result<Option<Attributes>, TreeError> {
    let names = match policy {
        XattrPolicy::Some { of_root, .. } => of_root.iter().map(|name| name.as_bytes().to_vec()).collect(),
        XattrPolicy::All => match Reply::wait(|reply| tree.xattr_names(root, reply)) {
            Err(error) if error.kind == ErrorKind::Unsupported => return Ok(None),
            names => names?,
        },
    };
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        match Reply::wait(|reply| tree.xattr(root, &name, reply)) {
            Err(error) if error.kind == ErrorKind::NoAttribute => {}
            value => found.push((name, value?)),
        }
    }
    found.sort_unstable();
    Ok(Some(found))
}

/// Returns `len` bytes of `whole` from `from` on, with zeros after its end.
fn cut(whole: &[u8], from: u64, len: usize) -> Data {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(whole.len());
    let part = &whole[from..whole.len().min(from.saturating_add(len))];
    let mut data = bytes(part);
    fill_up(&mut data, len);
    data
}

fn bytes(part: &[u8]) -> Data {
    Data(vec![Segment::Bytes { bytes: part.into(), start: 0, len: part.len() }])
}

/// Pads the data of a block with zeros.
fn fill_up(data: &mut Data, len: usize) {
    let missing = len.saturating_sub(data.len());
    if missing > 0 {
        data.0.push(Segment::Zeros(missing));
    }
}

impl Core {
    /// Passes on an encoded directory, from the cache or from the tree.
    fn contents(self: &Arc<Self>, directory: &Arc<Directory>, then: Callback<Arc<EncodedDirectory>>) {
        if let Some(contents) = self.directories.get(directory.block) {
            return then(Ok(contents));
        }
        let (core, of) = (Arc::clone(self), Arc::clone(directory));
        let written = Box::new(move |names: Result<Vec<_>, TreeError>| match names {
            Ok(names) => {
                let Some(contents) = core.allocator.lock().encode(&of, &names).map(Arc::new) else {
                    let error = TreeError::on(ErrorKind::Damaged, "the names of a directory have changed");
                    core.failed(&of.node, &error);
                    return then(Err(error));
                };
                core.directories.put(of.block, Arc::clone(&contents));
                then(Ok(contents));
            }
            Err(error) => {
                core.failed(&of.node, &error);
                then(Err(error));
            }
        });
        list_all(Arc::clone(&self.tree), directory.node, self.may_have_xattrs, written);
    }

    fn failed(&self, node: &Node, error: &TreeError) {
        let mut failures = self.failures.lock();
        if failures.len() == FAILURES_MAX {
            failures.remove(0);
        }
        failures.push((error.clone(), *node));
    }

    /// Reads the block of a directory's inode, which includes the length of its names.
    fn inode(self: &Arc<Self>, directory: &Arc<Directory>, from: u64, len: usize, reply: Reply<Data>) {
        reply.requester().concerns(&directory.node);
        if let Some(inode) = directory.inode_alone() {
            return reply.ok(cut(&inode, from, len));
        }
        let of = Arc::clone(directory);
        let listed = move |contents: Arc<EncodedDirectory>| match of.inode_alone() {
            Some(inode) => cut(&inode, from, len),
            None => cut(&contents.bytes, from, len),
        };
        self.contents(directory, Box::new(move |contents| reply.give(contents.map(listed))));
    }

    fn read(self: &Arc<Self>, offset: u64, len: usize, reply: Reply<Data>) {
        let (block, within) = (offset / BLOCK, offset % BLOCK);
        let place = self.allocator.lock().find(block);
        match place {
            // The kernel has no reference to this block.
            None => reply.err(TreeError::on(ErrorKind::Damaged, format!("block {block} of the EROFS image"))),
            Some(Location::Superblock) => reply.ok(cut(&self.first, within, len)),
            Some(Location::Inode(directory, from)) => self.inode(&directory, from + within, len, reply),
            Some(Location::HardLinked(linked, from)) => reply.ok(cut(&linked.inode, from + within, len)),
            Some(Location::DirectoryContent(directory, from)) => {
                self.directory_content(&directory, from + within, len, reply)
            }
            Some(Location::FileData(directory)) => self.file_data(&directory, offset, len, reply),
            Some(Location::FileExtent(stored)) => self.content(&stored, offset, len, reply),
        }
    }

    /// Reads names and inodes of a directory.
    fn directory_content(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        from: u64,
        len: usize,
        reply: Reply<Data>,
    ) {
        reply.requester().concerns(&directory.node);
        let part = move |contents: Arc<EncodedDirectory>| cut(&contents.bytes, from, len);
        self.contents(directory, Box::new(move |contents| reply.give(contents.map(part))));
    }

    /// Reads the content of a file in a directory.
    fn file_data(self: &Arc<Self>, directory: &Arc<Directory>, offset: u64, len: usize, reply: Reply<Data>) {
        let core = Arc::clone(self);
        self.contents(
            directory,
            Box::new(move |contents| match contents.map(|contents| contents.stored_at(offset / BLOCK)) {
                Ok(Some(stored)) => core.content(&stored, offset, len, reply),
                Ok(None) => reply.err(ErrorKind::Internal),
                Err(error) => reply.err(error),
            }),
        );
    }

    /// Returns the content at an offset of the image, if there is one; `None` if its directory was evicted.
    fn stored_at(&self, offset: u64) -> Option<Option<FileExtent>> {
        let block = offset / BLOCK;
        let place = self.allocator.lock().find(block);
        match place {
            Some(Location::FileExtent(stored)) => Some(Some(stored)),
            Some(Location::FileData(directory)) => {
                self.directories.get(directory.block).map(|contents| contents.stored_at(block))
            }
            _ => Some(None),
        }
    }

    fn content(self: &Arc<Self>, stored: &FileExtent, offset: u64, len: usize, reply: Reply<Data>) {
        let (from, node) = (offset - stored.start * BLOCK, stored.node);
        // The kernel reads one file per request.
        if offset + len as u64 > stored.end * BLOCK {
            return reply.err(ErrorKind::Internal);
        }
        let left = usize::try_from(stored.size.saturating_sub(from)).unwrap_or(len);
        let wanted = len.min(left);
        let core = Arc::clone(self);
        reply.requester().concerns(&node);
        let whole = reply.through(move |data: Result<Data, TreeError>, reply| match data {
            Ok(mut data) if data.len() == wanted => {
                fill_up(&mut data, len);
                reply.ok(data);
            }
            // Missing bytes would be read as zeros.
            Ok(data) => {
                let why = format!("{} bytes were read instead of {wanted}", data.len());
                let error = TreeError::on(ErrorKind::Damaged, "a content").because(why);
                core.failed(&node, &error);
                reply.err(error);
            }
            Err(error) => {
                core.failed(&node, &error);
                reply.err(error);
            }
        });
        if node.kind == Kind::Symlink {
            let (size, from) = (stored.size, usize::try_from(from).unwrap_or(usize::MAX));
            let target = whole.through(move |target: Result<Vec<u8>, TreeError>, whole| {
                let part = target.map(|target| match target.get(from..from.saturating_add(wanted)) {
                    Some(part) if target.len() as u64 == size => bytes(part),
                    _ => Data::default(),
                });
                whole.give(part);
            });
            return self.tree.link_target(&node, target);
        }
        self.tree.read(&node, from, wanted, whole);
    }
}

impl Tree for ErofsTree {
    fn root(&self) -> NodeWithAttr {
        self.at(0)
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        let depth = Self::depth(dir);
        match self.path.get(depth) {
            _ if name == b".." => reply.ok(self.at(depth.saturating_sub(1))),
            Some(known) if **known == *name => reply.ok(self.at(depth + 1)),
            _ => reply.err(ErrorKind::NotFound),
        }
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        reply.ok(self.at(Self::depth(node)).attr);
    }

    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        let depth = Self::depth(dir);
        let Some(name) = self.path.get(depth).filter(|_| after < FIRST_COOKIE) else {
            return reply.ok(Listing { entries: Arc::default(), start: 0, parent: Ino(1) });
        };
        let NodeWithAttr { node, attr } = self.at(depth + 1);
        let entry = DirEntry { name: name.clone(), cookie: FIRST_COOKIE, node, attr };
        reply.ok(Listing { entries: Arc::new([entry]), start: 0, parent: Ino(depth.max(1) as u64) });
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        match node.kind {
            Kind::File => self.core.read(offset, len, reply),
            _ => reply.err(ErrorKind::IsADirectory),
        }
    }

    fn link_target(&self, _: &Node, reply: Reply<Vec<u8>>) {
        reply.err(ErrorKind::Invalid);
    }

    fn xattr(&self, _: &Node, _: &[u8], reply: Reply<Vec<u8>>) {
        reply.err(ErrorKind::Unsupported);
    }

    fn xattr_names(&self, _: &Node, reply: Reply<Vec<Vec<u8>>>) {
        reply.err(ErrorKind::Unsupported);
    }

    fn statfs(&self) -> StatFs {
        self.core.tree.statfs()
    }

    fn hold(&self, _: &Node) {}

    fn release(&self, _: &Node) {}

    fn resumed(&self) {
        self.core.tree.resumed();
    }

    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.core.tree.watch(watcher);
    }

    fn path(&self, node: &Node) -> Option<Vec<u8>> {
        self.core.tree.path(node)
    }

    /// Returns true for file contents, and for addresses of evicted directories.
    fn may_be_mapped(&self, _: &Node, offset: u64) -> bool {
        match self.core.stored_at(offset) {
            Some(stored) => stored.is_some_and(|stored| stored.node.kind == Kind::File),
            None => true,
        }
    }

    fn unreadable(&self, _: &Node, offset: u64, len: usize) {
        if let Some(Some(stored)) = self.core.stored_at(offset) {
            self.core.tree.unreadable(&stored.node, offset.saturating_sub(stored.start * BLOCK), len);
        }
    }

    /// Reports a failed read of the image to the tree, with the node that could not be read.
    fn failed(&self, _: &Node, error: &TreeError, caller: Option<u32>) {
        let same = |one: &TreeError| match (&one.source, &error.source) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => one.kind == error.kind && one.object == error.object,
            _ => false,
        };
        let known = self.core.failures.lock().iter().rev().find(|(one, _)| same(one)).map(|(_, node)| *node);
        let node = known.unwrap_or_else(|| self.core.tree.root().node);
        self.core.tree.failed(&node, error, caller);
    }
}
