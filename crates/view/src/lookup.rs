//! Looks up names in directories, and the current rows of nodes.

use std::sync::Arc;

use esker_format::catalog::{PathKey, Row};
use esker_format::path::{join, split};
use esker_vfs::{Attr, ErrorKind, Kind, Node, NodeWithAttr, TreeError};

use crate::attributes::{self, RowRef};
use crate::catalogs::{Attached, WantedCatalog};
use crate::core::Core;
use crate::directories::{self, DirectoriesRef, KnownDirectory};
use crate::failure::Blocked;
use crate::nested::CatalogMount;
use crate::payload::NodeInfo;
use crate::revision::{MountsRef, Revision};

/// Maximum length of a directory entry's name on Linux.
const NAME_MAX: usize = 255;

/// A revision and the guards of all references into it, while one call is answered.
pub(crate) struct Snapshot<'a> {
    pub(crate) core: &'a Core,
    pub(crate) revision: &'a Revision,
    pub(crate) mounts: MountsRef<'a>,
    pub(crate) directories: DirectoriesRef<'a>,
}

/// A directory: its visible path and the mount that has its contents.
#[derive(Clone, Copy)]
pub(crate) struct Directory<'s> {
    pub(crate) path: &'s [u8],
    pub(crate) mount: &'s CatalogMount,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn new(core: &'a Core, revision: &'a Revision) -> Self {
        Self { core, revision, mounts: revision.mounts(), directories: core.directories.pin() }
    }

    /// Returns the mount with the contents of the directory `path`.
    pub(crate) fn resolve(&self, path: &[u8]) -> Result<&CatalogMount, Blocked> {
        self.revision.resolve(&self.mounts, &self.core.catalogs, path)
    }

    /// Finds `name` in the directory.
    pub(crate) fn lookup(&self, dir: &Node, name: &[u8]) -> Result<NodeWithAttr, Blocked> {
        if name.len() > NAME_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        let directory = self.directory(dir)?;
        // Such a name would find an entry of another directory.
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

    /// Returns the present attributes of a node.
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attr, Blocked> {
        self.with_row(node, |_, row| Ok(self.core.attribute_rules.attr(row, node.kind, node.ino)))
    }

    /// Returns the directory of a node.
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
        // In another revision the path may be absent, or no directory.
        if !self.is_directory(&path)? {
            return Err(ErrorKind::Stale.into());
        }
        let known = self.remember_as(&info, path, mount.key);
        Ok(Directory { path: &known.path, mount })
    }

    /// Calls `work` with a node's row in the present revision; fails as stale if there is none.
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

    /// Calls `work` with the node's current row, or with the row that it came from if there is none.
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

    /// Returns the visible path of a node of any revision.
    pub(crate) fn path_of(&self, info: &NodeInfo) -> Result<Vec<u8>, Blocked> {
        // Keys are computed from paths, so a row with this key at this mount is at this path in any revision.
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

    /// Returns the catalog that a node came from, whether or not the current revision has it.
    pub(crate) fn attached(&self, info: &NodeInfo) -> Result<Arc<Attached>, Blocked> {
        let known = self.core.catalogs.get(&info.catalog);
        known.ok_or_else(|| {
            let path = self.core.catalogs.bound_path(&info.mount);
            Blocked::On(WantedCatalog::new(info.catalog, None, path.as_deref().unwrap_or_default()))
        })
    }

    /// Mounts a catalog of another revision where it was then; `None` if its mountpoint is unknown.
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

    /// Caches a directory found in `mount`, whose contents may be in a catalog mounted below.
    fn remember(&self, info: &NodeInfo, path: &[u8], mount: &CatalogMount) {
        let contents = if mount.nested.contains_key(path) { PathKey::of(path) } else { mount.key };
        self.remember_as(info, path.into(), contents);
    }

    fn remember_as(&self, info: &NodeInfo, path: Arc<[u8]>, contents: PathKey) -> &KnownDirectory {
        let known = KnownDirectory { path, contents, serial: self.revision.label.serial };
        directories::remember(&self.directories, info, known)
    }
}

/// Returns true if `name` can be the name of a directory entry.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && esker_format::catalog::is_name(name)
}
