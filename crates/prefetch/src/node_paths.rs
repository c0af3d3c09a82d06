//! Maps nodes to the paths by which they were looked up or listed.

use std::collections::VecDeque;
use std::sync::Arc;

use esker_vfs::{DirEntry, NodeKey};
use foldhash::HashMap;

/// Path of the root; all other paths are this and names.
pub(crate) const ROOT: &[u8] = b"/";
/// Maximum number of nodes with a recorded path. Others are recorded when they are looked up again.
const KNOWN_MAX: usize = 1 << 16;
/// Maximum number of names in recorded listings: a program uses few names of a directory, and most of those soon.
const LISTED_MAX: usize = 1 << 15;

/// Path of a directory and its names.
type Listed = (Arc<[u8]>, Arc<[DirEntry]>);

/// Position of a node: number of the listing that returned it last, counted from the first ever, and index in it.
type StepLocation = (u64, usize);

/// Records the paths of nodes that were returned lately.
pub(crate) struct NodePaths {
    root: NodeKey,
    known: HashMap<NodeKey, Arc<[u8]>>,
    listings: VecDeque<Listed>,
    /// Number of listings dropped before those.
    forgotten: u64,
    locations: HashMap<NodeKey, StepLocation>,
    /// Number of names in all listings, including nodes that were listed again.
    listed: usize,
}

impl NodePaths {
    /// Returns a map with only the root.
    pub(crate) fn new(root: NodeKey) -> Self {
        let mut paths = Self {
            root,
            known: HashMap::default(),
            listings: VecDeque::new(),
            forgotten: 0,
            locations: HashMap::default(),
            listed: 0,
        };
        paths.record(root, ROOT.into());
        paths
    }

    /// Records a lookup of a node by this path.
    pub(crate) fn record(&mut self, key: NodeKey, path: Arc<[u8]>) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
            self.known.insert(self.root, ROOT.into());
        }
        self.known.insert(key, path);
    }

    /// Records a listing of a directory.
    pub(crate) fn listed(&mut self, dir: Arc<[u8]>, entries: Arc<[DirEntry]>) {
        // The kernel lists until there is nothing more, and a tree returns the same entries as long as they are part
        // of the answer.
        let is_known = self.listings.back().is_some_and(|(_, last)| Arc::ptr_eq(last, &entries));
        if is_known || entries.len() > LISTED_MAX {
            return;
        }
        let number = self.forgotten + self.listings.len() as u64;
        self.locations.extend(entries.iter().enumerate().map(|(at, entry)| (entry.node.key, (number, at))));
        self.listed += entries.len();
        self.listings.push_back((dir, entries));
        while self.listed > LISTED_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, entries)) = self.listings.pop_front() else { return };
        for entry in entries.iter() {
            if self.locations.get(&entry.node.key).is_some_and(|(number, _)| *number == self.forgotten) {
                self.locations.remove(&entry.node.key);
            }
        }
        self.forgotten += 1;
        self.listed -= entries.len();
    }

    /// Returns the path by which a node was returned.
    pub(crate) fn of(&mut self, key: NodeKey) -> Option<Arc<[u8]>> {
        if let Some(path) = self.known.get(&key) {
            return Some(Arc::clone(path));
        }
        let (number, at) = *self.locations.get(&key)?;
        let (dir, entries) = self.listings.get(usize::try_from(number.checked_sub(self.forgotten)?).ok()?)?;
        let path = join(dir, &entries.get(at)?.name);
        self.record(key, Arc::clone(&path));
        Some(path)
    }
}

/// Returns the path of a name in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Arc<[u8]> {
    let between: &[u8] = if dir == ROOT { b"" } else { b"/" };
    [dir, between, name].concat().into()
}

/// Returns the directory and the name of a path; `None` for the root.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/').filter(|_| path != ROOT)?;
    Some((if at == 0 { ROOT } else { &path[..at] }, &path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use esker_testkit::memory_tree::{Entry, MemoryTree};
    use esker_vfs::{Cookie, Reply, Tree};

    use super::*;

    #[test]
    fn a_path_is_its_directory_and_its_name() {
        for (dir, name) in [(ROOT, &b"a"[..]), (b"/a", b"b"), (b"/a/b", b"c")] {
            assert_eq!(split(&join(dir, name)), Some((dir, name)));
        }
        assert_eq!((split(ROOT), split(b"")), (None, None));
    }

    #[test]
    fn nodes_have_the_path_by_which_they_were_returned() {
        let tree = MemoryTree::new();
        tree.put("a", Entry::directory());
        tree.put("a/b", Entry::file(b"x"));
        let root = tree.root().node;
        let mut paths = NodePaths::new(root.key);
        let a = Reply::wait(|reply| tree.lookup(&root, b"a", reply)).expect("it is there").node;
        assert_eq!(paths.of(a.key), None);
        paths.record(a.key, join(ROOT, b"a"));
        let listing = Reply::wait(|reply| tree.list(&a, Cookie(0), reply)).expect("a directory");
        let b = listing.entries[0].node;
        assert_eq!(paths.of(b.key), None);
        let dir = paths.of(a.key).expect("it was noted");
        paths.listed(dir, listing.entries);
        assert_eq!(paths.of(b.key).as_deref(), Some(&b"/a/b"[..]));
        let entries = Reply::wait(|reply| tree.list(&root, Cookie(0), reply)).expect("a directory").entries;
        for _ in 0..3 * LISTED_MAX {
            paths.listed(ROOT.into(), Arc::clone(&entries));
            paths.listed(ROOT.into(), entries.to_vec().into());
        }
        assert_eq!((paths.listed, paths.listings.len()), (LISTED_MAX, LISTED_MAX), "each has one name");
        // The node was listed with all of them; the other one was in a listing that was dropped.
        assert_eq!(paths.locations.len(), 1);
        assert_eq!(paths.locations.get(&a.key).map(|location| location.1), Some(0));
        for number in 0..KNOWN_MAX as u128 {
            paths.record(NodeKey(number.to_le_bytes()), ROOT.into());
        }
        assert_eq!(paths.of(root.key).as_deref(), Some(ROOT), "the root is known for ever");
        assert!(paths.known.len() <= KNOWN_MAX);
    }
}
