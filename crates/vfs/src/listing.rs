//! The answer to a directory listing.

use std::sync::Arc;

use crate::{Attr, ErrorKind, Ino, Node, Reply, Tree, TreeError};

/// A place in a directory's stable name order. Derived from the name alone, so that a listing that goes
/// on after the tree moved to another revision returns every unchanged name exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

/// The smallest cookie a tree may use; those below are the mount's own (start, `.` and `..`).
pub const FIRST_COOKIE: Cookie = Cookie(16);

/// The largest cookie a tree may use: a directory offset is a non-negative `i64`.
pub const LAST_COOKIE: Cookie = Cookie(i64::MAX as u64 - 1);

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The name; bytes, not text.
    pub name: Box<[u8]>,
    /// Its place in the order.
    pub cookie: Cookie,
    /// What it names.
    pub node: Node,
    /// The node's attributes.
    pub attr: Attr,
}

/// A directory's names from some cookie on. Shares them with other listings of it.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Names of the directory, by strictly ascending cookie; `.` and `..` are not among them. A tree may return a large
    /// directory in parts: there are more names after the last until a listing from there has none.
    pub entries: Arc<[DirEntry]>,
    /// Index in `entries` of the first one after the cookie that was asked for.
    pub start: usize,
    /// The number of the parent directory, for `..`.
    pub parent: Ino,
}

/// All entries of a directory, in the order of their cookies, of a tree that may return them in parts. Waits for each
/// part.
pub fn whole_listing(tree: &dyn Tree, dir: &Node) -> Result<Vec<DirEntry>, TreeError> {
    let mut whole: Vec<DirEntry> = Vec::new();
    let mut after = Cookie(0);
    loop {
        let listing = Reply::wait(|reply| tree.list(dir, after, reply))?;
        let part = listing.entries.get(listing.start..).unwrap_or_default();
        let Some(last) = part.last() else { return Ok(whole) };
        // A tree that goes in circles must not be followed.
        if last.cookie <= after {
            return Err(TreeError::on(ErrorKind::Damaged, "the order of a directory's names"));
        }
        after = last.cookie;
        whole.extend_from_slice(part);
    }
}
