//! By which paths nodes are known.

use std::collections::VecDeque;
use std::sync::Arc;

use esker_vfs::{DirEntry, NodeKey};
use foldhash::HashMap;

/// The path of the root; of all others it is followed by their names.
pub(crate) const ROOT: &[u8] = b"/";
/// Most nodes whose paths are remembered. Those beyond are learned when they are looked up again.
const KNOWN_MAX: usize = 1 << 16;
/// Most names of listings that are remembered: whoever lists a directory uses few of its names, and most of those soon.
const LISTED_MAX: usize = 1 << 15;

/// A directory's path and names.
type Listed = (Arc<[u8]>, Arc<[DirEntry]>);

/// Which listing a node was given out with last, counted from the first ever, and where in it.
type StepLocation = (u64, usize);

/// The paths by which nodes were given out lately.
pub(crate) struct NodePaths {
    root: NodeKey,
    known: HashMap<NodeKey, Arc<[u8]>>,
    listings: VecDeque<Listed>,
    /// How many listings there were before those.
    forgotten: u64,
    locations: HashMap<NodeKey, StepLocation>,
    /// Names of all listings, those of nodes included that were given out again.
    listed: usize,
}

impl NodePaths {
    /// Knows the root.
    pub(crate) fn new(root: NodeKey) -> Self {
        let mut paths = Self {
            root,
            known: HashMap::default(),
            listings: VecDeque::new(),
            forgotten: 0,
            locations: HashMap::default(),
            listed: 0,
        };
        paths.note(root, ROOT.into());
        paths
    }

    /// A node was given out by this path.
    pub(crate) fn note(&mut self, key: NodeKey, path: Arc<[u8]>) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
            self.known.insert(self.root, ROOT.into());
        }
        self.known.insert(key, path);
    }

    /// The names of a directory were given out.
    pub(crate) fn listed(&mut self, dir: Arc<[u8]>, entries: Arc<[DirEntry]>) {
        // The kernel asks until there is nothing more, and a tree answers with the same as long as it is part of the answer.
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

    /// The path by which a node was given out.
    pub(crate) fn of(&mut self, key: NodeKey) -> Option<Arc<[u8]>> {
        if let Some(path) = self.known.get(&key) {
            return Some(Arc::clone(path));
        }
        let (number, at) = *self.locations.get(&key)?;
        let (dir, entries) = self.listings.get(usize::try_from(number.checked_sub(self.forgotten)?).ok()?)?;
        let path = join(dir, &entries.get(at)?.name);
        self.note(key, Arc::clone(&path));
        Some(path)
    }
}

/// The path of a name in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Arc<[u8]> {
    let between: &[u8] = if dir == ROOT { b"" } else { b"/" };
    [dir, between, name].concat().into()
}

/// The directory and the name of a path; the root has neither.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/').filter(|_| path != ROOT)?;
    Some((if at == 0 { ROOT } else { &path[..at] }, &path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use esker_vfs::memory::{Entry, MemoryTree};
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
    fn nodes_are_known_by_the_path_they_were_given_out_by() {
        let tree = MemoryTree::new();
        tree.put("a", Entry::directory());
        tree.put("a/b", Entry::file(b"x"));
        let root = tree.root().node;
        let mut paths = NodePaths::new(root.key);
        let a = Reply::wait(|reply| tree.lookup(&root, b"a", reply)).expect("it is there").node;
        assert_eq!(paths.of(a.key), None);
        paths.note(a.key, join(ROOT, b"a"));
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
        // It was given out with all of them, and the other one with a listing that is forgotten.
        assert_eq!(paths.locations.len(), 1);
        assert_eq!(paths.locations.get(&a.key).map(|location| location.1), Some(0));
        for number in 0..KNOWN_MAX as u128 {
            paths.note(NodeKey(number.to_le_bytes()), ROOT.into());
        }
        assert_eq!(paths.of(root.key).as_deref(), Some(ROOT), "the root is known for ever");
        assert!(paths.known.len() <= KNOWN_MAX);
    }
}
