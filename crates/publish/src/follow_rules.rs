//! Brings the hidden markers of nested catalogs in line with the rules of `.cvmfsdirtab`.
//!
//! A catalog stays as it is unless the rules say otherwise: a hidden marker goes only where a new rule forbids the catalog.
//! That a rule is gone says nothing, as with CernVM-FS, which never removes a marker. A marker that shows in listings is
//! the tree's own.

use esker_format::catalog::Flags;
use esker_format::hash::ContentHash;
use esker_format::write::catalog::Entry;
use esker_repository::{
    entry::{self, AUTO_MARKER, MARKER},
    path,
    published::{Published, read_small_file},
};
use esker_store::Sink;

use crate::changes::{Changes, NewTree};
use crate::dirtab::{self, Dirtab};
use crate::error::PublishError;

/// The rules of a repository before and after a change.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) before: Dirtab,
    pub(crate) now: Dirtab,
}

impl Rules {
    /// Reads the rules of a tree, all of whose contents are stored.
    pub(crate) fn of(sink: &dyn Sink, tree: NewTree<'_>) -> Result<Self, PublishError> {
        let before = Dirtab::of_published(sink, tree.published)?;
        if !Self::change_in(tree.changes) {
            return Ok(Self { now: before.clone(), before });
        }
        let now = match tree.entry(&path::join(b"", dirtab::NAME))?.filter(Entry::is_file) {
            Some(entry) => Dirtab::parse(&read_small_file(sink, &entry, ".cvmfsdirtab")?)?,
            None => Dirtab::default(),
        };
        Ok(Self { before, now })
    }

    /// Returns true if changes replace or remove the file with the rules.
    pub(crate) fn change_in(changes: &Changes) -> bool {
        changes.get(b"").is_some_and(|root| root.entries.contains_key(dirtab::NAME))
    }

    /// Returns true if a new rule forbids a catalog of this directory.
    pub(crate) fn drop(&self, directory: &[u8]) -> bool {
        self.now.forbids(directory) && !self.before.forbids(directory)
    }

    /// Returns the selected directories of a tree that had no catalog of their own before its changes.
    pub(crate) fn missing(&self, tree: NewTree<'_>) -> Result<Vec<Vec<u8>>, PublishError> {
        let mut missing = Vec::new();
        for directory in self.now.selected(tree)? {
            if tree.published.nested_at(&directory)?.is_none() {
                missing.push(directory);
            }
        }
        Ok(missing)
    }

    /// Applies the rules to the changed directories and those that lack a catalog; to all of the tree if the rules
    /// themselves change.
    pub(crate) fn follow(
        &self,
        published: &Published,
        changes: &mut Changes,
        empty: (ContentHash, Flags),
    ) -> Result<(), PublishError> {
        let tree = NewTree { published, changes };
        let directories = match Self::change_in(changes) {
            true => tree.directories()?,
            false => changes.paths().into_iter().chain(self.missing(tree)?).collect(),
        };
        directories.iter().try_for_each(|directory| self.follow_in(published, changes, empty, directory))
    }

    /// Adds and removes the hidden markers of a directory.
    pub(crate) fn follow_in(
        &self,
        published: &Published,
        changes: &mut Changes,
        empty: (ContentHash, Flags),
        directory: &[u8],
    ) -> Result<(), PublishError> {
        if directory.is_empty() {
            return Ok(());
        }
        let tree = NewTree { published, changes };
        let marker = tree.entry(&path::join(directory, MARKER))?;
        let automatic = tree.entry(&path::join(directory, AUTO_MARKER))?;
        let is_hidden = |entry: &Option<Entry>| entry.as_ref().is_some_and(|it| it.flags.has(Flags::HIDDEN));
        let shows = marker.is_some() && !is_hidden(&marker);
        let wanted = self.now.wants(directory);
        // Without the marker of the catalog it means nothing.
        if (shows || wanted || marker.is_none()) && is_hidden(&automatic) {
            changes.remove(directory, AUTO_MARKER);
            changes.touch(directory);
        }
        if shows {
            return Ok(());
        }
        if marker.is_some() {
            if self.drop(directory) && automatic.is_none() {
                changes.remove(directory, MARKER);
                changes.touch(directory);
            }
        } else if wanted && let Some(entry) = (NewTree { published, changes }).entry(directory)? {
            changes.put(directory, entry::marker(MARKER, 0o100_644, &entry, empty));
            changes.touch(directory);
        }
        Ok(())
    }
}
