//! Finding things: names in directories, and the present rows of nodes.

use std::sync::Arc;

use esker_format::catalog::{PathKey, Row};
use esker_format::path::{join, split};
use esker_vfs::{Attr, ErrorKind, Found, Kind, Node, TreeError};

use crate::attributes::{self, RowRef};
use crate::catalogs::{Attached, WantedCatalog};
use crate::core::Core;
use crate::directories::{self, DirectoriesRef, KnownDirectory};
use crate::failure::Blocked;
use crate::nested::CatalogMount;
use crate::payload::NodeInfo;
use crate::revision::{MountsRef, Revision};

/// The longest name of a directory entry on Linux.
const NAME_MAX: usize = 255;

/// A revision with everything pinned that references point into, while one call is answered from it.
pub(crate) struct Snapshot<'a> {
    pub(crate) core: &'a Core,
    pub(crate) revision: &'a Revision,
    pub(crate) mounts: MountsRef<'a>,
    pub(crate) directories: DirectoriesRef<'a>,
}

/// A directory: its visible path and the mount that holds its contents.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'s> {
    pub(crate) path: &'s [u8],
    pub(crate) mount: &'s CatalogMount,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn new(core: &'a Core, revision: &'a Revision) -> Self {
        Self { core, revision, mounts: revision.mounts(), directories: core.directories.pin() }
    }

    /// The mount that holds what lies in the directory `path`.
    pub(crate) fn resolve(&self, path: &[u8]) -> Result<&CatalogMount, Blocked> {
        self.revision.resolve(&self.mounts, &self.core.catalogs, path)
    }

    /// Finds `name` in the directory.
    pub(crate) fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Found, Blocked> {
        if name.len() > NAME_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        let directory = self.directory(dir)?;
        // Such a name would be found under another path than it was asked for.
        if !is_name(name) {
            return Err(ErrorKind::NotFound.into());
        }
        let mount = directory.mount;
        let key = mount.key_of_child(directory.path, name);
        let Some(row) = mount.find(key)? else { return Err(ErrorKind::NotFound.into()) };
        let path = join(directory.path, name);
        let found = self.core.attribute_rules.found(RowRef { mount, path: &path, row: &row })?;
        if found.node.kind == Kind::Directory {
            self.remember(&NodeInfo::of(&found.node)?, &path, mount);
        }
        Ok(found)
    }

    /// The present attributes of a node.
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attr, Blocked> {
        self.with_row(node, |_, row| Ok(self.core.attribute_rules.attr(row, node.kind, node.ino)))
    }

    /// The directory that a node stands for.
    pub(crate) fn directory(&self, node: &Node) -> Result<Directory<'_>, Blocked> {
        if node.kind != Kind::Directory {
            return Err(ErrorKind::NotADirectory.into());
        }
        let info = NodeInfo::of(node)?;
        if info.root {
            return Ok(Directory { path: b"", mount: self.resolve(b"")? });
        }
        let known = self.directories.get(&(info.key, info.mount));
        if let Some(known) = known
            && known.serial == self.revision.label.serial
            && let Some(mount) = self.mounts.get(&known.contents)
        {
            self.revision.touch(mount);
            return Ok(Directory { path: &known.path, mount });
        }
        let path = match known {
            Some(known) => Arc::clone(&known.path),
            None => self.path_of(&info)?.into(),
        };
        let mount = self.resolve(&path)?;
        // In another revision there may be nothing at this path any more, or something else.
        if !self.is_directory(&path)? {
            return Err(ErrorKind::Stale.into());
        }
        let known = self.remember_as(&info, path, mount.key);
        Ok(Directory { path: &known.path, mount })
    }

    /// Calls `work` with the row that a node stands for in the present revision; stale if it stands for none.
    pub(crate) fn with_row<T>(
        &self,
        node: &Node,
        work: impl FnOnce(&CatalogMount, &Row<'_>) -> Result<T, TreeError>,
    ) -> Result<T, Blocked> {
        let info = NodeInfo::of(node)?;
        if info.root {
            let root = self.resolve(b"")?;
            let row = root.find(root.key_of(b""))?.ok_or_else(|| root.damaged("it has no root entry"))?;
            return Ok(work(root, &row)?);
        }
        if let Some(mount) = self.mounts.get(&info.mount)
            && mount.attached.hash == info.catalog
            && let Some(row) = mount.find(info.key)?
        {
            return Ok(work(mount, &row)?);
        }
        let path = self.path_of(&info)?;
        let (parent, name) = split(&path).ok_or(ErrorKind::Stale)?;
        let mount = self.resolve(parent)?;
        let Some(row) = mount.find(mount.key_of_child(parent, name))? else {
            return Err(ErrorKind::Stale.into());
        };
        let row_ref = RowRef { mount, path: &path, row: &row };
        let kind = attributes::kind(&row);
        if kind != node.kind || self.core.attribute_rules.identity(row_ref, kind)? != node.key {
            return Err(ErrorKind::Stale.into());
        }
        Ok(work(mount, &row)?)
    }

    /// Calls `work` with the node's present row or, if it has none any more, with the one it came from.
    pub(crate) fn with_stored_row<T>(
        &self,
        node: &Node,
        mut work: impl FnMut(&Row<'_>) -> Result<T, TreeError>,
    ) -> Result<T, Blocked> {
        match self.with_row(node, |_, row| work(row)) {
            Err(Blocked::Failed(error)) if error.kind == ErrorKind::Stale => {}
            answer => return answer,
        }
        let info = NodeInfo::of(node)?;
        let mount = CatalogMount::new(self.attached(&info)?, b"")?;
        let row = mount.find(info.key)?.ok_or(ErrorKind::Stale)?;
        Ok(work(&row)?)
    }

    /// The visible path of a node, from whatever revision it is.
    pub(crate) fn path_of(&self, info: &NodeInfo) -> Result<Vec<u8>, Blocked> {
        // Keys are made of paths, so a row with this key at this mount is at this path in any revision.
        if let Some(mount) = self.mounts.get(&info.mount)
            && let Some(path) = mount.path_of(info.key)?
        {
            return Ok(path);
        }
        let attached = self.attached(info)?;
        let Some(mount) = self.mount_elsewhere(attached, info)? else {
            return Err(ErrorKind::Stale.into());
        };
        Ok(mount.path_of(info.key)?.ok_or(ErrorKind::Stale)?)
    }

    /// The catalog that a node came from, whether or not the present revision has it.
    pub(crate) fn attached(&self, info: &NodeInfo) -> Result<Arc<Attached>, Blocked> {
        let known = self.core.catalogs.get(&info.catalog);
        known.ok_or_else(|| {
            let path = self.core.catalogs.bound_path(&info.mount);
            Blocked::On(WantedCatalog::new(info.catalog, None, path.as_deref().unwrap_or_default()))
        })
    }

    /// A catalog of another revision, mounted where it was then; `None` if nobody knows where that was.
    fn mount_elsewhere(
        &self,
        attached: Arc<Attached>,
        info: &NodeInfo,
    ) -> Result<Option<CatalogMount>, TreeError> {
        let prefix = attached.prefix().to_vec();
        let path = if PathKey::of(&prefix) == info.mount {
            Some(prefix)
        } else {
            self.core.catalogs.bound_path(&info.mount).map(|path| path.to_vec())
        };
        path.map(|path| CatalogMount::new(attached, &path)).transpose()
    }

    fn is_directory(&self, path: &[u8]) -> Result<bool, Blocked> {
        let Some((parent, name)) = split(path) else { return Ok(true) };
        let mount = self.resolve(parent)?;
        match mount.find(mount.key_of_child(parent, name))? {
            Some(row) => Ok(attributes::kind(&row) == Kind::Directory),
            None => Ok(false),
        }
    }

    /// Remembers a directory found in `mount`, whose contents may lie in a catalog mounted below.
    fn remember(&self, info: &NodeInfo, path: &[u8], mount: &CatalogMount) {
        let contents = if mount.nested.contains_key(path) { PathKey::of(path) } else { mount.key };
        self.remember_as(info, path.into(), contents);
    }

    fn remember_as(&self, info: &NodeInfo, path: Arc<[u8]>, contents: PathKey) -> &KnownDirectory {
        let known = KnownDirectory { path, contents, serial: self.revision.label.serial };
        directories::remember(&self.directories, info, known)
    }
}

/// Whether `name` can be the name of a directory entry.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && esker_format::catalog::is_name(name)
}
