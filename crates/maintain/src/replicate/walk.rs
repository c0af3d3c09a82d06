//! Catalogs that are not here yet, and the objects that they name.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use esker_format::catalog::{Catalog, PathKey};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{
    DATABASE_MAX, RepositoryError, condemned::Condemned, parallel, path, signed::decoded_object,
};
use esker_store::LargeBytes;
use parking_lot::Mutex;

use super::options::{Replicate, ReplicateProgress};
use super::origin::Origin;
use super::replica::Replica;
use crate::hash_lists::list::HashList;
use crate::hash_lists::{HashLists, Owner, Record, SortedSet, Sorter, Tagged, minus};

/// Catalogs that are fetched and read at once.
const CATALOGS_AT_ONCE: usize = 16;

/// A catalog that is to be visited.
#[derive(Clone, Debug)]
struct Visit {
    catalog: ContentHash,
    /// Directory that it is mounted at.
    path: Vec<u8>,
    size: Option<u64>,
    /// Path on the server, if that is not the usual one.
    at: Option<String>,
}

/// One revision.
pub(super) struct Tree {
    pub(super) root: ContentHash,
    /// Path of the root catalog on the server, if that is not the usual one.
    pub(super) root_path: Option<String>,
    pub(super) size: Option<u64>,
}

/// Reads catalogs of the servers that are not here yet.
pub(super) struct Walker<'w> {
    pub(super) options: &'w Replicate<'w>,
    pub(super) origin: &'w Origin,
    pub(super) replica: &'w Replica,
    pub(super) lists: &'w HashLists<'w>,
    /// True if the presence of a catalog implies that of its subtree.
    pub(super) trusts: bool,
    /// Paths that the replica was not asked for before, which the head must have.
    pub(super) new_paths: Vec<Vec<u8>>,
    /// Objects that a collect is about to delete.
    pub(super) condemned: Option<&'w Condemned>,
    /// Visited catalogs with those below each.
    visited: HashMap<ContentHash, Vec<ContentHash>>,
    /// Catalogs that no server has.
    missing: HashMap<ContentHash, String>,
    pub(super) fetched: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
    done: AtomicU64,
}

/// Result of loading a catalog.
enum Loaded {
    /// The catalogs below it.
    Below(Vec<Visit>),
    /// No server has it, or it can't be read.
    Missing(String),
}

impl<'w> Walker<'w> {
    pub(super) fn new(
        options: &'w Replicate<'w>,
        origin: &'w Origin,
        replica: &'w Replica,
        lists: &'w HashLists<'w>,
    ) -> Self {
        Self {
            options,
            origin,
            replica,
            lists,
            trusts: false,
            new_paths: Vec::new(),
            condemned: None,
            visited: HashMap::new(),
            missing: HashMap::new(),
            fetched: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Makes a sorter for the objects of trees.
    pub(super) fn sorter(&self) -> Sorter {
        let disk = self.replica.disk().clone();
        Sorter::new(disk, &self.replica.scratch(), self.options.buffer)
    }

    /// Visits the catalogs of revisions that are not here, and adds the objects that they name to a sorter. A part that no
    /// server has is an error if it is required; otherwise it makes its revision incomplete.
    pub(super) fn trees(
        &mut self,
        trees: Vec<Tree>,
        required: bool,
        sorter: &mut Sorter,
    ) -> Result<(), RepositoryError> {
        let visit =
            |tree: Tree| Visit { catalog: tree.root, path: Vec::new(), size: tree.size, at: tree.root_path };
        // All revisions at once: each level costs a round trip.
        let mut level: Vec<Visit> = trees.into_iter().map(visit).collect();
        while !level.is_empty() {
            let mut fresh = Vec::new();
            let mut names = HashSet::new();
            for visit in level {
                let is_known =
                    self.visited.contains_key(&visit.catalog) || self.missing.contains_key(&visit.catalog);
                if !is_known && names.insert(visit.catalog) && !self.is_complete(&visit.catalog)? {
                    fresh.push(visit);
                }
            }
            let sorter = Mutex::new(&mut *sorter);
            let loaded = parallel::map(CATALOGS_AT_ONCE, &self.options.stop, &fresh, |visit| {
                self.load(visit, required, &sorter)
            })?;
            level = Vec::new();
            for (visit, loaded) in fresh.into_iter().zip(loaded) {
                match loaded {
                    Loaded::Below(below) => {
                        let children = below.iter().map(|visit| visit.catalog).collect();
                        self.visited.insert(visit.catalog, children);
                        level.extend(below);
                    }
                    Loaded::Missing(reason) => drop(self.missing.insert(visit.catalog, reason)),
                }
            }
        }
        Ok(())
    }

    /// Returns the root catalog of the revision before one whose root catalog was read; none if there is none, or if its
    /// list could not be kept.
    pub(super) fn previous_of(&self, root: &ContentHash) -> Result<Option<ContentHash>, RepositoryError> {
        Ok(self.lists.get(root)?.and_then(|list| list.previous))
    }

    /// Returns true if a catalog is here with everything that it leads to.
    pub(super) fn is_complete(&self, catalog: &ContentHash) -> Result<bool, RepositoryError> {
        let name = ObjectName::new(*catalog, ObjectKind::Catalog);
        if !self.trusts || self.replica.sink.len_of(&name)?.is_none() {
            return Ok(false);
        }
        Ok(!self.condemned.map_or(Ok(false), |list| list.contains(&name))?)
    }

    fn load(
        &self,
        visit: &Visit,
        required: bool,
        sorter: &Mutex<&mut Sorter>,
    ) -> Result<Loaded, RepositoryError> {
        let name = ObjectName::new(visit.catalog, ObjectKind::Catalog);
        let what = format!("the catalog of `{}` in the revision to copy", path::shown(&visit.path));
        let Some(stored) = self.stored(&name, visit)? else {
            if required {
                let what = format!("{what} on {}", self.origin.source.describe());
                return Err(RepositoryError::Missing { what, object: name.to_string() });
            }
            return Ok(Loaded::Missing(format!("no server has {what}")));
        };
        match self.read(&stored, &name, visit, (&what, required), sorter) {
            Err(error @ (RepositoryError::Compressed { .. } | RepositoryError::Catalog { .. }))
                if !required =>
            {
                Ok(Loaded::Missing(error.to_string()))
            }
            other => other.map(Loaded::Below),
        }
    }

    /// Returns the stored bytes of a catalog; none if no server has it.
    fn stored(&self, name: &ObjectName, visit: &Visit) -> Result<Option<LargeBytes>, RepositoryError> {
        if let Some(staged) = self.replica.staged(&name.hash)? {
            return Ok(Some(staged));
        }
        if let Some(here) = self.replica.stored(name, DATABASE_MAX)? {
            return Ok(Some(here));
        }
        let path = visit.at.clone().unwrap_or_else(|| name.path());
        let Some(stored) = self.origin.object(name, path, DATABASE_MAX)? else { return Ok(None) };
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(stored.len() as u64, Ordering::Relaxed);
        self.replica.stage(&name.hash, &stored)?;
        Ok(Some(stored))
    }

    fn read(
        &self,
        stored: &[u8],
        name: &ObjectName,
        visit: &Visit,
        (what, required): (&str, bool),
        sorter: &Mutex<&mut Sorter>,
    ) -> Result<Vec<Visit>, RepositoryError> {
        let plain = decoded_object(stored, name, visit.size, (DATABASE_MAX, &self.origin.spool), what)?;
        let unreadable = |source| RepositoryError::Catalog { what: what.to_owned(), source };
        let catalog = Catalog::open(plain).map_err(unreadable)?;
        let mut objects = Vec::new();
        let list = HashList::with_sizes(&catalog, &mut |record, size| objects.push(sized(record, size)))
            .map_err(unreadable)?;
        let nested = catalog.nested().map_err(unreadable)?;
        let is_here = |path: &Vec<u8>| {
            path::is_within(path, &visit.path)
                && !nested.iter().any(|below| path::is_within(path, &below.path))
        };
        for path in self.new_paths.iter().filter(|path| required && is_here(path)) {
            if catalog.find(PathKey::of(path)).map_err(unreadable)?.is_none() {
                return Err(RepositoryError::NoPath(path::shown(path)));
            }
        }
        let below = nested.into_iter().filter(|nested| !nested.bind);
        let below = below.filter(|nested| is_selected(&nested.path, &self.options.paths));
        let below = below.filter_map(|nested| {
            Some(Visit { catalog: nested.hash?, path: nested.path, size: nested.size, at: None })
        });
        let below = below.collect();
        if self.replica.is_locked() && !self.lists.has(&name.hash) {
            self.lists.keep(&name.hash, &list);
        }
        sorter.lock().extend(objects)?;
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        (self.options.progress)(ReplicateProgress::Catalogs { done });
        Ok(below)
    }

    /// Returns the visited catalogs of a revision, or the reason why it is incomplete; `lost` objects are on no server.
    pub(super) fn catalogs_of(
        &self,
        root: &ContentHash,
        lost: &HashSet<ObjectName>,
    ) -> Result<Result<Vec<ContentHash>, String>, RepositoryError> {
        let mut found = HashSet::new();
        let mut waiting = vec![*root];
        while let Some(catalog) = waiting.pop() {
            if let Some(reason) = self.missing.get(&catalog) {
                return Ok(Err(reason.clone()));
            }
            let Some(below) = self.visited.get(&catalog).filter(|_| found.insert(catalog)) else { continue };
            if !lost.is_empty()
                && let Some(object) = self.list_of(&catalog)?.iter().find(|name| lost.contains(name))
            {
                return Ok(Err(format!("no server has object {object}")));
            }
            waiting.extend(below);
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable();
        Ok(Ok(found))
    }

    /// Returns visited catalogs by their height: first those that lead to no other visited catalog.
    pub(super) fn levels(&self, catalogs: &BTreeSet<ContentHash>) -> Vec<Vec<ContentHash>> {
        let below = |catalog: &ContentHash| self.visited.get(catalog).into_iter().flatten();
        let mut heights: HashMap<ContentHash, usize> = HashMap::new();
        // A catalog is looked at again when those below it have their heights.
        let mut waiting: Vec<(ContentHash, bool)> =
            catalogs.iter().map(|catalog| (*catalog, false)).collect();
        while let Some((catalog, is_ready)) = waiting.pop() {
            if heights.contains_key(&catalog) {
                continue;
            }
            if is_ready {
                let highest = below(&catalog).filter_map(|below| heights.get(below)).max();
                heights.insert(catalog, highest.map_or(0, |height| height + 1));
            } else {
                waiting.push((catalog, true));
                waiting.extend(below(&catalog).map(|below| (*below, false)));
            }
        }
        let mut levels = Vec::new();
        for catalog in catalogs {
            let height = heights.get(catalog).copied().unwrap_or(0);
            levels.resize(levels.len().max(height + 1), Vec::new());
            levels[height].push(*catalog);
        }
        levels
    }

    /// Returns the objects that a visited catalog names.
    fn list_of(&self, catalog: &ContentHash) -> Result<Vec<ObjectName>, RepositoryError> {
        let names = |list: &HashList| list.objects.iter().filter_map(Record::name).collect();
        if let Some(list) = self.lists.get(catalog)? {
            return Ok(names(&list));
        }
        // The list could not be kept, and the catalog is not stored yet.
        let name = ObjectName::new(*catalog, ObjectKind::Catalog);
        let what = format!("catalog {catalog}");
        let missing = || RepositoryError::Missing { what: what.clone(), object: name.to_string() };
        let stored = self.replica.staged(catalog)?.ok_or_else(missing)?;
        let plain = decoded_object(&stored, &name, None, (DATABASE_MAX, &self.origin.spool), &what)?;
        let list = Catalog::open(plain).and_then(|catalog| HashList::of(&catalog));
        list.map(|list| names(&list)).map_err(|source| RepositoryError::Catalog { what, source })
    }

    /// Returns the objects of the first set that are not in the second.
    pub(super) fn without(&self, set: &SortedSet, other: &SortedSet) -> Result<SortedSet, RepositoryError> {
        let mut sorter = self.sorter();
        sorter.extend_from(minus(set.iter(), other.iter()))?;
        sorter.finish()
    }

    /// Returns the objects that catalogs of the old head name which the new head replaced. All of them are here, so they
    /// need not be looked for one by one.
    pub(super) fn of_replaced(
        &self,
        old: Option<ContentHash>,
        new: ContentHash,
    ) -> Result<SortedSet, RepositoryError> {
        let mut sorter = self.sorter();
        let mut pairs = (old.into_iter().collect::<HashSet<_>>(), HashSet::from([new]));
        // Of a partial replica, lists may be left of catalogs whose objects it lacks.
        let is_known = self.trusts && self.options.paths.is_empty();
        while is_known && !pairs.0.is_empty() {
            let (olds, news) = pairs;
            pairs = (HashSet::new(), HashSet::new());
            for catalog in olds.difference(&news) {
                let Some(list) = self.lists.get(catalog)? else { continue };
                sorter.extend(list.objects.iter().map(|record| sized(*record, 0)))?;
                pairs.0.extend(list.children());
            }
            for catalog in news.difference(&olds) {
                pairs.1.extend(self.visited.get(catalog).into_iter().flatten());
            }
        }
        sorter.finish()
    }
}

/// Returns true if a catalog at a path is part of a replica with these paths: above, at or below one of them.
pub(crate) fn is_selected(catalog: &[u8], paths: &[Vec<u8>]) -> bool {
    paths.is_empty()
        || paths.iter().any(|wanted| path::is_within(catalog, wanted) || path::is_within(wanted, catalog))
}

/// Returns a record with the plain size of its object in place of an owner.
fn sized(record: Record, size: u64) -> Tagged {
    Tagged { record, owner: Owner(u32::try_from(size).map_or(u32::MAX - 1, |size| size.min(u32::MAX - 1))) }
}

/// Returns the plain size of an object; none if it is not known.
pub(super) fn plain_size(tagged: &Tagged) -> Option<u64> {
    (tagged.owner != Owner::SHARED).then(|| u64::from(tagged.owner.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogs_above_at_and_below_a_path_are_selected() {
        let paths = [b"/sw/el9".to_vec(), b"/data".to_vec()];
        for selected in ["", "/sw", "/sw/el9", "/sw/el9/gcc", "/data", "/data/x"] {
            assert!(is_selected(selected.as_bytes(), &paths), "{selected:?}");
        }
        for other in ["/sw/el8", "/sw/el90", "/database"] {
            assert!(!is_selected(other.as_bytes(), &paths), "{other:?}");
            assert!(is_selected(other.as_bytes(), &[]));
        }
    }
}
