//! Changes of a new revision, as a layer over the published one.

use std::collections::BTreeMap;
use std::ops::Bound;

use esker_format::catalog::NestedCatalog;
use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, path, published::Published};

/// Changes in one directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectoryChange {
    /// True if no published entry of this directory remains.
    pub(crate) fresh: bool,
    /// True if the directory itself or its assignment to a catalog may change.
    touched: bool,
    /// New and changed entries by name; `None` for removed ones.
    pub(crate) entries: BTreeMap<Vec<u8>, Option<Entry>>,
}

/// Changes of a revision, by directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// The entry of the root of the repository.
    pub(crate) root: Option<Entry>,
    /// New bind mountpoints by path.
    binds: BTreeMap<Vec<u8>, NestedCatalog>,
    directories: BTreeMap<Vec<u8>, DirectoryChange>,
}

impl Changes {
    /// Adds or replaces an entry. A directory's own catalog is touched too, since it repeats the entry.
    pub(crate) fn put(&mut self, directory: &[u8], entry: Entry) {
        if entry.is_directory() {
            self.touch(&path::join(directory, &entry.name));
        }
        self.change(directory).entries.insert(entry.name.clone(), Some(entry));
    }

    /// Adds changes in directories that don't overlap with those of these; a directory above them may have changes of both.
    pub(crate) fn join(&mut self, others: Self) {
        self.root = others.root.or(self.root.take());
        self.binds.extend(others.binds);
        for (path, other) in others.directories {
            let change = self.directories.entry(path).or_default();
            change.fresh |= other.fresh;
            change.touched |= other.touched;
            change.entries.extend(other.entries);
        }
    }

    /// Adds or replaces the content of a bind mountpoint; its entry is added separately.
    pub(crate) fn bind(&mut self, mountpoint: NestedCatalog) {
        self.binds.insert(mountpoint.path.clone(), mountpoint);
    }

    /// Returns the content of a new or changed bind mountpoint.
    pub(crate) fn bound(&self, path: &[u8]) -> Option<&NestedCatalog> {
        self.binds.get(path)
    }

    /// Removes an entry and everything below it.
    pub(crate) fn remove(&mut self, directory: &[u8], name: &[u8]) {
        let removed = path::join(directory, name);
        self.forget_below(&removed);
        self.change(directory).entries.insert(name.to_vec(), None);
    }

    /// Reverts a change.
    pub(crate) fn revert(&mut self, directory: &[u8], name: &[u8]) {
        let Some(change) = self.directories.get_mut(directory) else { return };
        let reverted = change.entries.remove(name).flatten();
        self.forget_if_nothing(directory);
        if reverted.is_some_and(|entry| entry.is_directory()) {
            let below = path::join(directory, name);
            if let Some(change) = self.directories.get_mut(&below) {
                change.touched = false;
            }
            self.forget_if_nothing(&below);
        }
    }

    fn forget_if_nothing(&mut self, directory: &[u8]) {
        let is_nothing =
            |change: &DirectoryChange| change.entries.is_empty() && !change.fresh && !change.touched;
        if self.directories.get(directory).is_some_and(is_nothing) {
            self.directories.remove(directory);
        }
    }

    /// Marks a directory as changed even if none of its entries is.
    pub(crate) fn touch(&mut self, directory: &[u8]) -> &mut DirectoryChange {
        let change = self.change(directory);
        change.touched = true;
        change
    }

    fn change(&mut self, directory: &[u8]) -> &mut DirectoryChange {
        self.directories.entry(directory.to_vec()).or_default()
    }

    pub(crate) fn get(&self, directory: &[u8]) -> Option<&DirectoryChange> {
        self.directories.get(directory)
    }

    pub(crate) fn entry_mut(&mut self, directory: &[u8], name: &[u8]) -> Option<&mut Entry> {
        self.directories.get_mut(directory)?.entries.get_mut(name)?.as_mut()
    }

    /// Returns the directories with changes, and what changes in each.
    pub(crate) fn directories(&self) -> impl Iterator<Item = (&[u8], &DirectoryChange)> {
        self.directories.iter().map(|(path, change)| (path.as_slice(), change))
    }

    /// Returns the paths of the directories with changes.
    pub(crate) fn paths(&self) -> Vec<Vec<u8>> {
        self.directories.keys().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none() && self.directories.is_empty()
    }

    /// Returns true if anything in a directory or below it changes.
    pub(crate) fn affects(&self, directory: &[u8]) -> bool {
        if directory.is_empty() {
            return !self.is_empty();
        }
        self.directories.contains_key(directory) || self.below(directory).next().is_some()
    }

    /// Returns the changed directories below a directory: in byte order, those between `/` and the byte after it.
    fn below(&self, directory: &[u8]) -> impl Iterator<Item = &Vec<u8>> {
        let start = [directory, b"/"].concat();
        let end = [directory, b"0"].concat();
        let range = (Bound::Included(start), Bound::Excluded(end));
        self.directories.range(range).map(|(path, _)| path)
    }

    /// Removes all changes of the entries in a directory; changes below its subdirectories stay.
    pub(crate) fn forget(&mut self, directory: &[u8]) {
        self.directories.remove(directory);
    }

    /// Removes the changes of an entry and of everything below it; returns true if there were any.
    pub(crate) fn drop_at(&mut self, path: &[u8]) -> bool {
        let is_changed = |changes: &Self| match path::split(path) {
            None => changes.root.is_some(),
            Some((directory, name)) => {
                changes.get(directory).is_some_and(|change| change.entries.contains_key(name))
            }
        };
        let found = self.affects(path) || is_changed(self);
        self.forget_below(path);
        match path::split(path) {
            None => self.root = None,
            Some((directory, name)) => self.revert(directory, name),
        }
        found
    }

    /// Returns the new and changed entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.directories.values().flat_map(|change| change.entries.values().flatten())
    }

    /// Removes all changes of a directory's entries, and of everything below them.
    pub(crate) fn forget_below(&mut self, directory: &[u8]) {
        let below: Vec<Vec<u8>> = self.below(directory).cloned().collect();
        for path in below {
            self.directories.remove(&path);
        }
        self.directories.remove(directory);
    }
}

/// The tree that a new revision will show.
#[derive(Clone, Copy)]
pub(crate) struct NewTree<'r> {
    pub(crate) published: &'r Published,
    pub(crate) changes: &'r Changes,
}

impl NewTree<'_> {
    /// Returns the entries of a directory, sorted by name.
    pub(crate) fn list(&self, directory: &[u8]) -> Result<Vec<Entry>, RepositoryError> {
        let Some(change) = self.changes.get(directory) else { return self.published.list(directory) };
        let old = if change.fresh { Vec::new() } else { self.published.list(directory)? };
        let mut entries: BTreeMap<Vec<u8>, Entry> =
            old.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for (name, entry) in &change.entries {
            match entry {
                Some(entry) => entries.insert(name.clone(), entry.clone()),
                None => entries.remove(name),
            };
        }
        Ok(entries.into_values().collect())
    }

    /// Lists all directories, parents before their children.
    pub(crate) fn directories(&self) -> Result<Vec<Vec<u8>>, RepositoryError> {
        let mut all = vec![Vec::new()];
        let mut next = 0;
        while let Some(directory) = all.get(next).cloned() {
            let below = self.list(&directory)?.into_iter().filter(Entry::is_directory);
            all.extend(below.map(|entry| path::join(&directory, &entry.name)));
            next += 1;
        }
        Ok(all)
    }

    /// Returns the entry of a path, no parent of which may be removed.
    pub(crate) fn entry(&self, path: &[u8]) -> Result<Option<Entry>, RepositoryError> {
        let Some((directory, name)) = path::split(path) else {
            return match &self.changes.root {
                Some(root) => Ok(Some(root.clone())),
                None => self.published.entry(b""),
            };
        };
        match self.changes.get(directory) {
            Some(change) => match change.entries.get(name) {
                Some(entry) => Ok(entry.clone()),
                None if change.fresh => Ok(None),
                None => self.published.entry(path),
            },
            None => self.published.entry(path),
        }
    }
}
