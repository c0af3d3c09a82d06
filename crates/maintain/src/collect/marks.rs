//! Marks: the objects that kept revisions name, and those that only dropped ones name.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::history::Tag;
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::Reflog;
use esker_format::time::UnixTime;
use esker_repository::{OpenWork, RepositoryError, Storage, parallel};
use esker_store::Disk;

use super::revisions::{KeptRoot, Revisions};
use super::{Collect, CollectProgress};
use crate::hash_lists::{Closure, HashLists, Incomplete, Record, SortedSet, Sorter, Tagged, minus};

/// Number of concurrent requests to object storage.
const REQUESTS: usize = 16;

/// Inputs of marking, and the folder where it sorts.
pub(crate) struct Marker<'m> {
    pub(crate) collect: &'m Collect<'m>,
    pub(crate) storage: &'m Storage,
    /// True if catalogs and similar objects are stored under an alternative path, too.
    pub(crate) has_alternative_paths: bool,
    /// Disk of the storage, if that is a folder.
    pub(crate) served: Arc<dyn Disk>,
    /// Disk of the runs that are sorted.
    pub(crate) private: Arc<dyn Disk>,
    pub(crate) lists: HashLists<'m>,
    /// Folder of the runs.
    pub(crate) scratch: PathBuf,
    /// True if only some paths were replicated, so that catalogs are missing.
    pub(crate) is_partial: bool,
}

/// The kept objects.
pub(crate) struct Kept {
    pub(crate) objects: SortedSet,
    /// Catalogs of the kept revisions.
    pub(crate) catalogs: HashSet<ContentHash>,
    pub(crate) warnings: Vec<String>,
}

impl Marker<'_> {
    /// Decides which revisions are kept.
    pub(crate) fn revisions(
        &self,
        head: &Manifest,
        tags: &[Tag],
        reflog: &Reflog,
        open: &[OpenWork],
        now: UnixTime,
    ) -> Result<Revisions, RepositoryError> {
        // Made by all threads, so that the walk along the revisions finds them.
        let roots: Vec<ContentHash> = reflog
            .references()
            .iter()
            .filter(|reference| reference.object.kind == ObjectKind::Catalog)
            .map(|reference| reference.object.hash)
            .collect();
        let lenient = self.lists.lenient();
        self.each(&roots, |root| lenient.get(root).map(|_| ()))?;
        let has = |name: &ObjectName| self.has(name);
        Revisions::of(&lenient, &has, (head, tags, reflog), open, self.collect.keep, now)
    }

    /// Collects the names of all objects of kept revisions, and of those that the head and the reflog name.
    pub(crate) fn kept(
        &self,
        head: &Manifest,
        reflog: &Reflog,
        revisions: &Revisions,
    ) -> Result<Kept, RepositoryError> {
        (self.collect.progress)(CollectProgress::Mark {
            kept: revisions.kept.len() as u64,
            dropped: revisions.dropped.len() as u64,
        });
        self.refuse_incomplete(&revisions.kept)?;
        // Of the others, a damaged catalog holds up nothing: what it names can't be read any more.
        let lists = self.lists.lenient();
        let closure = self.closure(&lists, &revisions.kept_roots())?;
        let mut sorter = self.sorter();
        closure.add_objects(&lists, &mut sorter, self.collect.threads, &self.collect.stop)?;
        let unlisted = revisions.unlisted();
        let listed = reflog.references().iter().map(|reference| reference.object);
        // Kept root catalogs are in the closure, with their owners.
        let listed = listed.filter(|object| object.kind != ObjectKind::Catalog && !unlisted.contains(object));
        sorter.extend(head.objects().chain(listed).map(|object| Tagged::shared(Record::of(&object))))?;
        let warning = |incomplete: &Incomplete| {
            let catalog = incomplete.catalog;
            format!("catalog {catalog} of a kept revision is missing; what it names may be deleted")
        };
        Ok(Kept {
            objects: sorter.finish()?,
            catalogs: closure.catalogs.into_keys().collect(),
            warnings: closure.incomplete.iter().filter(|_| !self.is_partial).map(warning).collect(),
        })
    }

    /// Fails if a catalog of the head or of a tagged revision is missing: the objects that it names would be deleted.
    fn refuse_incomplete(&self, kept: &[KeptRoot]) -> Result<(), RepositoryError> {
        if self.is_partial {
            return Ok(());
        }
        let required: Vec<&KeptRoot> = kept.iter().filter(|kept| kept.required).collect();
        let roots: Vec<ContentHash> = required.iter().map(|kept| kept.root).collect();
        let closure = self.closure(&self.lists, &roots)?;
        let Some(first) = closure.incomplete.first() else { return Ok(()) };
        let revision = required.get(first.root).map(|kept| format!(" of revision {}", kept.revision));
        let what = format!("a catalog{}", revision.unwrap_or_else(|| " of several revisions".to_owned()));
        Err(RepositoryError::Missing { what, object: first.catalog.to_string() })
    }

    /// Collects the names of the objects that only dropped revisions name.
    pub(crate) fn dropped(&self, revisions: &Revisions, kept: &Kept) -> Result<SortedSet, RepositoryError> {
        let roots: Vec<ContentHash> = revisions.dropped.iter().map(|dropped| dropped.root).collect();
        let lenient = self.lists.lenient();
        let closure = self.closure(&lenient, &roots)?;
        let mut sorter = self.sorter();
        closure.add_objects(&lenient, &mut sorter, self.collect.threads, &self.collect.stop)?;
        sorter.extend(revisions.auxiliary.iter().map(Record::of).map(Tagged::shared))?;
        let all = sorter.finish()?;
        let mut sorter = self.sorter();
        sorter.extend_from(minus(all.iter(), kept.objects.iter()))?;
        sorter.finish()
    }

    fn closure(&self, lists: &HashLists<'_>, roots: &[ContentHash]) -> Result<Closure, RepositoryError> {
        Closure::of(lists, roots, self.collect.threads, &self.collect.stop)
    }

    pub(crate) fn sorter(&self) -> Sorter {
        Sorter::new(self.private.clone(), &self.scratch, self.collect.buffer).with_memory_if_full()
    }

    /// Calls `work` for every item by all threads.
    pub(crate) fn each<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: impl Fn(&T) -> Result<R, RepositoryError> + Sync,
    ) -> Result<Vec<R>, RepositoryError> {
        let is_folder = self.storage.is_folder();
        let threads = if is_folder { self.collect.threads } else { self.collect.threads.max(REQUESTS) };
        parallel::map(threads, &self.collect.stop, items, work)
    }

    /// Returns true if the storage has an object.
    fn has(&self, name: &ObjectName) -> Result<bool, RepositoryError> {
        Ok(self.size(name)?.is_some())
    }

    /// Returns the stored size of an object; none if the storage does not have it.
    pub(crate) fn size(&self, name: &ObjectName) -> Result<Option<u64>, RepositoryError> {
        Ok(self.storage.sink().len_of(name)?)
    }
}
