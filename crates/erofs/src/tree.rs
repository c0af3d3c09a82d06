//! The tree with the image in it.

use std::sync::Arc;

use esker_vfs::{
    Attr, Cookie, Data, DirEntry, ErrorKind, FIRST_COOKIE, Found, Ino, Kind, Listing, Node, NodeKey,
    PAYLOAD_LEN, Payload, Reply, Segment, StatFs, Tree, TreeError, Watcher,
};
use parking_lot::Mutex;

use crate::contents::Contents;
use crate::gather::{Attributes, Then, gather};
use crate::kept::Kept;
use crate::layout::{self, BLOCK};
use crate::space::{Directory, END, Place, Space, Stored};

/// Memory for what is read again: names, inodes, and which content is where.
const KEPT: usize = 32 << 20;

/// So many failures are remembered until they are told.
const FAILURES_MAX: usize = 32;

/// A tree with one file in it: an EROFS image of another tree.
pub struct ErofsTree {
    core: Arc<Core>,
    /// The names on the way to the image.
    path: Vec<Box<[u8]>>,
}

/// Which extended attributes an image has.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// All that the tree names, unless it says that there are none in it ([`Tree::xattr`]).
    All,
    /// These of the root, and all of everything else only if there may be any.
    Some {
        /// Names.
        of_root: &'static [&'static str],
        /// Whether anything else has any.
        of_others: bool,
    },
}

struct Core {
    tree: Arc<dyn Tree>,
    /// Whether anything in it may have extended attributes.
    attributed: bool,
    /// The first block.
    first: Vec<u8>,
    space: Mutex<Space>,
    kept: Kept,
    /// What reading which node failed with, of late.
    failures: Mutex<Vec<(TreeError, Node)>>,
}

impl ErofsTree {
    /// An image of `tree` at `path`, whose parts are names. Waits until the tree has told the extended attributes of its
    /// root.
    pub fn new(tree: Arc<dyn Tree>, path: &[u8], told: Told) -> Result<Self, TreeError> {
        let root = tree.root();
        let of_root = of_root(&*tree, &root.node, told)?;
        let attributed = of_root.is_some() && !matches!(told, Told::Some { of_others: false, .. });
        let attributes = of_root.unwrap_or_default();
        let (space, root) = Space::new((root.node, root.attr), &layout::attributes(&attributes));
        let all = tree.statfs();
        let core = Core {
            tree,
            attributed,
            first: layout::first_block(root, all.total_bytes.div_ceil(BLOCK).max(1), all.files),
            space: Mutex::new(space),
            kept: Kept::new(KEPT),
            failures: Mutex::default(),
        };
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        Ok(Self { core: Arc::new(core), path: parts.map(Box::from).collect() })
    }

    /// The tree that it is an image of.
    #[cfg(test)]
    pub(crate) fn tree(&self) -> &Arc<dyn Tree> {
        &self.core.tree
    }

    /// Keeps about so many bytes of what may be read again.
    #[cfg(test)]
    pub(crate) fn keeping(mut self, bytes: usize) -> Self {
        Arc::get_mut(&mut self.core).expect("nobody else's").kept = Kept::new(bytes);
        self
    }

    /// Has addresses for so many blocks of contents.
    #[cfg(test)]
    pub(crate) fn end_after(&self, blocks: u64) {
        self.core.space.lock().end_after(blocks);
    }

    /// The node that so many names lead to.
    fn at(&self, depth: usize) -> Found {
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
        Found { node, attr }
    }

    fn depth(node: &Node) -> usize {
        usize::try_from(node.ino.0).unwrap_or(0).saturating_sub(1)
    }
}

/// The extended attributes of the root, or that nothing has any.
fn of_root(tree: &dyn Tree, root: &Node, told: Told) -> Result<Option<Attributes>, TreeError> {
    let names = match told {
        Told::Some { of_root, .. } => of_root.iter().map(|name| name.as_bytes().to_vec()).collect(),
        Told::All => match Reply::wait(|reply| tree.xattr_names(root, reply)) {
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

/// `len` bytes of `whole` from `from` on, and zeros where it has ended.
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

/// The rest of a block is zeros.
fn fill_up(data: &mut Data, len: usize) {
    let missing = len.saturating_sub(data.len());
    if missing > 0 {
        data.0.push(Segment::Zeros(missing));
    }
}

impl Core {
    /// What a directory holds, from memory or from the tree.
    fn contents(self: &Arc<Self>, directory: &Arc<Directory>, then: Then<Arc<Contents>>) {
        if let Some(contents) = self.kept.get(directory.block) {
            return then(Ok(contents));
        }
        let (core, of) = (Arc::clone(self), Arc::clone(directory));
        let written = Box::new(move |names: Result<Vec<_>, TreeError>| match names {
            Ok(names) => {
                let Some(contents) = core.space.lock().write_down(&of, &names).map(Arc::new) else {
                    let error =
                        TreeError::on(ErrorKind::Damaged, "the names of a directory, which have changed");
                    core.failed(&of.node, &error);
                    return then(Err(error));
                };
                core.kept.put(of.block, Arc::clone(&contents));
                then(Ok(contents));
            }
            Err(error) => {
                core.failed(&of.node, &error);
                then(Err(error));
            }
        });
        gather(Arc::clone(&self.tree), directory.node, self.attributed, written);
    }

    fn failed(&self, node: &Node, error: &TreeError) {
        let mut failures = self.failures.lock();
        if failures.len() == FAILURES_MAX {
            failures.remove(0);
        }
        failures.push((error.clone(), *node));
    }

    /// What lies where the inode of a directory does, which tells how many names are in it.
    fn inode(self: &Arc<Self>, directory: &Arc<Directory>, from: u64, len: usize, reply: Reply<Data>) {
        if let Some(inode) = directory.inode_alone() {
            return reply.ok(cut(&inode, from, len));
        }
        let of = Arc::clone(directory);
        let listed = move |contents: Arc<Contents>| match of.inode_alone() {
            Some(inode) => cut(&inode, from, len),
            None => cut(&contents.bytes, from, len),
        };
        self.contents(directory, Box::new(move |contents| reply.give(contents.map(listed))));
    }

    fn read(self: &Arc<Self>, offset: u64, len: usize, reply: Reply<Data>) {
        let (block, within) = (offset / BLOCK, offset % BLOCK);
        let place = self.space.lock().find(block);
        match place {
            // The kernel was told of nothing there.
            None => reply.err(TreeError::on(ErrorKind::Damaged, format!("block {block} of the EROFS image"))),
            Some(Place::First) => reply.ok(cut(&self.first, within, len)),
            Some(Place::Inode(directory, from)) => self.inode(&directory, from + within, len, reply),
            Some(Place::Linked(linked, from)) => reply.ok(cut(&linked.inode, from + within, len)),
            Some(Place::Held(directory, from)) => self.held(&directory, from + within, len, reply),
            Some(Place::Within(directory)) => self.within(&directory, offset, len, reply),
            Some(Place::Stored(stored)) => self.content(&stored, offset, len, reply),
        }
    }

    /// What a directory holds.
    fn held(self: &Arc<Self>, directory: &Arc<Directory>, from: u64, len: usize, reply: Reply<Data>) {
        let part = move |contents: Arc<Contents>| cut(&contents.bytes, from, len);
        self.contents(directory, Box::new(move |contents| reply.give(contents.map(part))));
    }

    /// A content of something in a directory.
    fn within(self: &Arc<Self>, directory: &Arc<Directory>, offset: u64, len: usize, reply: Reply<Data>) {
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

    /// The content at a place of the image, if it is one; `None` if that is no longer known.
    fn stored_at(&self, offset: u64) -> Option<Option<Stored>> {
        let block = offset / BLOCK;
        let place = self.space.lock().find(block);
        match place {
            Some(Place::Stored(stored)) => Some(Some(stored)),
            Some(Place::Within(directory)) => {
                self.kept.get(directory.block).map(|contents| contents.stored_at(block))
            }
            _ => Some(None),
        }
    }

    fn content(self: &Arc<Self>, stored: &Stored, offset: u64, len: usize, reply: Reply<Data>) {
        let (from, node) = (offset - stored.start * BLOCK, stored.node);
        // The kernel reads one file at a time.
        if offset + len as u64 > stored.end * BLOCK {
            return reply.err(ErrorKind::Internal);
        }
        let left = usize::try_from(stored.size.saturating_sub(from)).unwrap_or(len);
        let wanted = len.min(left);
        let core = Arc::clone(self);
        let requester = reply.requester().clone();
        let whole = Reply::new(move |data: Result<Data, TreeError>| match data {
            Ok(mut data) if data.len() == wanted => {
                fill_up(&mut data, len);
                reply.ok(data);
            }
            // What is missing would be read as zeros.
            Ok(data) => {
                let why = format!("{} bytes came in place of {wanted}", data.len());
                let error = TreeError::on(ErrorKind::Damaged, "a content").because(why);
                core.failed(&node, &error);
                reply.err(error);
            }
            Err(error) => {
                core.failed(&node, &error);
                reply.err(error);
            }
        })
        .for_requester(requester);
        if node.kind == Kind::Symlink {
            let (size, from) = (stored.size, usize::try_from(from).unwrap_or(usize::MAX));
            let requester = whole.requester().clone();
            let target = Reply::new(move |target: Result<Vec<u8>, TreeError>| {
                let part = target.map(|target| match target.get(from..from.saturating_add(wanted)) {
                    Some(part) if target.len() as u64 == size => bytes(part),
                    _ => Data::default(),
                });
                whole.give(part);
            });
            return self.tree.link_target(&node, target.for_requester(requester));
        }
        self.tree.read(&node, from, wanted, whole);
    }
}

impl Tree for ErofsTree {
    fn root(&self) -> Found {
        self.at(0)
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<Found>) {
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
        let Found { node, attr } = self.at(depth + 1);
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

    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.core.tree.watch(watcher);
    }

    /// Contents of files may be, and what is no longer known to be none.
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

    /// Told of the image, it tells the tree of what could not be read.
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
