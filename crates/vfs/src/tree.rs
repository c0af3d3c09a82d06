//! The trait of mountable trees.

use std::sync::Arc;

use crate::{Attr, Cookie, Data, Listing, Node, NodeKey, Reply, StatFs, TreeError};

/// A node with its attributes, as returned by a lookup.
#[derive(Clone, Copy, Debug)]
pub struct NodeWithAttr {
    /// Node of the entry.
    pub node: Node,
    /// Attributes of the node.
    pub attr: Attr,
}

/// A read-only tree that can be mounted.
///
/// No call may block on the network or on another call: an unknown result is delivered later through the
/// reply. Calls come from many threads at once.
///
/// The mount tells the tree which nodes are in use: [`Tree::hold`] before a node first goes to the kernel,
/// [`Tree::release`] once the kernel has forgotten it. Between the two the tree must be able to read the node
/// from its payload, whatever revision it has moved to.
pub trait Tree: Send + Sync + 'static {
    /// Returns the root directory.
    fn root(&self) -> NodeWithAttr;

    /// Looks up `name` in `dir`; `..`, which only NFS servers look up, is the parent.
    ///
    /// A mount may cache [`crate::ErrorKind::NotFound`] until [`Change::Name`] reports a change.
    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>);

    /// Returns the current attributes of a node.
    ///
    /// [`crate::ErrorKind::Stale`] if the tree has moved on and no longer contains the node; the mount then
    /// answers with the last known attributes.
    fn attributes(&self, node: &Node, reply: Reply<Attr>);

    /// Lists the names of `dir` after `after` (`Cookie(0)` for all).
    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>);

    /// Reads up to `len` bytes of a regular file from `offset`; fewer only at its end.
    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>);

    /// Returns the target of a symbolic link.
    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>);

    /// Returns the value of an extended attribute.
    ///
    /// Answered from memory wherever possible, because these calls reach the tree even when everything is
    /// cached. [`crate::ErrorKind::Unsupported`] means that no node of the tree has or will have one, so the
    /// mount need not ask again.
    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>);

    /// Returns the names of the extended attributes. [`crate::ErrorKind::Unsupported`] as in [`Tree::xattr`].
    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>);

    /// Returns the size of the tree; never blocks.
    fn statfs(&self) -> StatFs;

    /// Marks `node` as known to the kernel.
    ///
    /// For one key, holds and releases alternate. They are called under a lock of the mount, so they must be
    /// quick and must not call the mount.
    fn hold(&self, node: &Node);

    /// Marks `node` as forgotten by the kernel.
    fn release(&self, node: &Node);

    /// Registers a watcher of changes to earlier replies. A tree that never changes ignores it.
    fn watch(&self, watcher: Arc<dyn Watcher>);

    /// Records that a mount continues after its process ended. The kernel still has names and attributes, and has
    /// referenced every node that it knows again.
    fn resumed(&self) {}

    /// Returns true if a read of a file from `offset` may be for a memory-mapped page: a page fault can't
    /// return an error.
    ///
    /// False for names, attributes and link targets, however the kernel reads them.
    fn may_be_mapped(&self, node: &Node, offset: u64) -> bool {
        let _ = (node, offset);
        true
    }

    /// Returns the path of a node below the root, for messages and traces; the root's is empty. Never blocks; `None`
    /// if the tree doesn't know it.
    fn path(&self, node: &Node) -> Option<Vec<u8>> {
        let _ = node;
        None
    }

    /// Reports that bytes of a read reply could not be read from their local file, before the mount repeats
    /// the read: the tree should get them from elsewhere, if it can.
    fn unreadable(&self, node: &Node, offset: u64, len: usize) {
        let _ = (node, offset, len);
    }

    /// Reports a failure that the mount is about to return to a program, for display in `esker status`.
    ///
    /// Called for every failure worth logging ([`TreeError::is_news`]), and when a page fault, which can't
    /// return an error, begins to wait. `caller` is the process id of the requester, if it is known.
    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        let _ = (node, error, caller);
    }
}

/// A change that invalidates an earlier reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry `name` of `dir` was added, removed or replaced.
    Name {
        /// Key of the directory.
        dir: NodeKey,
        /// Name of the entry.
        name: Box<[u8]>,
    },
    /// The set of names in the directory changed.
    Listing {
        /// Key of the directory.
        dir: NodeKey,
    },
    /// The attributes (not the content) of the node changed.
    Attributes {
        /// Key of the node.
        node: NodeKey,
    },
    /// Too many changes to list: everything may have changed.
    Everything,
}

/// Receiver of changes: the mount.
pub trait Watcher: Send + Sync {
    /// Makes the kernel drop invalid entries; returns once the kernel has.
    ///
    /// Called from a thread of the tree that holds no lock, because the kernel may wait for calls in
    /// progress.
    fn changed(&self, changes: &[Change]);
}
