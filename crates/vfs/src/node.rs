//! Nodes: the identity of a file or directory between lookup and forget.

use crate::Kind;

/// Inode number of a node (`st_ino`).
///
/// It is derived from path and content, so it is the same after a restart. Two nodes may in principle share
/// one, so [`NodeKey`] is the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Ino(pub u64);

/// Identity of a node within one tree and across its revisions: a digest of the path (or hardlink group) and,
/// except for directories, of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct NodeKey(pub [u8; 16]);

/// Length of a [`Payload`] in bytes.
pub const PAYLOAD_LEN: usize = 96;

/// State that the tree needs to serve a node until it is forgotten, whatever revision the tree has moved to.
/// Opaque to mounts.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Payload(pub [u8; PAYLOAD_LEN]);

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Payload(..)")
    }
}

/// A file or directory that a tree has returned. Plain bytes without pointers: a mount keeps it in shared
/// memory that a restarted process can take over.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Node {
    /// Identity of the node.
    pub key: NodeKey,
    /// `st_ino`.
    pub ino: Ino,
    /// Private state of the tree.
    pub payload: Payload,
    /// Type of the node.
    pub kind: Kind,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Node {}
