//! A model of the entries that a kernel caches, until they are invalidated.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use esker_vfs::{Attr, Change, ErrorKind, Kind, Node, NodeKey, NodeWithAttr, Reply, Tree, Watcher};
use esker_view::View;
use parking_lot::Mutex;

/// Names (absent ones too), attributes and listings, as a mount with endless timeouts would have them.
#[derive(Default)]
pub(crate) struct Kernel {
    memory: Mutex<Memory>,
    view: Mutex<Weak<View>>,
    /// Changes that were reported.
    reported: Mutex<Vec<Vec<Change>>>,
}

/// Names of a directory in their order, and their nodes.
type Names = Vec<(Box<[u8]>, NodeKey)>;

#[derive(Default)]
struct Memory {
    names: HashMap<(NodeKey, Box<[u8]>), Option<Node>>,
    attrs: HashMap<NodeKey, Attr>,
    listings: HashMap<NodeKey, Names>,
}

impl Kernel {
    pub(crate) fn on(view: &Arc<View>) -> Arc<Self> {
        let kernel = Arc::new(Self::default());
        *kernel.view.lock() = Arc::downgrade(view);
        kernel.remember_root(view);
        view.watch(kernel.clone());
        kernel
    }

    /// Goes on with another view, as a mount whose process was replaced.
    pub(crate) fn goes_on(self: &Arc<Self>, view: &Arc<View>) {
        *self.view.lock() = Arc::downgrade(view);
        view.watch(self.clone());
    }

    fn remember_root(&self, view: &View) {
        let root = view.root();
        self.memory.lock().attrs.insert(root.node.key, root.attr);
    }

    /// Returns the changes reported since the last call.
    pub(crate) fn take_reported(&self) -> Vec<Change> {
        std::mem::take(&mut *self.reported.lock()).into_iter().flatten().collect()
    }

    /// Looks a name up, from the cache if possible.
    pub(crate) fn lookup(self: &Arc<Self>, view: &View, dir: &Node, name: &[u8]) -> Option<Node> {
        let at = (dir.key, name.into());
        if let Some(known) = self.memory.lock().names.get(&at) {
            return *known;
        }
        let kernel = Arc::clone(self);
        Reply::wait(|reply: Reply<Option<Node>>| {
            // A mount writes the answer to the kernel before it returns from the reply.
            let remember = Reply::new(move |answer: Result<NodeWithAttr, _>| {
                let answer = match answer {
                    Ok(found) => Ok(Some(found)),
                    Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                };
                reply.give(answer.map(|found| {
                    let mut memory = kernel.memory.lock();
                    if let Some(found) = &found {
                        memory.attrs.insert(found.node.key, found.attr);
                    }
                    memory.names.insert(at, found.map(|found| found.node));
                    found.map(|found| found.node)
                }));
            });
            view.lookup(dir, name, remember);
        })
        .unwrap()
    }

    /// Walks to a path by lookups; stops at a missing name.
    pub(crate) fn walk_to(self: &Arc<Self>, view: &View, path: &str) -> Option<Node> {
        let mut node = view.root().node;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if node.kind != Kind::Directory {
                return None;
            }
            node = self.lookup(view, &node, name.as_bytes())?;
        }
        Some(node)
    }

    pub(crate) fn list(&self, view: &View, dir: &Node) {
        let names = names(view, dir);
        self.memory.lock().listings.insert(dir.key, names);
    }

    /// Checks that all reachable cached entries equal those of `view`; `paths` are all that may have been looked up.
    pub(crate) fn check(&self, view: &View, names_of_all: &[&str]) {
        let root = view.root();
        let mut waiting = vec![(String::new(), root)];
        while let Some((path, dir)) = waiting.pop() {
            self.check_attr(&path, &dir);
            if let Some(known) = self.memory.lock().listings.get(&dir.node.key) {
                assert_eq!(*known, names(view, &dir.node), "listing of `{path}`");
            }
            for name in names_of_all {
                let child = format!("{path}/{name}");
                let found = Reply::wait(|reply| view.lookup(&dir.node, name.as_bytes(), reply)).ok();
                let at = (dir.node.key, name.as_bytes().into());
                if let Some(known) = self.memory.lock().names.get(&at) {
                    let known = known.map(|node| node.key);
                    assert_eq!(known, found.map(|found| found.node.key), "`{child}` is remembered wrongly");
                }
                let Some(found) = found else { continue };
                if found.node.kind == Kind::Directory {
                    waiting.push((child, found));
                } else {
                    self.check_attr(&child, &found);
                }
            }
        }
    }

    fn check_attr(&self, path: &str, found: &NodeWithAttr) {
        if let Some(attr) = self.memory.lock().attrs.get(&found.node.key) {
            assert_eq!(*attr, found.attr, "attributes of `{path}`");
        }
    }

    fn forget(memory: &mut Memory, change: &Change) {
        match change {
            Change::Name { dir, name } => {
                // The kernel drops the node too; its attributes come with the next lookup.
                if let Some(Some(node)) = memory.names.remove(&(*dir, name.clone()))
                    && node.kind != Kind::Directory
                {
                    memory.attrs.remove(&node.key);
                }
            }
            Change::Listing { dir } => {
                memory.listings.remove(dir);
            }
            Change::Attributes { node } => {
                memory.attrs.remove(node);
            }
            Change::Everything => *memory = Memory::default(),
        }
    }
}

impl Watcher for Kernel {
    fn changed(&self, changes: &[Change]) {
        {
            let mut memory = self.memory.lock();
            for change in changes {
                Self::forget(&mut memory, change);
            }
        }
        self.reported.lock().push(changes.to_vec());
    }
}

fn names(view: &View, dir: &Node) -> Names {
    view.names(dir).unwrap().iter().map(|entry| (entry.name.clone(), entry.node.key)).collect()
}
