//! Compares two revisions, as far as the kernel may have cached entries of the first.
//!
//! Catalogs with equal hashes are equal, and so is everything nested in them. Two catalogs at one mountpoint are
//! merged in the order of their keys. Where a catalog appeared in, or vanished from, a directory that stays, entries
//! moved between catalogs; that is rare, and then everything counts as changed. Reporting too many changes is safe,
//! reporting too few never is.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use esker_format::catalog::{CatalogError, Flags, PathKey, Row};
use esker_vfs::{Change, Kind, NodeKey, TreeError};

use crate::attributes::{self, AttributeRules, RowRef};
use crate::catalogs::{Attached, Catalogs, WantedCatalog};
use crate::identity;
use crate::nested::{CatalogMount, NestedRef};
use crate::revision::{Revision, SeenByPath, SeenCatalog};
use esker_format::path::join;

/// Number of changes above which it is cheaper to invalidate everything than single entries.
pub(crate) const CHANGES_MAX: usize = 20_000;

/// Reason for ending a comparison early.
enum Stop {
    /// Too much changed, or too little is known: everything counts as changed.
    Everything,
    /// The new revision can't be fetched, so nothing changes yet.
    Failed(TreeError),
}

impl From<CatalogError> for Stop {
    fn from(_: CatalogError) -> Self {
        Stop::Everything
    }
}

/// Changes from one revision to another.
pub(crate) struct RevisionDiff {
    changes: Vec<Change>,
    /// Catalogs of the old revision that were in use when the comparison began.
    seen: SeenByPath,
    /// Directories that only the old revision has.
    vanished: HashSet<NodeKey>,
}

/// Directories that vanished with this revision or an earlier one.
///
/// A directory that returns is the same node, and the kernel may have cached that a name is absent which now exists:
/// an absent name is never reported as changed.
#[derive(Default)]
pub(crate) struct VanishedDirectories(HashSet<NodeKey>);

impl VanishedDirectories {
    pub(crate) fn new(keys: impl Iterator<Item = NodeKey>) -> Self {
        Self(keys.collect())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = NodeKey> {
        self.0.iter().copied()
    }
}

/// Compares two revisions, and mounts in `new` the catalogs mounted in `old`.
pub(crate) fn compare(
    attribute_rules: &AttributeRules,
    catalogs: &Arc<Catalogs>,
    old: &Revision,
    new: &Revision,
    vanished_before: &VanishedDirectories,
) -> Result<RevisionDiff, TreeError> {
    let mut comparison = Comparison {
        attribute_rules,
        catalogs,
        old,
        new,
        names: Vec::new(),
        listings: HashSet::new(),
        attributes: HashSet::new(),
        vanished_before,
        vanished: HashSet::new(),
        seen: old.seen().by_path(),
    };
    let changes = match comparison.run() {
        Ok(()) => comparison.changes(),
        Err(Stop::Everything) => vec![Change::Everything],
        Err(Stop::Failed(error)) => return Err(error),
    };
    Ok(RevisionDiff { changes, seen: comparison.seen, vanished: comparison.vanished })
}

impl RevisionDiff {
    /// Returns the changes, once the old revision is no longer in use.
    ///
    /// Catalogs that were mounted during the comparison are not part of it: they are unchanged, or everything counts
    /// as changed.
    pub(crate) fn complete(
        self,
        seen_at_last: SeenByPath,
        new: &Revision,
        vanished: &mut VanishedDirectories,
    ) -> Vec<Change> {
        vanished.0.extend(&self.vanished);
        let changes = if vanished.0.len() > CHANGES_MAX {
            vec![Change::Everything]
        } else {
            self.complete_with(seen_at_last, new)
        };
        if changes == [Change::Everything] {
            vanished.0.clear();
        }
        changes
    }

    fn complete_with(self, seen_at_last: SeenByPath, new: &Revision) -> Vec<Change> {
        if self.changes == [Change::Everything] {
            return self.changes;
        }
        for (path, late) in seen_at_last.iter().filter(|(path, _)| !self.seen.contains_key(*path)) {
            if !is_unchanged(&seen_at_last, path, new) {
                return vec![Change::Everything];
            }
            new.inherit(late.clone(), None);
        }
        self.changes
    }
}

/// Returns true if the new revision has the same catalog at `path`, by its reference or that of a catalog above.
fn is_unchanged(seen: &SeenByPath, path: &[u8], new: &Revision) -> bool {
    let mounts = new.mounts();
    let mut mount: &CatalogMount = &new.root;
    while let Some((mountpoint, nested)) = mount.next_mount(path) {
        if seen.get(mountpoint).is_some_and(|seen| Some(seen.hash) == nested.hash) {
            return true;
        }
        match mounts.get(&PathKey::of(mountpoint)) {
            Some(below) => mount = below,
            None => return false,
        }
    }
    false
}

struct Comparison<'a> {
    attribute_rules: &'a AttributeRules,
    catalogs: &'a Arc<Catalogs>,
    old: &'a Revision,
    new: &'a Revision,
    names: Vec<Change>,
    listings: HashSet<NodeKey>,
    attributes: HashSet<NodeKey>,
    vanished_before: &'a VanishedDirectories,
    vanished: HashSet<NodeKey>,
    /// Catalogs of the old revision that were in use, by mountpoint.
    seen: SeenByPath,
}

/// A mountpoint of the old revision, and the catalog of the new revision at the same path, if there is one.
struct Pair {
    old: Arc<CatalogMount>,
    new: Option<Arc<CatalogMount>>,
}

impl Comparison<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        if self.old.root_hash() == self.new.root_hash() {
            self.inherit_below(b"");
            return Ok(());
        }
        let mut pairs = vec![Pair { old: Arc::clone(&self.old.root), new: Some(Arc::clone(&self.new.root)) }];
        // Each pair is deeper in the tree than the one it came from, so this ends.
        while let Some(pair) = pairs.pop() {
            match &pair.new {
                Some(new) => self.compare_rows(&pair.old, new)?,
                None => self.all_removed(&pair.old)?,
            }
            self.compare_nested(&pair, &mut pairs)?;
        }
        Ok(())
    }

    fn changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.names);
        changes.extend(self.listings.drain().map(|dir| Change::Listing { dir }));
        changes.extend(self.attributes.drain().map(|node| Change::Attributes { node }));
        changes
    }

    /// Finds the pairs nested in a pair.
    fn compare_nested(&self, pair: &Pair, pairs: &mut Vec<Pair>) -> Result<(), Stop> {
        let mut arriving = Vec::new();
        for mountpoint in pair.old.nested.keys() {
            // The kernel can't have cached entries of a catalog that was never mounted.
            let Some(seen) = self.seen.get(&**mountpoint) else { continue };
            match pair.new.as_ref().and_then(|new| Some((new, new.nested.get(mountpoint)?))) {
                Some((_, nested)) if nested.hash == Some(seen.hash) => self.inherit_below(mountpoint),
                Some((_, nested)) => arriving.push((seen.clone(), nested.clone())),
                None if pair.new.as_ref().map_or(Ok(false), |new| has_directory(new, mountpoint))? => {
                    return Err(Stop::Everything);
                }
                None => pairs.push(Pair { old: self.old_mount(seen)?, new: None }),
            }
        }
        if let Some(new) = &pair.new {
            for mountpoint in new.nested.keys().filter(|path| !pair.old.nested.contains_key(*path)) {
                // The names in the catalog are unknown until it is attached, so single changes can't be reported.
                if self.vanished_before.0.contains(&identity::directory(mountpoint))
                    || has_directory(&pair.old, mountpoint)?
                {
                    return Err(Stop::Everything);
                }
            }
        }
        pairs.extend(self.mount_new(arriving)?);
        Ok(())
    }

    /// Mounts the new versions of catalogs, fetching them all at once.
    fn mount_new(&self, arriving: Vec<(SeenCatalog, NestedRef)>) -> Result<Vec<Pair>, Stop> {
        let pending: Vec<_> = arriving
            .into_iter()
            .map(|(seen, nested)| {
                let wanted = nested.wanted(&seen.path).map_err(|_| Stop::Everything)?;
                let answer = self.catalogs.attach_soon(wanted);
                Ok((seen, nested, answer))
            })
            .collect::<Result<_, Stop>>()?;
        let mounts = self.new.mounts();
        let mut pairs = Vec::new();
        for (seen, nested, answer) in pending {
            let attached = answer.wait().map_err(Stop::Failed)?;
            self.new.mount(&mounts, self.catalogs, attached, (&seen.path, &nested)).map_err(Stop::Failed)?;
            let new = mounts.get(&PathKey::of(&seen.path)).map(Arc::clone).ok_or(Stop::Everything)?;
            pairs.push(Pair { old: self.old_mount(&seen)?, new: Some(new) });
        }
        Ok(pairs)
    }

    /// Returns a catalog of the old revision, attached again if necessary.
    fn old_mount(&self, seen: &SeenCatalog) -> Result<Arc<CatalogMount>, Stop> {
        if let Some(mount) = self.old.mounts().get(&PathKey::of(&seen.path)) {
            return Ok(Arc::clone(mount));
        }
        let wanted = WantedCatalog::new(seen.hash, seen.size, &seen.path);
        let attached: Result<Arc<Attached>, _> = self.catalogs.attach_soon(wanted).wait();
        let mount = attached.and_then(|attached| CatalogMount::new(attached, &seen.path));
        mount.map(Arc::new).map_err(|_| Stop::Everything)
    }

    /// Carries over the catalogs in use at and below a mountpoint, which did not change.
    fn inherit_below(&self, mountpoint: &[u8]) {
        let mounts = self.old.mounts();
        // In byte order `0` follows `/`, so all paths below are between the two.
        let (first, end) = ([mountpoint, b"/"].concat(), [mountpoint, b"0"].concat());
        let below = self.seen.range::<[u8], _>((Included(&first[..]), Excluded(&end[..])));
        for (path, seen) in self.seen.get_key_value(mountpoint).into_iter().chain(below) {
            self.new.inherit(seen.clone(), mounts.get(&PathKey::of(path)));
        }
    }

    /// Merges the rows of two catalogs with the same mountpoint.
    fn compare_rows(&mut self, old: &CatalogMount, new: &CatalogMount) -> Result<(), Stop> {
        if old.attached.prefix() != new.attached.prefix() {
            // Published for different directories, they have different keys for the same path.
            return Err(Stop::Everything);
        }
        let (mut old_dirs, mut new_dirs) = (Paths::default(), Paths::default());
        let mut old_rows = old.attached.catalog.rows()?;
        let mut new_rows = new.attached.catalog.rows()?;
        let mut old_row = old_rows.next().transpose()?;
        let mut new_row = new_rows.next().transpose()?;
        loop {
            let (before, after) = match (&old_row, &new_row) {
                (None, None) => return Ok(()),
                (Some(o), Some(n)) if o.key() == n.key() => (true, true),
                (Some(o), Some(n)) => (o.key() < n.key(), o.key() > n.key()),
                (o, n) => (o.is_some(), n.is_some()),
            };
            match (old_row.as_ref().filter(|_| before), new_row.as_ref().filter(|_| after)) {
                (Some(o), Some(n)) => {
                    if differ(old, o, new, n)? {
                        self.row_changed((old, o, &mut old_dirs), (new, n, &mut new_dirs))?;
                    }
                }
                (Some(o), None) => self.name_vanished(old, o, &mut old_dirs)?,
                (None, Some(n)) => self.name_changed(new, n, &mut new_dirs)?,
                (None, None) => {}
            }
            if before {
                old_row = old_rows.next().transpose()?;
            }
            if after {
                new_row = new_rows.next().transpose()?;
            }
        }
    }

    fn all_removed(&mut self, old: &CatalogMount) -> Result<(), Stop> {
        let mut dirs = Paths::default();
        for row in old.attached.catalog.rows()? {
            self.name_vanished(old, &row?, &mut dirs)?;
        }
        Ok(())
    }

    /// Reports a vanished directory: one that returns is the same node, and its cached attributes would be outdated.
    fn directory_vanished(&mut self, node: NodeKey) {
        self.attributes.insert(node);
        self.vanished.insert(node);
    }

    fn name_vanished(&mut self, mount: &CatalogMount, row: &Row<'_>, dirs: &mut Paths) -> Result<(), Stop> {
        if attributes::kind(row) == Kind::Directory && !is_own_root(mount, row) {
            let (parent, _) = dirs.of_parent(mount, row)?;
            let node = identity::directory(&join(parent, row.name()));
            self.directory_vanished(node);
        }
        self.name_changed(mount, row, dirs)
    }

    /// Reports that a name appeared or vanished.
    fn name_changed(&mut self, mount: &CatalogMount, row: &Row<'_>, dirs: &mut Paths) -> Result<(), Stop> {
        if is_own_root(mount, row) {
            // The entry in the parent catalog is compared instead, or it is the root, which always exists.
            return Ok(());
        }
        let dir = dirs.of_parent(mount, row)?.1;
        self.add_name(dir, row)
    }

    fn add_name(&mut self, dir: NodeKey, row: &Row<'_>) -> Result<(), Stop> {
        self.names.push(Change::Name { dir, name: row.name().into() });
        self.listings.insert(dir);
        self.check_size()
    }

    /// Reports the change of an entry that keeps its name.
    fn row_changed(
        &mut self,
        (old, old_row, old_dirs): (&CatalogMount, &Row<'_>, &mut Paths),
        (new, new_row, new_dirs): (&CatalogMount, &Row<'_>, &mut Paths),
    ) -> Result<(), Stop> {
        if is_own_root(old, old_row) {
            if old.path.is_empty() {
                self.attributes.insert(identity::directory(b""));
            }
            return Ok(());
        }
        let before = self.node(old, old_row, old_dirs)?;
        let after = self.node(new, new_row, new_dirs)?;
        if before != after {
            if before.1 == Kind::Directory {
                self.directory_vanished(before.2);
            }
            return self.add_name(after.0, new_row);
        }
        if old_row.flags().has(Flags::HIDDEN) != new_row.flags().has(Flags::HIDDEN) {
            self.listings.insert(after.0);
        }
        self.attributes.insert(after.2);
        self.check_size()
    }

    /// Returns the directory of an entry, its kind and its key.
    fn node(
        &self,
        mount: &CatalogMount,
        row: &Row<'_>,
        dirs: &mut Paths,
    ) -> Result<(NodeKey, Kind, NodeKey), Stop> {
        let (parent, dir) = dirs.of_parent(mount, row)?;
        let path = join(parent, row.name());
        let kind = attributes::kind(row);
        let key = self.attribute_rules.identity(RowRef { mount, path: &path, row }, kind);
        Ok((*dir, kind, key.map_err(|_| Stop::Everything)?))
    }

    fn check_size(&self) -> Result<(), Stop> {
        let size = self.names.len() + self.listings.len() + self.attributes.len();
        if size > CHANGES_MAX { Err(Stop::Everything) } else { Ok(()) }
    }
}

/// Paths of directories in one catalog, by key.
#[derive(Default)]
struct Paths(HashMap<PathKey, (Vec<u8>, NodeKey)>);

impl Paths {
    /// Returns the path and node key of the directory that has an entry.
    fn of_parent(&mut self, mount: &CatalogMount, row: &Row<'_>) -> Result<&(Vec<u8>, NodeKey), Stop> {
        let found = match self.0.entry(row.parent()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let path = mount.path_of(row.parent()).ok().flatten().ok_or(Stop::Everything)?;
                let key = identity::directory(&path);
                place.insert((path, key))
            }
        };
        // Lookups use keys and listings use parents. Where these disagree the cached entries are unknown.
        if mount.key_of_child(&found.0, row.name()) != row.key() {
            return Err(Stop::Everything);
        }
        Ok(found)
    }
}

/// Returns true if the row is that of the catalog's own root.
fn is_own_root(mount: &CatalogMount, row: &Row<'_>) -> bool {
    row.key() == PathKey::of(mount.attached.prefix())
}

fn has_directory(mount: &CatalogMount, path: &[u8]) -> Result<bool, Stop> {
    let row = mount.find(mount.key_of(path)).map_err(|_| Stop::Everything)?;
    Ok(row.is_some_and(|row| attributes::kind(&row) == Kind::Directory))
}

/// Returns true if two rows with one key have visible differences.
fn differ(old: &CatalogMount, a: &Row<'_>, new: &CatalogMount, b: &Row<'_>) -> Result<bool, Stop> {
    let plain = |row: &Row<'_>| {
        (
            (row.parent(), row.mode(), row.size(), row.device(), row.mtime(), row.mtime_ns()),
            (row.uid(), row.gid(), row.flags(), row.hash(), row.hardlink_group(), row.link_count()),
            row.has_xattrs(),
        )
    };
    if plain(a) != plain(b) || a.name() != b.name() || a.symlink() != b.symlink() {
        return Ok(true);
    }
    if a.has_xattrs() && a.xattrs() != b.xattrs() {
        return Ok(true);
    }
    // The hash of a chunked file that has one covers its chunks.
    if a.hash().is_none() && a.flags().has(Flags::CHUNKED) {
        return Ok(old.attached.catalog.chunks(a)? != new.attached.catalog.chunks(b)?);
    }
    Ok(false)
}
