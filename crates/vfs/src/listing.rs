//! Reply of a directory listing.

use std::sync::Arc;

use crate::{Attr, ErrorKind, Ino, Node, Reply, Tree, TreeError};

/// Position in a directory's stable order of names.
///
/// It is derived from the name alone. So a listing that continues after the tree moved to another revision
/// returns every unchanged name exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

/// Smallest cookie of a tree; smaller ones belong to the mount (start, `.` and `..`).
pub const FIRST_COOKIE: Cookie = Cookie(16);

/// Largest cookie of a tree: a directory offset is a non-negative `i64`.
pub const LAST_COOKIE: Cookie = Cookie(i64::MAX as u64 - 1);

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Name as bytes, which need not be UTF-8.
    pub name: Box<[u8]>,
    /// Position in the order of names.
    pub cookie: Cookie,
    /// Node that the name refers to.
    pub node: Node,
    /// Attributes of the node.
    pub attr: Attr,
}

/// Names of a directory from a cookie on. Listings of the same directory share them.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Names of the directory in strictly ascending order of cookies, without `.` and `..`.
    ///
    /// A tree may return a large directory in parts: the listing is complete when a call from the last name
    /// returns no more names.
    pub entries: Arc<[DirEntry]>,
    /// Index in `entries` of the first name after the requested cookie.
    pub start: usize,
    /// Inode number of the parent directory, for `..`.
    pub parent: Ino,
}

/// Returns all entries of a directory in the order of their cookies, and waits for each part.
pub fn whole_listing(tree: &dyn Tree, dir: &Node) -> Result<Vec<DirEntry>, TreeError> {
    let mut whole: Vec<DirEntry> = Vec::new();
    let mut after = Cookie(0);
    loop {
        let listing = Reply::wait(|reply| tree.list(dir, after, reply))?;
        let part = listing.entries.get(listing.start..).unwrap_or_default();
        let Some(last) = part.last() else { return Ok(whole) };
        // A tree that returns the same names again must not cause an endless loop.
        if last.cookie <= after {
            return Err(TreeError::on(ErrorKind::Damaged, "the order of a directory's names"));
        }
        after = last.cookie;
        whole.extend_from_slice(part);
    }
}
