//! Encodes the names of a directory for replies.
//!
//! Offsets are the tree's cookies; below its first one are the mount's own: 0 the beginning, 1 after `.`,
//! 2 after `..`.

use esker_vfs::{DirEntry, Ino, Kind, Listing};

use crate::abi::{Dirent, EntryOut, NAME_MAX};
use crate::nodes::NodeId;
use crate::sys::bytes_of;
use crate::wire;

const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// Counts a lookup of an entry's node for READDIRPLUS.
pub(crate) type Give<'a> = &'a dyn Fn(&DirEntry) -> Option<(NodeId, EntryOut)>;

/// Returns whether a program can use the name. An unusable one would make the kernel fail the whole listing.
pub(crate) fn usable(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.contains(&b'/')
}

/// A reply to READDIR or READDIRPLUS under construction.
pub(crate) struct DirentBuffer<'a> {
    out: &'a mut Vec<u8>,
    size: usize,
    /// Nodes whose lookups the reply counts; the counts are undone if the reply is not delivered.
    pub(crate) given: Vec<NodeId>,
}

impl<'a> DirentBuffer<'a> {
    /// Writes to `out`, at most `size` bytes.
    pub(crate) fn new(out: &'a mut Vec<u8>, size: usize) -> Self {
        out.clear();
        Self { out, size, given: Vec::new() }
    }

    /// Adds `.` and `..`, unless `offset` has passed them.
    pub(crate) fn dots(&mut self, offset: u64, own: Ino, parent: Ino, plus: bool) {
        if offset < AFTER_DOT {
            self.push(b".", own, AFTER_DOT, Kind::Directory, plus.then(EntryOut::default));
        }
        if offset < AFTER_DOTS {
            self.push(b"..", parent, AFTER_DOTS, Kind::Directory, plus.then(EntryOut::default));
        }
    }

    /// Adds the names of the listing that fit. With `plus` each name comes with its node.
    pub(crate) fn entries(&mut self, listing: &Listing, give: Option<Give<'_>>) {
        for entry in listing.entries.get(listing.start..).unwrap_or_default() {
            if !usable(&entry.name) {
                continue;
            }
            if !self.fits(entry.name.len(), give.is_some()) {
                return;
            }
            // Without room for another node the name goes alone, and a lookup will say so.
            let plus = give
                .map(|give| give(entry).map(|(id, out)| (self.given.push(id), out).1).unwrap_or_default());
            self.push(&entry.name, entry.node.ino, entry.cookie.0, entry.node.kind, plus);
        }
    }

    fn fits(&self, name: usize, plus: bool) -> bool {
        let fixed = size_of::<Dirent>() + if plus { size_of::<EntryOut>() } else { 0 };
        self.out.len() + (fixed + name).next_multiple_of(8) <= self.size
    }

    fn push(&mut self, name: &[u8], ino: Ino, off: u64, kind: Kind, plus: Option<EntryOut>) {
        if !self.fits(name.len(), plus.is_some()) {
            return;
        }
        if let Some(entry) = plus {
            self.out.extend_from_slice(bytes_of(&entry));
        }
        let dirent = Dirent { ino: ino.0, off, namelen: name.len() as u32, kind: wire::dirent_kind(kind) };
        self.out.extend_from_slice(bytes_of(&dirent));
        self.out.extend_from_slice(name);
        self.out.resize(self.out.len().next_multiple_of(8), 0);
    }
}
