//! Nodes: what a tree hands out for a file or directory, and asks for when it is used.

use crate::Kind;

/// A node's number as programs see it (`st_ino`). Derived from path and content, so it is the same after
/// a restart; two nodes may in principle share one, which is why identity is a [`NodeKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Ino(pub u64);

/// What makes a node this node and no other, within one tree and across its revisions: a digest of the
/// path (or hardlink group) and, for all but directories, the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct NodeKey(pub [u8; 16]);

/// Length of a [`Payload`] in bytes.
pub const PAYLOAD_LEN: usize = 96;

/// What the tree needs to serve a node until it is forgotten, whatever revision the tree has moved to by
/// then. Only the tree that made it looks inside.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Payload(pub [u8; PAYLOAD_LEN]);

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Payload(..)")
    }
}

/// A file or directory that a tree has handed out. Plain bytes without pointers: a mount keeps it in
/// shared memory that a restarted process can take over.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Node {
    /// Identity.
    pub key: NodeKey,
    /// `st_ino`.
    pub ino: Ino,
    /// The tree's own notes.
    pub payload: Payload,
    /// The type.
    pub kind: Kind,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Node {}
