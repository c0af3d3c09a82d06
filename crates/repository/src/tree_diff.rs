//! The difference of two revisions, catalog by catalog.
//!
//! Both trees are walked together in path order. Where both have a nested catalog with the same hash, nothing below
//! differs and the catalog is not read, so the cost follows from what differs. Only the catalogs above the present
//! directory are in memory, and of the directories above it the entries that still have to be visited.

use std::sync::Arc;

use esker_format::catalog::{Flags, NestedCatalog};
use esker_format::hash::ContentHash;
use esker_format::write::catalog::Entry;
use serde::Serialize;

use crate::entry;
use crate::entry_diff::Attributes;
use crate::error::RepositoryError;
use crate::kind_counts::KindCounts;
use crate::object_source::ObjectSource;
use crate::path;
use crate::published::OldCatalog;

/// Kind of change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The path is new.
    Added,
    /// The content or attributes of the path change.
    Changed,
    /// The path is gone.
    Removed,
}

/// A path at which two revisions differ.
#[derive(Clone, Copy, Debug)]
pub struct PathDiff<'d> {
    /// The path; empty for the root.
    pub path: &'d [u8],
    /// Kind of change. A change of type is a removal and an addition.
    pub change: ChangeKind,
    /// Changed attributes; empty for additions and removals.
    pub attributes: Attributes,
    /// The entry of the old revision.
    pub old: Option<&'d Entry>,
    /// The entry of the new revision.
    pub new: Option<&'d Entry>,
}

/// Counts of the paths at which two revisions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiffCounts {
    /// Paths that only the new revision has.
    pub added: KindCounts,
    /// Paths with other content or attributes.
    pub changed: KindCounts,
    /// Paths that only the old revision has.
    pub removed: KindCounts,
    /// Sizes of the files that were added or have new content, in the new revision.
    pub bytes_added: u64,
    /// Sizes of the files that were removed or have new content, in the old revision.
    pub bytes_removed: u64,
    /// Catalogs that were read.
    pub catalogs_read: u64,
}

/// Comparison of two revisions of a repository.
pub struct TreeDiff<'r> {
    /// Place of the objects.
    pub objects: &'r dyn ObjectSource,
    /// Root catalog of the old revision.
    pub old: ContentHash,
    /// Root catalog of the new revision.
    pub new: ContentHash,
    /// Path to compare, with everything below it; empty for all.
    pub within: Vec<u8>,
    /// Differences of only the modification time don't count.
    pub ignore_times: bool,
}

/// Receives the differences, in the order of paths.
pub type DiffVisitor<'v> = dyn FnMut(&PathDiff<'_>) -> Result<(), RepositoryError> + 'v;

impl TreeDiff<'_> {
    /// Hands every difference to `visit`, and returns their counts.
    pub fn run(&self, visit: &mut DiffVisitor<'_>) -> Result<DiffCounts, RepositoryError> {
        let mut walk = Walk { diff: self, visit, counts: DiffCounts::default(), frames: Vec::new() };
        walk.start()?;
        while let Some(frame) = walk.frames.last_mut() {
            match frame.pairs.next() {
                Some(pair) => {
                    let path = path::join(&frame.directory, &pair.name);
                    let owners = frame.owners.clone();
                    walk.pair(path, pair.old, pair.new, &owners)?;
                }
                None => drop(walk.frames.pop()),
            }
        }
        Ok(walk.counts)
    }
}

type Owner = Option<Arc<OldCatalog>>;

/// The catalogs of both revisions that list a directory.
#[derive(Clone)]
struct Owners {
    old: Owner,
    new: Owner,
}

/// A directory that is being compared.
struct Frame {
    directory: Vec<u8>,
    owners: Owners,
    pairs: std::vec::IntoIter<Pair>,
}

/// The entries of one name.
struct Pair {
    name: Vec<u8>,
    old: Option<Entry>,
    new: Option<Entry>,
}

struct Walk<'w, 'r> {
    diff: &'w TreeDiff<'r>,
    visit: &'w mut DiffVisitor<'w>,
    counts: DiffCounts,
    frames: Vec<Frame>,
}

impl Walk<'_, '_> {
    /// Compares the path where the comparison begins.
    fn start(&mut self) -> Result<(), RepositoryError> {
        if self.diff.old == self.diff.new {
            return Ok(());
        }
        let within = self.diff.within.clone();
        let mut owners =
            Owners { old: Some(self.read_root(self.diff.old)?), new: Some(self.read_root(self.diff.new)?) };
        // The entry of a path is in the catalog that lists its parent directory.
        if let Some((parent, _)) = path::split(&within) {
            for ancestor in path::ancestry(parent).skip(1) {
                let nested = |owner: &Owner| own_nested(owner.as_deref()?, ancestor);
                let (old, new) = (nested(&owners.old), nested(&owners.new));
                if is_same_catalog(old.as_ref(), new.as_ref()) {
                    return Ok(());
                }
                owners.old = self.descend(old, &owners.old)?;
                owners.new = self.descend(new, &owners.new)?;
            }
        }
        let entry = |owner: &Owner| -> Result<Option<Entry>, RepositoryError> {
            owner.as_deref().map_or(Ok(None), |owner| owner.entry(&within))
        };
        let (old, new) = (entry(&owners.old)?, entry(&owners.new)?);
        if old.is_none() && new.is_none() {
            return Err(RepositoryError::NoSuchPath(path::shown(&within)));
        }
        self.pair(within, old, new, &owners)
    }

    fn read_root(&mut self, hash: ContentHash) -> Result<Arc<OldCatalog>, RepositoryError> {
        self.counts.catalogs_read += 1;
        OldCatalog::read(self.diff.objects, b"", hash, None).map(Arc::new)
    }

    /// Returns the nested catalog, or the one above if there is none.
    fn descend(&mut self, nested: Option<NestedCatalog>, above: &Owner) -> Result<Owner, RepositoryError> {
        let Some(nested) = nested else { return Ok(above.clone()) };
        self.counts.catalogs_read += 1;
        Ok(Some(Arc::new(OldCatalog::read_nested(self.diff.objects, &nested)?)))
    }

    /// Compares the entries of a path, and prepares the comparison of what is in it.
    fn pair(
        &mut self,
        path: Vec<u8>,
        old: Option<Entry>,
        new: Option<Entry>,
        owners: &Owners,
    ) -> Result<(), RepositoryError> {
        if let (Some(before), Some(after)) = (&old, &new)
            && before.kind() != after.kind()
        {
            // The frame that is pushed last is visited first: the removals come before the additions.
            let only_new = Owners { old: None, new: owners.new.clone() };
            self.report(&path, old.as_ref(), None, Attributes::default())?;
            self.report(&path, None, new.as_ref(), Attributes::default())?;
            self.enter(&path, None, new.as_ref(), &only_new)?;
            let only_old = Owners { old: owners.old.clone(), new: None };
            return self.enter(&path, old.as_ref(), None, &only_old);
        }
        let mut attributes = Attributes::default();
        if let (Some(before), Some(after)) = (&old, &new) {
            attributes = Attributes::between(before, after);
            let bind = |owner: &Owner| owner.as_ref()?.nested.get(&path).filter(|nested| nested.bind)?.hash;
            attributes.add_if(Attributes::NESTED, bind(&owners.old) != bind(&owners.new));
            if self.diff.ignore_times {
                attributes = attributes.without(Attributes::TIME);
            }
        }
        let differs = old.is_none() || new.is_none() || !attributes.is_empty();
        if differs {
            self.report(&path, old.as_ref(), new.as_ref(), attributes)?;
        }
        self.enter(&path, old.as_ref(), new.as_ref(), owners)
    }

    /// Begins the comparison of a directory, unless both revisions have the same catalog for it.
    fn enter(
        &mut self,
        path: &[u8],
        old: Option<&Entry>,
        new: Option<&Entry>,
        owners: &Owners,
    ) -> Result<(), RepositoryError> {
        let is_listed = |entry: &&Entry| entry.is_directory() && !entry.flags.has(Flags::BIND_MOUNTPOINT);
        let (old, new) = (old.filter(is_listed), new.filter(is_listed));
        if old.is_none() && new.is_none() {
            return Ok(());
        }
        let nested = |entry: Option<&Entry>, owner: &Owner| {
            entry.and(owner.as_deref()).and_then(|owner| own_nested(owner, path))
        };
        let (old_nested, new_nested) = (nested(old, &owners.old), nested(new, &owners.new));
        if is_same_catalog(old_nested.as_ref(), new_nested.as_ref()) {
            return Ok(());
        }
        let of = |entry: Option<&Entry>, owner: &Owner| entry.and(owner.clone());
        let owners = Owners {
            old: self.descend(old_nested, &of(old, &owners.old))?,
            new: self.descend(new_nested, &of(new, &owners.new))?,
        };
        let list = |owner: &Owner| -> Result<Vec<Entry>, RepositoryError> {
            owner.as_deref().map_or(Ok(Vec::new()), |owner| owner.list(path))
        };
        let pairs = self.merge(path, list(&owners.old)?, list(&owners.new)?);
        self.frames.push(Frame { directory: path.to_vec(), owners, pairs: pairs.into_iter() });
        Ok(())
    }

    /// Joins two sorted listings, and keeps what differs and what has to be entered.
    fn merge(&self, directory: &[u8], old: Vec<Entry>, new: Vec<Entry>) -> Vec<Pair> {
        let mut pairs = Vec::new();
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return pairs,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let old = if order.is_le() { old.next() } else { None };
            let new = if order.is_ge() { new.next() } else { None };
            let Some(any) = old.as_ref().or(new.as_ref()) else { return pairs };
            let is_generated = directory.is_empty()
                && any.name == path::RESERVED[1..]
                && !path::is_within(&self.diff.within, path::RESERVED);
            let is_bundle = entry::is_profile_bundle(any);
            let is_same = match (&old, &new) {
                (Some(old), Some(new)) => !old.is_directory() && Attributes::between(old, new).is_empty(),
                _ => false,
            };
            if !(is_generated || is_bundle || is_same) {
                pairs.push(Pair { name: any.name.clone(), old, new });
            }
        }
    }

    fn report(
        &mut self,
        path: &[u8],
        old: Option<&Entry>,
        new: Option<&Entry>,
        attributes: Attributes,
    ) -> Result<(), RepositoryError> {
        let counts = &mut self.counts;
        let change = match (old, new) {
            (None, Some(new)) => {
                counts.added.add(new);
                ChangeKind::Added
            }
            (Some(old), None) => {
                counts.removed.add(old);
                ChangeKind::Removed
            }
            (Some(_), Some(new)) => {
                counts.changed.add(new);
                ChangeKind::Changed
            }
            (None, None) => return Ok(()),
        };
        if change != ChangeKind::Changed || attributes.has(Attributes::CONTENT) {
            let bytes =
                |entry: Option<&Entry>| entry.filter(|entry| entry.is_file()).map_or(0, |entry| entry.size);
            counts.bytes_added = counts.bytes_added.saturating_add(bytes(new));
            counts.bytes_removed = counts.bytes_removed.saturating_add(bytes(old));
        }
        (self.visit)(&PathDiff { path, change, attributes, old, new })
    }
}

fn own_nested(owner: &OldCatalog, path: &[u8]) -> Option<NestedCatalog> {
    owner.nested.get(path).filter(|nested| !nested.bind).cloned()
}

fn is_same_catalog(old: Option<&NestedCatalog>, new: Option<&NestedCatalog>) -> bool {
    let hash = |nested: Option<&NestedCatalog>| nested.and_then(|nested| nested.hash);
    hash(old).is_some() && hash(old) == hash(new)
}
