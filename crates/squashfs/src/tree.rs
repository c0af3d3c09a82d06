//! An image as a [`Tree`].

use std::sync::Arc;

use esker_threads::waits::{self, WaitClock};
use esker_vfs::{
    Attr, Cookie, Data, ErrorKind, Ino, Kind, Listing, Node, NodeKey, NodeWithAttr, PAYLOAD_LEN, Payload,
    Reply, Segment, StatFs, Tree, TreeError, Watcher,
};
use parking_lot::Mutex;

use crate::blocks::Block;
use crate::fault::Fault;
use crate::image::Image;
use crate::layout::{Body, CodecId, DirectoryBody, MetaRef, NO_TABLE, NO_XATTRS, Superblock};
use crate::reader::{Access, Core, Inode, Piece, ReadResult, tree_error, waits_of};
use crate::{OpenError, Options, Status};

/// An image opened as a tree. Its content never changes.
pub struct ImageTree {
    core: Arc<Core>,
    root: NodeWithAttr,
    failures: Mutex<Vec<(std::time::SystemTime, String, Option<u32>)>>,
}

/// Maximum number of failures kept for [`Status`].
const FAILURES_MAX: usize = 32;

impl ImageTree {
    /// Opens an image. Everything that needs no complete read is validated now, the rest when it is read.
    pub fn open(image: Arc<dyn Image>, options: &Options) -> Result<Self, OpenError> {
        let core = Core::open(image, options)?;
        let root = core.blocking().root().map_err(|error| {
            let error = tree_error(error);
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            OpenError::Root(cause)
        })?;
        Ok(Self { core: Arc::new(core), root, failures: Mutex::default() })
    }

    /// Returns the superblock of the image.
    pub fn superblock(&self) -> &Superblock {
        &self.core.superblock
    }

    /// Returns an identifier made from the superblock: creation time, length and positions of all tables.
    ///
    /// Different images hardly ever share one, but it gives no security: any user can make two images with the
    /// same fingerprint.
    pub fn fingerprint(&self) -> String {
        blake3::hash(&self.core.superblock.encode()).to_hex()[..32].to_owned()
    }

    /// Returns the codec of the image.
    pub fn codec(&self) -> CodecId {
        self.core.superblock.codec
    }

    /// Returns the counters of the open image.
    pub fn status(&self) -> Status {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = &self.core.blocks.counters;
        Status {
            image: self.core.name.to_string(),
            blocks: counters.decompressed.load(Relaxed),
            stored_bytes: counters.read_bytes.load(Relaxed),
            ahead: counters.ahead.load(Relaxed),
            kept_bytes: self.core.kept() as u64,
            failures: self.failures.lock().clone(),
        }
    }

    fn inode<'a>(access: Access<'a>, node: &Node) -> ReadResult<Inode<'a>> {
        access.inode(NodePayload::of(node).place)
    }
}

/// Pieces of a read's reply, and pieces to prefetch because of it.
struct Plan {
    pieces: Vec<Piece>,
    /// Pieces that a sequential reader needs next.
    ahead: Vec<Piece>,
    /// The piece stored directly after those of this read, which is likely to be read next.
    next: Option<Piece>,
}

/// Data that the tree stores in a node's payload.
#[derive(Clone, Copy)]
struct NodePayload {
    place: MetaRef,
    xattrs: u32,
}

impl NodePayload {
    fn of(node: &Node) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = node.payload.0;
        Self {
            place: MetaRef(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            xattrs: u32::from_le_bytes([i, j, k, l]),
        }
    }
}

/// Returns the node of an inode.
pub(crate) fn node(inode: &Inode<'_>, attr: &Attr, xattrs: u32) -> Node {
    let mut payload = [0; PAYLOAD_LEN];
    let notes = inode.place.0.to_le_bytes().into_iter().chain(xattrs.to_le_bytes());
    payload.iter_mut().zip(notes).for_each(|(to, from)| *to = from);
    // Inodes may have equal numbers but never equal positions. Hash tables use all bits of a key.
    let spread = inode.place.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    let key = u128::from(inode.place.0) << 64 | u128::from(spread);
    Node { key: NodeKey(key.to_le_bytes()), ino: attr.ino, payload: Payload(payload), kind: attr.kind }
}

impl Access<'_> {
    fn found(self, inode: &Inode<'_>) -> ReadResult<NodeWithAttr> {
        let attr = self.attr(inode)?;
        Ok(NodeWithAttr { node: node(inode, &attr, self.xattr_set(inode)?), attr })
    }

    fn root(self) -> ReadResult<NodeWithAttr> {
        let place = self.core.superblock.root;
        let root = self.found(&self.inode(place)?)?;
        if root.attr.kind != Kind::Directory {
            return Err(self.core.fault(self.at(place), "the root is no directory").into());
        }
        Ok(root)
    }

    fn lookup(self, dir: &Node, name: &[u8]) -> ReadResult<NodeWithAttr> {
        let inode = ImageTree::inode(self, dir)?;
        let Body::Directory(body) = inode.body else { return Err(ErrorKind::NotADirectory.into()) };
        if name == b".." {
            return self.parent(&inode, &body);
        }
        match self.find(&inode, &body, name)? {
            Some(inode) => self.found(&inode),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn parent(self, inode: &Inode<'_>, dir: &DirectoryBody) -> ReadResult<NodeWithAttr> {
        if inode.place == self.core.superblock.root {
            return self.root();
        }
        let root = self.root()?;
        if root.attr.ino == Ino(dir.parent.into()) {
            return Ok(root);
        }
        // Without an export table, the inode of a number can't be found.
        let place = self.exported(dir.parent)?.ok_or(ErrorKind::Stale)?;
        let found = self.found(&self.inode(place)?)?;
        match found.attr.kind {
            Kind::Directory => Ok(found),
            _ => Err(self.core.fault(self.at(place), "a parent is no directory").into()),
        }
    }

    fn list(self, dir: &Node, after: Cookie) -> ReadResult<Listing> {
        let inode = ImageTree::inode(self, dir)?;
        let Body::Directory(body) = inode.body else { return Err(ErrorKind::NotADirectory.into()) };
        let (entries, start) = self.window(&inode, &body, after)?;
        let is_root = inode.place == self.core.superblock.root;
        let parent = if is_root { inode.header.number } else { body.parent };
        Ok(Listing { entries, start, parent: Ino(parent.into()) })
    }

    /// Returns the pieces of a read, and the pieces to prefetch because of it.
    fn read(self, node: &Node, offset: u64, len: u64) -> ReadResult<Plan> {
        let inode = ImageTree::inode(self, node)?;
        let file = match inode.body {
            Body::File(file) => file,
            Body::Directory(_) => return Err(ErrorKind::IsADirectory.into()),
            _ => return Err(ErrorKind::Invalid.into()),
        };
        let pieces = self.pieces(&inode, &file, offset, len)?;
        let state = self.file_state(&inode, &file);
        let ahead = state.note_read(&file, offset, len);
        // A prefetch whose metadata is not cached is left to the next read.
        let ahead = ahead.and_then(|(from, len)| self.pieces(&inode, &file, from, len).ok());
        let next = if ahead.is_none() {
            self.following_piece(&inode, &file, offset, len).ok().flatten()
        } else {
            None
        };
        Ok(Plan { pieces, ahead: ahead.unwrap_or_default(), next })
    }
}

impl Tree for ImageTree {
    fn root(&self) -> NodeWithAttr {
        self.root
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        let (dir, name) = (*dir, name.to_vec());
        self.core.serve(reply, move |access| access.lookup(&dir, &name));
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        let node = *node;
        self.core.serve(reply, move |access| access.attr(&Self::inode(access, &node)?));
    }

    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        let dir = *dir;
        self.core.serve(reply, move |access| access.list(&dir, after));
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        let core = Arc::clone(&self.core);
        let node = *node;
        let plan = reply.through(move |plan: Result<Plan, TreeError>, reply| match plan {
            Ok(Plan { pieces, ahead, next }) => {
                reply_with_pieces(&core, &pieces, reply);
                if let Some(Piece::Block { extent, .. }) = next {
                    core.blocks.guess(extent);
                }
                for piece in ahead {
                    if let Piece::Block { extent, .. } = piece
                        && !core.blocks.ahead(extent)
                    {
                        break;
                    }
                }
            }
            Err(error) => reply.err(error),
        });
        self.core.serve(plan, move |access| access.read(&node, offset, len as u64));
    }

    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>) {
        let node = *node;
        self.core.serve(reply, move |access| {
            access.target(&Self::inode(access, &node)?)?.ok_or_else(|| ErrorKind::Invalid.into())
        });
    }

    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>) {
        if self.core.superblock.xattr_table == NO_TABLE {
            return reply.err(ErrorKind::Unsupported);
        }
        let set = NodePayload::of(node).xattrs;
        if set == NO_XATTRS {
            return reply.err(ErrorKind::NoAttribute);
        }
        let name = name.to_vec();
        self.core.serve(reply, move |access| {
            access.xattr(set, &name)?.ok_or_else(|| ErrorKind::NoAttribute.into())
        });
    }

    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>) {
        if self.core.superblock.xattr_table == NO_TABLE {
            return reply.err(ErrorKind::Unsupported);
        }
        let set = NodePayload::of(node).xattrs;
        if set == NO_XATTRS {
            return reply.ok(Vec::new());
        }
        self.core.serve(reply, move |access| access.xattr_names(set));
    }

    fn statfs(&self) -> StatFs {
        let superblock = &self.core.superblock;
        let (total_bytes, files) = (superblock.bytes_used, superblock.inodes.into());
        StatFs { total_bytes, free_bytes: 0, files, free_files: 0 }
    }

    fn hold(&self, _: &Node) {}

    fn release(&self, _: &Node) {}

    fn watch(&self, _: Arc<dyn Watcher>) {}

    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let text = format!("inode {}: {cause}", node.ino.0);
        let mut failures = self.failures.lock();
        if failures.len() == FAILURES_MAX {
            failures.remove(0);
        }
        failures.push((std::time::SystemTime::now(), text, caller));
    }
}

/// A read that waits for its blocks.
struct PendingRead {
    waits: Arc<WaitClock>,
    state: Mutex<ReadState>,
}

struct ReadState {
    pieces: Vec<Option<Segment>>,
    missing: usize,
    reply: Option<Reply<Data>>,
}

/// Replies with the pieces once the blocks they need are loaded.
fn reply_with_pieces(core: &Arc<Core>, pieces: &[Piece], reply: Reply<Data>) {
    let mut found = Vec::with_capacity(pieces.len());
    let mut wanted = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        found.push(match piece {
            Piece::Hole(len) => Some(Segment::Zeros(*len)),
            Piece::Block { extent, from, len } => match core.blocks.wanted(extent) {
                Some(block) => match segment(core, extent.start, block, *from, *len) {
                    Ok(segment) => Some(segment),
                    Err(fault) => return reply.err(fault),
                },
                None => {
                    wanted.push((number, *extent, *from, *len));
                    None
                }
            },
        });
    }
    if wanted.is_empty() {
        return reply.ok(Data(found.into_iter().flatten().collect()));
    }
    core.follow(reply.requester());
    let waits = waits_of(reply.requester());
    let state = Mutex::new(ReadState { pieces: found, missing: wanted.len(), reply: Some(reply) });
    let pending = Arc::new(PendingRead { waits, state });
    for (number, extent, from, len) in wanted {
        let (pending, name) = (Arc::clone(&pending), Arc::clone(core));
        core.blocks.get(
            extent,
            Box::new(move |block| {
                let arrived = block.and_then(|block| segment(&name, extent.start, block, from, len));
                pending.arrived(number, arrived);
            }),
        );
    }
}

fn segment(core: &Core, start: u64, block: Block, from: usize, len: usize) -> Result<Segment, Fault> {
    if from.checked_add(len).is_none_or(|end| end > block.len()) {
        return Err(core.fault(start, format!("a block of {} bytes ends too early", block.len())));
    }
    Ok(Segment::Bytes { bytes: block, start: from, len })
}

impl PendingRead {
    fn arrived(&self, number: usize, arrived: Result<Segment, Fault>) {
        self.waits.add(waits::of_this_job());
        let mut state = self.state.lock();
        let answer = match arrived {
            Ok(segment) => {
                if let Some(piece) = state.pieces.get_mut(number) {
                    *piece = Some(segment);
                }
                state.missing -= 1;
                if state.missing > 0 {
                    return;
                }
                Ok(Data(std::mem::take(&mut state.pieces).into_iter().flatten().collect()))
            }
            Err(fault) => Err(fault.into()),
        };
        let reply = state.reply.take();
        drop(state);
        if let Some(reply) = reply {
            reply.give(answer);
        }
    }
}
