//! Finds the paths of traced nodes: those that lookups of the trace found, else those that the tree knows.

use std::collections::HashMap;
use std::sync::Arc;

use esker_fuse::{CallKind, Session};
use esker_vfs::{Node, NodeKey};

/// Maximum number of remembered paths.
const KNOWN_MAX: usize = 1 << 17;

/// Paths of nodes, without the slash at the beginning; that of the root is empty.
pub(super) struct Paths<'s> {
    session: &'s Session,
    root: NodeKey,
    known: HashMap<NodeKey, Arc<[u8]>>,
}

impl<'s> Paths<'s> {
    pub(super) fn new(session: &'s Session) -> Self {
        Self { session, root: session.root(), known: HashMap::new() }
    }

    fn of(&mut self, node: &Node) -> Option<Arc<[u8]>> {
        if node.key == self.root {
            return Some(Arc::default());
        }
        if let Some(path) = self.known.get(&node.key) {
            return Some(path.clone());
        }
        let path = self.session.path(node)?;
        let path: Arc<[u8]> = path.strip_prefix(b"/").unwrap_or(&path).into();
        self.remember(node.key, &path);
        Some(path)
    }

    fn remember(&mut self, key: NodeKey, path: &Arc<[u8]>) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, path.clone());
    }

    /// Returns the path of a request's object with a slash at the beginning; remembers what a lookup found.
    pub(super) fn of_call(
        &mut self,
        kind: CallKind,
        node: &Node,
        name: Option<&[u8]>,
        found: Option<NodeKey>,
    ) -> String {
        let dir = self.of(node);
        let path = match (kind, name, dir) {
            (CallKind::Lookup, Some(name), Some(dir)) => {
                let between: &[u8] = if dir.is_empty() { b"" } else { b"/" };
                let path: Arc<[u8]> = [&dir, between, name].concat().into();
                if let Some(key) = found {
                    self.remember(key, &path);
                }
                path
            }
            (CallKind::Lookup, Some(name), None) => {
                return format!("(inode {})/{}", node.ino.0, String::from_utf8_lossy(name));
            }
            (_, _, Some(path)) => path,
            (_, _, None) => return format!("(inode {})", node.ino.0),
        };
        format!("/{}", String::from_utf8_lossy(&path))
    }
}
