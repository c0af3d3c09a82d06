//! All catalogs that roots lead to.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{RepositoryError, parallel};
use parking_lot::Mutex;

use super::record::{Owner, Record, Tagged};
use super::sorter::Sorter;
use super::stored::HashLists;

/// The catalogs that some roots lead to, each with the only root that leads to it.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    pub(crate) catalogs: HashMap<ContentHash, Owner>,
    pub(crate) incomplete: Vec<Incomplete>,
}

/// A catalog that a root leads to and the storage does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incomplete {
    /// Number of the root.
    pub(crate) root: usize,
    pub(crate) catalog: ContentHash,
}

impl Closure {
    /// Walks down from each root.
    pub(crate) fn of(
        lists: &HashLists<'_>,
        roots: &[ContentHash],
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Self, RepositoryError> {
        let mut closure = Self::default();
        let mut level: Vec<(ContentHash, Owner)> =
            roots.iter().enumerate().map(|(number, root)| (*root, Owner::of(number))).collect();
        while !level.is_empty() {
            let mut fresh = Vec::new();
            for (catalog, owner) in level {
                let known = closure.catalogs.get(&catalog).copied();
                let joined = known.map_or(owner, |known| known.with(owner));
                // A catalog is visited once, and once more if it turns out to be shared.
                if known != Some(joined) {
                    closure.catalogs.insert(catalog, joined);
                    fresh.push((catalog, owner));
                }
            }
            fresh.sort_unstable();
            fresh.dedup_by_key(|(catalog, _)| *catalog);
            let children = parallel::map(threads, stop, &fresh, |(catalog, _)| {
                Ok(lists.get(catalog)?.map(|list| list.children().collect::<Vec<_>>()))
            })?;
            level = Vec::new();
            for ((catalog, owner), children) in fresh.into_iter().zip(children) {
                let joined = closure.catalogs.get(&catalog).copied().unwrap_or(owner);
                match children {
                    Some(children) => level.extend(children.into_iter().map(|child| (child, joined))),
                    None => {
                        let root = usize::try_from(owner.0).unwrap_or(usize::MAX);
                        closure.incomplete.push(Incomplete { root, catalog });
                    }
                }
            }
        }
        closure.incomplete.sort_unstable_by_key(|incomplete| (incomplete.catalog, incomplete.root));
        closure.incomplete.dedup_by_key(|incomplete| incomplete.catalog);
        Ok(closure)
    }

    /// Adds the names of the catalogs and of all their objects to a sorter.
    pub(crate) fn add_objects(
        &self,
        lists: &HashLists<'_>,
        sorter: &mut Sorter,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<(), RepositoryError> {
        let mut catalogs: Vec<_> = self.catalogs.iter().map(|(catalog, owner)| (*catalog, *owner)).collect();
        catalogs.sort_unstable();
        let sorter = Mutex::new(sorter);
        parallel::map(threads, stop, &catalogs, |(catalog, owner)| {
            let own = Record::of(&ObjectName::new(*catalog, ObjectKind::Catalog));
            let list = lists.get(catalog)?.unwrap_or_default();
            let records = std::iter::once(own).chain(list.objects.iter().copied());
            sorter.lock().extend(records.map(|record| Tagged { record, owner: *owner }))
        })?;
        Ok(())
    }
}
