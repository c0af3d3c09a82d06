//! The trait.

use std::sync::Arc;

use crate::{Attr, Cookie, Data, Listing, Node, NodeKey, Reply, StatFs, TreeError};

/// A node together with its attributes, as a lookup finds them.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The node.
    pub node: Node,
    /// Its attributes.
    pub attr: Attr,
}

/// A read-only tree that can be mounted.
///
/// No call may block on the network or on another call: what isn't known is answered later through the
/// reply. Calls come from many threads at once.
///
/// The mount tells the tree which nodes somebody may still use: [`Tree::hold`] before a node first leaves
/// for the kernel, [`Tree::release`] once the kernel has forgotten it. Between the two the tree must be
/// able to read the node from its payload, whatever revision it has moved to.
pub trait Tree: Send + Sync + 'static {
    /// The directory everything starts from.
    fn root(&self) -> Found;

    /// Finds `name` in `dir`; `..`, which only servers of file handles ask for, is the parent.
    /// [`crate::ErrorKind::NotFound`] is an answer that a mount may cache until
    /// [`Change::Name`] says otherwise.
    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<Found>);

    /// The present attributes of a node. [`crate::ErrorKind::Stale`] if the tree has moved on and the node
    /// is no longer in it; the mount then answers from what it was told last.
    fn attributes(&self, node: &Node, reply: Reply<Attr>);

    /// The names of `dir` after `after` (`Cookie(0)` for all).
    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>);

    /// Up to `len` bytes of a regular file from `offset`; fewer only at its end.
    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>);

    /// The target of a symbolic link.
    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>);

    /// The value of an extended attribute. Answered from memory wherever possible: these calls reach the
    /// tree even when everything is cached. [`crate::ErrorKind::Unsupported`] says that no node of the tree has
    /// or will ever have one: the mount need not ask again.
    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>);

    /// The names of the extended attributes. [`crate::ErrorKind::Unsupported`] as of [`Tree::xattr`].
    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>);

    /// Sizes of the whole; never waits.
    fn statfs(&self) -> StatFs;

    /// The kernel may use `node` from now on. For one key, holds and releases alternate; they are called under
    /// a lock of the mount, so they must be quick and must not call it.
    fn hold(&self, node: &Node);

    /// The kernel has forgotten `node`.
    fn release(&self, node: &Node);

    /// Whom to tell when what was answered is no longer true. A tree that never changes ignores it.
    fn watch(&self, watcher: Arc<dyn Watcher>);

    /// Whether what is read of a file from `offset` on may be for a page that a program has mapped, which can't be told that
    /// reading it failed. Never so where it is for names, attributes or link targets, however the kernel reads them.
    fn may_be_mapped(&self, node: &Node, offset: u64) -> bool {
        let _ = (node, offset);
        true
    }

    /// Called when bytes that the tree answered a read with could not be read from their file, before the same is asked
    /// again: the tree gets them from elsewhere, if it can.
    fn unreadable(&self, node: &Node, offset: u64, len: usize) {
        let _ = (node, offset, len);
    }

    /// Called for every failure that is news ([`TreeError::is_news`]) and that the mount is about to report to a
    /// program, so that the tree can show it (`esker status`); also when a page fault, which can't be told,
    /// begins to wait. `caller` is the process that asked, if it is known.
    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        let _ = (node, error, caller);
    }
}

/// Something that was answered earlier and is no longer true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `name` in `dir` now names another node, or none, or appeared.
    Name {
        /// The directory's key.
        dir: NodeKey,
        /// The name.
        name: Box<[u8]>,
    },
    /// The set of names in the directory changed.
    Listing {
        /// The directory's key.
        dir: NodeKey,
    },
    /// The attributes (not the content) of the node changed.
    Attributes {
        /// The node's key.
        node: NodeKey,
    },
    /// Too much to list: everything may have changed.
    Everything,
}

/// Who is told of changes: the mount.
pub trait Watcher: Send + Sync {
    /// Makes the kernel forget what is no longer true; returns when it was told. Called from a thread of
    /// the tree that holds no lock, because the kernel may make it wait for calls that are under way.
    fn changed(&self, changes: &[Change]);
}
