//! In-memory tree of the image.

use std::collections::BTreeMap;

use super::entry::{Head, Kind};
use super::error::shown;
use super::{Options, WriteError};

/// Index of a node in [`Tree::nodes`].
pub(super) type NodeId = usize;

/// All nodes of the image.
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
}

/// A file, directory or other entry, with one or several names.
pub(super) struct Node {
    pub(super) permissions: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: u32,
    /// Number of the attribute set.
    pub(super) xattrs: Option<u32>,
    /// Number of names (hard links).
    pub(super) names: u32,
    pub(super) kind: NodeKind,
}

/// Type of a node.
pub(super) enum NodeKind {
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    /// A regular file, with its index in the list of files.
    File(usize),
    Other(Kind),
}

pub(super) const ROOT: NodeId = 0;
/// Maximum length of a name in bytes, as in other file systems.
const NAME_LEN_MAX: usize = 255;
/// Maximum length of a target in bytes: the kernel reads it into one page.
const TARGET_LEN_MAX: usize = 4095;
/// Maximum depth of a path, which bounds the nodes that a hostile archive can create with one entry.
const DEPTH_MAX: usize = 4096;
/// Maximum number of symlinks that one path follows, as in Linux.
const LINKS_MAX: u32 = 40;

impl Node {
    pub(super) fn new(head: &Head, kind: NodeKind, options: &Options, xattrs: Option<u32>) -> Self {
        Self {
            permissions: head.permissions & 0o7777,
            uid: options.owners.uid(head.uid),
            gid: options.owners.gid(head.gid),
            mtime: options
                .entry_time
                .unwrap_or_else(|| seconds(head.mtime).min(options.entry_time_max.unwrap_or(u32::MAX))),
            xattrs,
            names: 0,
            kind,
        }
    }

    /// Returns a directory with default attributes, for a path whose parent has no entry.
    fn unknown_directory(options: &Options) -> Self {
        let head = Head { permissions: 0o755, ..Head::default() };
        Self::new(&head, NodeKind::Directory(BTreeMap::new()), options, None)
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, NodeKind::Directory(_))
    }
}

/// Converts a time to the range of the format: 1970 to 2106.
pub(super) fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}

/// Splits a path into names; rejects `..`.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>, WriteError> {
    let refused = |reason: &str| WriteError::Refused { path: shown(path), reason: reason.to_owned() };
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<&[u8]> = names.collect();
    if names.contains(&&b".."[..]) {
        return Err(refused("it leads out of its directory"));
    }
    if names.iter().any(|name| name.len() > NAME_LEN_MAX) {
        return Err(refused("a name in it has more than 255 bytes"));
    }
    if names.len() > DEPTH_MAX {
        return Err(refused("it has too many directories"));
    }
    Ok(names)
}

impl Tree {
    pub(super) fn new(options: &Options) -> Self {
        let root = Node { names: 1, ..Node::unknown_directory(options) };
        Self { nodes: vec![root] }
    }

    fn children(&mut self, id: NodeId) -> Option<&mut BTreeMap<Box<[u8]>, NodeId>> {
        match self.nodes.get_mut(id).map(|node| &mut node.kind) {
            Some(NodeKind::Directory(children)) => Some(children),
            _ => None,
        }
    }

    /// Returns the node at a path. Links before the last name are followed as in [`Tree::directory`].
    pub(super) fn find(&self, path: &[u8]) -> Result<Option<NodeId>, WriteError> {
        let names = names(path)?;
        let Some((name, above)) = names.split_last() else { return Ok(Some(ROOT)) };
        let mut links = 0;
        let mut at = Some(ROOT);
        for name in above {
            at = at
                .and_then(|at| self.child(at, name))
                .and_then(|child| self.followed(at?, child, &mut links));
        }
        Ok(at.and_then(|at| self.child(at, name)))
    }

    fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match self.nodes.get(directory).map(|node| &node.kind) {
            Some(NodeKind::Directory(children)) => children.get(name).copied(),
            _ => None,
        }
    }

    /// Returns the directory that a child is, or that it leads to as a symlink.
    ///
    /// A link is followed only below its own directory, as GNU tar does when it unpacks an archive.
    fn followed(&self, directory: NodeId, child: NodeId, links: &mut u32) -> Option<NodeId> {
        let node = self.nodes.get(child)?;
        if node.is_directory() {
            return Some(child);
        }
        let NodeKind::Other(Kind::Symlink(target)) = &node.kind else { return None };
        *links += 1;
        if *links > LINKS_MAX || target.starts_with(b"/") {
            return None;
        }
        let mut at = directory;
        for name in target.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return None;
            }
            at = self.followed(at, self.child(at, name)?, links)?;
        }
        Some(at)
    }

    /// Puts a node at a path and creates missing parent directories. An existing node is replaced; a
    /// directory keeps its entries.
    pub(super) fn put(&mut self, path: &[u8], node: Node, options: &Options) -> Result<NodeId, WriteError> {
        if let NodeKind::Other(Kind::Symlink(target)) = &node.kind
            && (target.is_empty() || target.len() > TARGET_LEN_MAX)
        {
            let reason = format!("its target has {} bytes, 1 to {TARGET_LEN_MAX} are possible", target.len());
            return Err(WriteError::Refused { path: shown(path), reason });
        }
        let names = names(path)?;
        let Some((name, above)) = names.split_last() else {
            return self.put_root(node);
        };
        let directory = self.directory(above, path, options)?;
        let there = self.children(directory).and_then(|children| children.get(*name).copied());
        if let Some(there) = there.filter(|_| node.is_directory())
            && let Some(old) = self.nodes.get_mut(there).filter(|old| old.is_directory())
        {
            let kind = std::mem::replace(&mut old.kind, NodeKind::Other(Kind::Fifo));
            *old = Node { kind, names: old.names, ..node };
            return Ok(there);
        }
        let id = self.nodes.len();
        self.nodes.push(node);
        self.link(directory, name, id);
        Ok(id)
    }

    /// Adds another name for a node.
    pub(super) fn add_name(&mut self, path: &[u8], id: NodeId, options: &Options) -> Result<(), WriteError> {
        let names = names(path)?;
        let Some((name, above)) = names.split_last() else {
            return Err(WriteError::Refused { path: shown(path), reason: "it is the root".to_owned() });
        };
        let directory = self.directory(above, path, options)?;
        self.link(directory, name, id);
        Ok(())
    }

    fn put_root(&mut self, node: Node) -> Result<NodeId, WriteError> {
        let root = self.nodes.get_mut(ROOT).filter(|_| node.is_directory());
        let Some(root) = root else {
            return Err(WriteError::Refused {
                path: "/".to_owned(),
                reason: "it is no directory".to_owned(),
            });
        };
        let kind = std::mem::replace(&mut root.kind, NodeKind::Other(Kind::Fifo));
        *root = Node { kind, names: 1, ..node };
        Ok(ROOT)
    }

    fn link(&mut self, directory: NodeId, name: &[u8], id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.names += 1;
        }
        let before = self.children(directory).and_then(|children| children.insert(name.into(), id));
        self.unlink(before);
    }

    /// Removes one name from a node and from everything below it.
    fn unlink(&mut self, id: Option<NodeId>) {
        let mut waiting: Vec<NodeId> = id.into_iter().collect();
        while let Some(id) = waiting.pop() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.names = node.names.saturating_sub(1);
            if let NodeKind::Directory(children) = &mut node.kind {
                waiting.extend(std::mem::take(children).into_values());
            }
        }
    }

    /// Returns the directory at `names`, and creates missing ones. Links to directories are followed.
    fn directory(&mut self, names: &[&[u8]], path: &[u8], options: &Options) -> Result<NodeId, WriteError> {
        let mut at = ROOT;
        let mut links = 0;
        for name in names {
            if let Some(child) = self.child(at, name) {
                at = self.followed(at, child, &mut links).ok_or_else(|| {
                    let reason = "a name on the way to it is no directory".to_owned();
                    WriteError::Refused { path: shown(path), reason }
                })?;
                continue;
            }
            let next = self.nodes.len();
            if let Some(children) = self.children(at) {
                children.insert((*name).into(), next);
            }
            self.nodes.push(Node { names: 1, ..Node::unknown_directory(options) });
            at = next;
        }
        Ok(at)
    }
}
