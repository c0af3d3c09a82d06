//! Finds and reads entries of a tree by path, without a mount.

use std::collections::VecDeque;

use esker_vfs::{
    Attr, DirEntry, ErrorKind, Kind as NodeKind, Node, NodeWithAttr, Reply, Tree, TreeError, whole_listing,
};

use crate::error::{Failure, of_tree};
use crate::output::lossy;

/// Maximum number of symbolic links in the resolution of one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Longest path, as in the kernel.
const PATH_LEN_MAX: usize = 4096;

/// A tree and its name, which error messages and absolute links need.
pub(crate) struct Walk<'a> {
    tree: &'a dyn Tree,
    repository: &'a str,
    /// True if absolute links begin at the top of the tree, not at that of the machine it is mounted on.
    is_image: bool,
}

/// Name and value of an extended attribute.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// An entry of a tree, with its name.
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) node: Node,
    pub(crate) attr: Attr,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(tree: &'a dyn Tree, repository: &'a str) -> Self {
        Self { tree, repository, is_image: false }
    }

    /// Creates a walk in an image, whose links stay inside.
    pub(crate) fn in_image(tree: &'a dyn Tree, image: &'a str) -> Self {
        Self { tree, repository: image, is_image: true }
    }

    /// Returns the entry at `path`; a symbolic link at its end is followed if `follow`.
    pub(crate) fn resolve(&self, path: &[u8], follow: bool) -> Result<NodeWithAttr, Failure> {
        let mut to_go: VecDeque<Vec<u8>> = parts(path).collect();
        let mut way: Vec<(NodeWithAttr, Vec<u8>)> = vec![(self.tree.root(), Vec::new())];
        let mut links = 0;
        let at = |way: &[(NodeWithAttr, Vec<u8>)]| {
            way.last().map_or_else(|| self.tree.root(), |(found, _)| *found)
        };
        let failed = |error: TreeError| self.failure(path, &error);
        while let Some(name) = to_go.pop_front() {
            if name == b".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let dir = at(&way);
            if dir.attr.kind != NodeKind::Directory {
                return Err(failed(ErrorKind::NotADirectory.into()));
            }
            let found = Reply::wait(|reply| self.tree.lookup(&dir.node, &name, reply)).map_err(failed)?;
            if found.attr.kind != NodeKind::Symlink || (to_go.is_empty() && !follow) {
                way.push((found, name));
                continue;
            }
            links += 1;
            let target = Reply::wait(|reply| self.tree.link_target(&found.node, reply)).map_err(failed)?;
            if links > LINKS_MAX || target.len() > PATH_LEN_MAX {
                return Err(self.refusal(path, "too many levels of symbolic links"));
            }
            let target = match target.strip_prefix(b"/") {
                None => target,
                Some(absolute) if self.is_image => {
                    way.truncate(1);
                    absolute.to_vec()
                }
                Some(absolute) => {
                    let below = format!("cvmfs/{}", self.repository).into_bytes();
                    match absolute.strip_prefix(below.as_slice()) {
                        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
                            way.truncate(1);
                            rest.to_vec()
                        }
                        _ => {
                            let why = format!("a link leads out of the repository, to {}", lossy(&target));
                            return Err(self.refusal(path, &why));
                        }
                    }
                }
            };
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                to_go.push_front(part);
            }
        }
        Ok(at(&way))
    }

    /// Returns the entries of a directory, sorted by name.
    pub(crate) fn list(&self, dir: &Node, path: &[u8]) -> Result<Vec<Entry>, Failure> {
        let listing = whole_listing(self.tree, dir).map_err(|error| self.failure(path, &error))?;
        let entry = |entry: DirEntry| Entry { name: entry.name.into(), node: entry.node, attr: entry.attr };
        let mut entries: Vec<Entry> = listing.into_iter().map(entry).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    pub(crate) fn link_target(&self, node: &Node, path: &[u8]) -> Result<Vec<u8>, Failure> {
        Reply::wait(|reply| self.tree.link_target(node, reply)).map_err(|error| self.failure(path, &error))
    }

    pub(crate) fn xattrs(&self, node: &Node, path: &[u8]) -> Result<Vec<Xattr>, Failure> {
        let failed = |error: TreeError| self.failure(path, &error);
        let names = match Reply::wait(|reply| self.tree.xattr_names(node, reply)) {
            Err(error) if error.kind == ErrorKind::Unsupported => return Ok(Vec::new()),
            names => names.map_err(failed)?,
        };
        let value = |name: Vec<u8>| {
            let value = Reply::wait(|reply| self.tree.xattr(node, &name, reply)).map_err(failed)?;
            Ok((name, value))
        };
        names.into_iter().map(value).collect()
    }

    /// Reads up to `len` bytes of a file from `offset`.
    pub(crate) fn read(&self, node: &Node, path: &[u8], offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let data = Reply::wait(|reply| self.tree.read(node, offset, len, reply))
            .map_err(|error| self.failure(path, &error))?;
        data.to_vec().map_err(|error| {
            Failure::failed(format!("{}: can't read the cached file: {error}", self.name(path)))
        })
    }

    fn name(&self, path: &[u8]) -> String {
        let path = lossy(path);
        format!("{}:/{}", self.repository, path.trim_start_matches('/'))
    }

    fn refusal(&self, path: &[u8], why: &str) -> Failure {
        Failure::failed(format!("{}: {why}", self.name(path)))
    }

    /// Converts a failure of the tree, with the path as the user wrote it.
    fn failure(&self, path: &[u8], error: &TreeError) -> Failure {
        let failure = of_tree(&self.name(path), error);
        match error.kind {
            ErrorKind::NotFound | ErrorKind::NotADirectory if self.is_image => {
                failure.hint("`esker image ls` lists what the image has")
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                failure.hint("`esker ls` and `esker find` list what the repository has")
            }
            _ => failure,
        }
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}
