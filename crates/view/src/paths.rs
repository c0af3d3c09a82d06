//! Access to the tree by path, for tools that don't mount it. These calls block.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_vfs::{Cookie, Data, DirEntry, ErrorKind, Kind, Node, NodeWithAttr, Reply, Tree, TreeError};

use crate::lookup::Snapshot;
use crate::payload::NodeInfo;
use crate::view::View;

/// Maximum number of symbolic links followed on one path, as in Linux.
const LINKS_MAX: u32 = 40;

/// Handling of a symbolic link at the end of a path. Others are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// Follow the link.
    Follow,
    /// Return the link itself.
    Keep,
}

impl View {
    /// Finds the entry at a path below the root of the repository.
    ///
    /// `.`, `..` and repeated slashes are handled as by a shell. A link that leads out of the repository is an error.
    pub fn find(&self, path: &[u8], last: LastLink) -> Result<NodeWithAttr, TreeError> {
        let not_found = |kind| TreeError::on(kind, String::from_utf8_lossy(path));
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut way: Vec<NodeWithAttr> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                way.pop();
                continue;
            }
            let here = way.last().map_or_else(|| self.root(), |found| *found);
            let next = Reply::wait(|reply| self.lookup(&here.node, &name, reply))
                .map_err(|error| if error.object.is_empty() { not_found(error.kind) } else { error })?;
            if next.node.kind != Kind::Symlink || (todo.is_empty() && last == LastLink::Keep) {
                way.push(next);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(not_found(ErrorKind::Invalid).because("too many symbolic links on the way"));
            }
            let target = self.target(&next.node)?;
            let target = self.core.attribute_rules.followed(&target);
            if target.starts_with(b"/") {
                let reason =
                    format!("a link leads out of the repository, to {}", String::from_utf8_lossy(&target));
                return Err(not_found(ErrorKind::NotFound).because(reason));
            }
            todo.extend(components(&target));
        }
        Ok(way.pop().unwrap_or_else(|| self.root()))
    }

    /// Returns all names of a directory, in the order in which a mount lists them.
    pub fn names(&self, dir: &Node) -> Result<Arc<[DirEntry]>, TreeError> {
        Ok(Reply::wait(|reply| self.list(dir, Cookie(0), reply))?.entries)
    }

    /// Reads up to `len` bytes of a file; fewer only at its end.
    pub fn read_at(&self, file: &Node, offset: u64, len: usize) -> Result<Vec<u8>, TreeError> {
        let data: Data = Reply::wait(|reply| self.read(file, offset, len, reply))?;
        data.to_vec().map_err(|error| TreeError::on(ErrorKind::Local, self.path_of(file)).because(error))
    }

    /// Returns the target of a symbolic link as the view shows it.
    pub fn target(&self, link: &Node) -> Result<Vec<u8>, TreeError> {
        Reply::wait(|reply| self.link_target(link, reply))
    }

    /// Returns the extended attributes of a node, values by name.
    pub fn xattrs(&self, node: &Node) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, TreeError> {
        let names = Reply::wait(|reply| self.xattr_names(node, reply))?;
        let with_value = |name: Vec<u8>| {
            let value = Reply::wait(|reply| self.xattr(node, &name, reply))?;
            Ok((name, value))
        };
        names.into_iter().map(with_value).collect()
    }

    /// Returns the path of a node in the current revision or the one it came from; `None` if a needed catalog
    /// is not attached.
    pub fn path(&self, node: &Node) -> Option<Vec<u8>> {
        let revision = self.core.current.load();
        let snapshot = Snapshot::new(&self.core, &revision);
        match NodeInfo::of(node).ok()? {
            info if info.root => Some(Vec::new()),
            info => snapshot.path_of(&info).ok(),
        }
    }

    /// Returns the path of a node, for messages.
    pub fn path_of(&self, node: &Node) -> String {
        self.core.name_of(node)
    }
}

/// Returns the components of a path without empty ones and `.`, last first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').rev();
    parts.filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec).collect()
}
