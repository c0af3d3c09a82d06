//! A mountable tree, or a part of one, as input of an image.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use esker_vfs::{
    Attr, DirEntry, ErrorKind, Ino, Kind as NodeKind, Node, NodeWithAttr, Reply, Tree, TreeError,
    whole_listing,
};

use super::WriteError;
use super::builder::TreeBuilder;
use super::entry::{Device, Head, Input, Kind, Open, Reading};
use super::error::shown;

/// A directory of a mountable tree, with everything below it.
pub struct Subtree {
    tree: Arc<dyn Tree>,
    top: NodeWithAttr,
    /// First path of each file that has several names.
    linked: HashMap<Ino, Vec<u8>>,
}

impl std::fmt::Debug for Subtree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subtree").field("top", &self.top).finish_non_exhaustive()
    }
}

impl Subtree {
    /// Creates the input of the part of `tree` below the directory `top`.
    pub fn new(tree: Arc<dyn Tree>, top: NodeWithAttr) -> Self {
        Self { tree, top, linked: HashMap::new() }
    }

    fn head(&self, node: &Node, attr: &Attr, path: &[u8]) -> Result<Head, WriteError> {
        let mut xattrs = Vec::new();
        match Reply::wait(|reply| self.tree.xattr_names(node, reply)) {
            Ok(names) => {
                for name in names {
                    match Reply::wait(|reply| self.tree.xattr(node, &name, reply)) {
                        Ok(value) => xattrs.push((name, value)),
                        Err(error) if error.kind == ErrorKind::NoAttribute => {}
                        Err(error) => return Err(failed("reading extended attributes of", path)(error)),
                    }
                }
            }
            Err(error) if error.kind == ErrorKind::Unsupported => {}
            Err(error) => return Err(failed("reading extended attributes of", path)(error)),
        }
        Ok(Head {
            path: path.to_vec(),
            permissions: attr.permissions,
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime.secs,
            xattrs,
        })
    }

    fn entry(
        &mut self,
        entry: &DirEntry,
        path: &[u8],
        builder: &mut TreeBuilder<'_, '_>,
    ) -> Result<(), WriteError> {
        let DirEntry { node, attr, .. } = entry;
        let is_linked = attr.kind != NodeKind::Directory && attr.nlink > 1;
        if is_linked && let Some(first) = self.linked.get(&attr.ino) {
            return builder.link(path, first);
        }
        if is_linked {
            self.linked.insert(attr.ino, path.to_vec());
        }
        let head = self.head(node, attr, path)?;
        let device = Device { major: attr.rdev.major, minor: attr.rdev.minor };
        let kind = match attr.kind {
            NodeKind::File => {
                let content = Content { tree: self.tree.clone(), node: *node };
                return builder.file(head, attr.size, Box::new(content));
            }
            NodeKind::Directory => Kind::Directory,
            NodeKind::Symlink => {
                let target = Reply::wait(|reply| self.tree.link_target(node, reply));
                Kind::Symlink(target.map_err(failed("reading symlink", path))?)
            }
            NodeKind::Fifo => Kind::Fifo,
            NodeKind::Socket => Kind::Socket,
            NodeKind::CharDevice => Kind::CharDevice(device),
            NodeKind::BlockDevice => Kind::BlockDevice(device),
        };
        builder.add(head, kind)
    }

    /// Returns the entries of a directory, the last one first.
    fn list(&self, node: &Node, path: &[u8]) -> Result<Vec<DirEntry>, WriteError> {
        let mut entries = whole_listing(&*self.tree, node).map_err(failed("reading directory", path))?;
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(entries)
    }
}

impl Input for Subtree {
    fn feed(&mut self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        // Attributes of a tree's root may describe the mount rather than the published content, so they are
        // left out.
        let head = Head { xattrs: Vec::new(), ..self.head(&self.top.node, &self.top.attr, b"")? };
        builder.add(head, Kind::Directory)?;
        let mut way = vec![(Vec::new(), self.list(&self.top.node, b"")?)];
        while let Some((above, left)) = way.last_mut() {
            let Some(entry) = left.pop() else {
                way.pop();
                continue;
            };
            let mut path: Vec<u8> = above.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            if !builder.wants(&path) {
                continue;
            }
            self.entry(&entry, &path, builder)?;
            if entry.attr.kind == NodeKind::Directory {
                let left = self.list(&entry.node, &path)?;
                way.push((path, left));
            }
        }
        Ok(())
    }
}

fn failed(doing: &'static str, path: &[u8]) -> impl FnOnce(TreeError) -> WriteError {
    let path = shown(path);
    move |error| WriteError::Input { doing, path, source: io::Error::other(error) }
}

/// Content of a file of the tree.
struct Content {
    tree: Arc<dyn Tree>,
    node: Node,
}

impl Open for Content {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        Ok(Box::new(From { content: self, offset: 0 }))
    }
}

/// Reads a content sequentially from an offset.
struct From<'c> {
    content: &'c Content,
    offset: u64,
}

impl Reading for From<'_> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let Content { tree, node } = self.content;
            let data = Reply::wait(|reply| tree.read(node, self.offset, rest.len(), reply));
            let bytes = data.map_err(io::Error::other)?.to_vec()?;
            let Some(there) = rest.get_mut(..bytes.len()).filter(|there| !there.is_empty()) else { break };
            there.copy_from_slice(&bytes);
            filled += bytes.len();
            self.offset += bytes.len() as u64;
        }
        Ok(filled)
    }
}
