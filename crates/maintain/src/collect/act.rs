//! The steps of a collect.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::history::Tag;
use esker_format::object::ObjectName;
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_repository::{
    DATABASE_MAX, OpenWork, ReadHead, ReplicaState, Repository, RepositoryError,
    condemned::{Condemned, CondemnedFolder, State},
    head::{HeadLock, Next, exclusively},
    reserve,
    state::KNOWN_FILES,
};
use esker_store::{Disk, FileLock, Swap};

use super::deletion_log::DeletionLog;
use super::error::CollectError;
use super::largest::{extent, largest};
use super::marks::{Kept, Marker};
use super::revisions::{Revisions, expired_tags};
use super::sweep::{Deleted, sweep};
use super::{Collect, CollectPlan, Collected, Waiting, orphans};
use crate::hash_lists::{HashLists, SortedSet, Tagged};
use crate::reflog::KnownReflog;
use crate::status_file;
use crate::tags::{tags, tags_here};

/// Folder below the publisher's state for runs that are sorted.
const SCRATCH: &str = "collect";
/// File that a collect locks, so that there is one at a time.
const LOCK: &str = "collect.lock";

/// A collect of one repository.
pub(super) struct Run<'r> {
    pub(super) marker: Marker<'r>,
    pub(super) repository: &'r Repository,
    pub(super) folder: CondemnedFolder,
    /// Log of deleted objects; none in a dry run.
    pub(super) log: Option<DeletionLog>,
    pub(super) now: UnixTime,
    _lock: FileLock,
}

/// Result of marking for one head.
pub(super) struct Marked {
    pub(super) head: ReadHead,
    pub(super) kept: Kept,
    /// Open work whose bases are kept.
    pub(super) open: Vec<OpenWork>,
    revisions: Revisions,
    reflog: KnownReflog,
    /// Objects to delete.
    doomed: SortedSet,
    /// Number of these objects that no revision names.
    orphans: u64,
}

impl Collect<'_> {
    /// Returns the plan of a collect, and changes only the lists of hashes.
    pub fn dry_run(&self, repository: &Repository, now: UnixTime) -> Result<CollectPlan, CollectError> {
        let run = self.start(repository, now)?;
        let head = repository.read_head()?;
        let all = run.tags(&head)?;
        let expired: Vec<String> =
            expired_tags(&all, self.automatic_tags, now).iter().map(|tag| tag.name.clone()).collect();
        let left: Vec<Tag> = all.into_iter().filter(|tag| !expired.contains(&tag.name)).collect();
        let marked = run.mark(head, &left)?;
        let mut plan = run.plan(&marked)?;
        plan.tags_removed = expired;
        plan.largest = largest(&run.marker, &marked.kept, &marked.revisions.kept)?;
        plan.waiting = run.folder.read()?.map(|list| run.waiting(&list));
        Ok(plan)
    }

    /// Collects a repository. On a full disk, what is set aside for this is given up, then what can be made again.
    pub fn run(&self, repository: &Repository, now: UnixTime) -> Result<Collected, CollectError> {
        let (private, state) = (&*repository.disks().private, repository.state());
        let lists = HashLists::new(repository.sink(), repository.disks().private.clone(), Some(state));
        let set_aside = || reserve::release(private, state).unwrap_or(false);
        let made_again = || lists.clear() | clear(private, &state.join(KNOWN_FILES));
        let mut rooms = [&set_aside as &dyn Fn() -> bool, &made_again].into_iter();
        let mut is_full = false;
        loop {
            match self.attempt(repository, is_full, now) {
                Err(CollectError::Repository(error)) if error.is_full() => {
                    if !rooms.any(|make_room| make_room()) {
                        return Err(error.into());
                    }
                    is_full = true;
                }
                outcome => {
                    if repository.storage().is_folder() {
                        reserve::keep(private, state);
                    }
                    return outcome;
                }
            }
        }
    }

    fn attempt(
        &self,
        repository: &Repository,
        is_full: bool,
        now: UnixTime,
    ) -> Result<Collected, CollectError> {
        let mut run = self.start(repository, now)?;
        run.marker.lists.are_written = !is_full;
        run.log = self.log.as_deref().map(|path| DeletionLog::open(path, now)).transpose()?;
        let tags_removed = run.prune_tags()?;
        let mut marked = run.mark_published()?;
        let mut collected = Collected::default();
        if let Some(list) = run.folder.read()? {
            if list.state() == State::Deleting || run.is_due(&list) {
                collected.deleted = sweep(&run, &mut marked)?;
            } else {
                collected.waiting = Some(run.waiting(&list));
            }
        }
        if collected.waiting.is_none() {
            (collected.plan, collected.waiting) = run.condemn(&mut marked)?;
        }
        if self.grace <= 0 && collected.waiting.take().is_some() {
            let deleted: Deleted = sweep(&run, &mut marked)?;
            collected.deleted.add(&deleted);
        }
        collected.plan.revision = marked.head.verified.revision();
        collected.plan.kept = marked.revisions.kept.len() as u64;
        collected.plan.open.clone_from(&marked.open);
        collected.plan.tags_removed = tags_removed;
        run.marker.lists.retain(&marked.kept.catalogs);
        let _lock = repository.lock_head(&self.stop)?;
        status_file::set(repository.sink(), &[("last_gc", &status_file::date(now))])?;
        Ok(collected)
    }

    fn start<'r>(&'r self, repository: &'r Repository, now: UnixTime) -> Result<Run<'r>, CollectError> {
        if !repository.head().manifest().garbage_collectable {
            return Err(CollectError::NotCollectable(repository.name().to_string()));
        }
        let path = repository.state().join(LOCK);
        let lock = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
        let lock = lock.or_held(RepositoryError::locked(path.display().to_string()))?;
        let (served, private) = (repository.disks().served.clone(), repository.disks().private.clone());
        let lists = HashLists::new(repository.sink(), private.clone(), Some(repository.state()));
        let scratch = self.scratch(repository)?;
        let is_partial = repository.is_replica()
            && ReplicaState::read(repository.storage().place())?.is_some_and(|replica| replica.is_partial());
        let has_alternative_paths = repository.head().alternative_paths();
        let marker = Marker {
            collect: self,
            storage: repository.storage(),
            has_alternative_paths,
            served,
            private,
            lists,
            scratch,
            is_partial,
        };
        Ok(Run { marker, repository, folder: repository.condemned(), log: None, now, _lock: lock })
    }

    /// Makes the folder for sorting, and empties it.
    fn scratch(&self, repository: &Repository) -> Result<PathBuf, RepositoryError> {
        let disk = &*repository.disks().private;
        let folder = repository.state().join(SCRATCH);
        disk.make_dir(&folder).map_err(RepositoryError::file("making folder", &folder))?;
        for name in disk.list(&folder).map_err(RepositoryError::file("listing", &folder))? {
            let path = folder.join(name);
            disk.remove(&path).map_err(RepositoryError::file("removing leftover", &path))?;
        }
        Ok(folder)
    }
}

impl Marked {
    /// Returns true if work began since then on a revision that is not kept.
    pub(super) fn may_miss(&self, work: &OpenWork) -> bool {
        !self.open.iter().any(|known| known.id == work.id)
            && work.root_hashes().any(|root| !self.kept.catalogs.contains(&root))
    }
}

impl Run<'_> {
    /// Marks for the head that is published now.
    pub(super) fn mark_published(&self) -> Result<Marked, RepositoryError> {
        self.mark_head(self.repository.read_head()?)
    }

    /// Marks for a head.
    pub(super) fn mark_head(&self, head: ReadHead) -> Result<Marked, RepositoryError> {
        let tags = self.tags(&head)?;
        self.mark(head, &tags)
    }

    /// Returns the tags in the history of a head, newest first; of a replica only those whose revisions it has.
    fn tags(&self, head: &ReadHead) -> Result<Vec<Tag>, RepositoryError> {
        let sink = self.repository.sink();
        if !self.repository.is_replica() {
            return tags(sink, head.verified.manifest());
        }
        let all = match tags(sink, head.verified.manifest()) {
            Err(RepositoryError::Missing { .. }) => Vec::new(),
            other => other?,
        };
        tags_here(sink, all)
    }

    fn mark(&self, head: ReadHead, tags: &[Tag]) -> Result<Marked, RepositoryError> {
        let manifest = head.verified.manifest();
        let (sink, lists) = (self.repository.sink(), &self.marker.lists);
        let reflog = KnownReflog::read(sink, lists, self.repository.name(), manifest, self.now)?;
        let open = self.repository.open_works().read()?;
        let revisions = self.marker.revisions(manifest, tags, &reflog.reflog, &open, self.now)?;
        let kept = self.marker.kept(manifest, &reflog.reflog, &revisions)?;
        let mut doomed = self.marker.dropped(&revisions, &kept)?;
        let mut orphans = 0;
        if let Some(age) = self.marker.collect.orphans {
            let dropped = doomed.len();
            let found = orphans::find(&self.marker, &kept, age, self.now)?;
            let mut sorter = self.marker.sorter();
            sorter.extend_from(doomed.iter())?;
            sorter.extend(found.into_iter().map(Tagged::shared))?;
            doomed = sorter.finish()?;
            orphans = doomed.len() - dropped;
        }
        Ok(Marked { head, kept, open, revisions, reflog, doomed, orphans })
    }

    /// Describes what was found.
    fn plan(&self, marked: &Marked) -> Result<CollectPlan, RepositoryError> {
        let extent = extent(&self.marker, marked.doomed.iter())?;
        Ok(CollectPlan {
            revision: marked.head.verified.revision(),
            kept: marked.revisions.kept.len() as u64,
            dropped: marked.revisions.dropped.clone(),
            auxiliary: marked.revisions.auxiliary.len() as u64,
            objects: extent.objects,
            bytes: extent.bytes,
            orphans: marked.orphans,
            open: marked.open.clone(),
            warnings: marked.kept.warnings.clone(),
            ..CollectPlan::default()
        })
    }

    fn is_due(&self, list: &Condemned) -> bool {
        list.since().0.saturating_add(self.marker.collect.grace.max(0)) <= self.now.0
    }

    fn waiting(&self, list: &Condemned) -> Waiting {
        let since = list.since().0;
        let until = since.saturating_add(self.marker.collect.grace.max(0));
        Waiting { objects: list.count(), since, until }
    }

    /// Removes automatic tags that are too old from the history, and returns their names.
    ///
    /// It is a change of its own, before anything is condemned: at no moment a tag names a revision that goes.
    fn prune_tags(&self) -> Result<Vec<String>, RepositoryError> {
        let Some(age) = self.marker.collect.automatic_tags else { return Ok(Vec::new()) };
        // The history of a replica is signed elsewhere.
        if self.repository.is_replica() {
            return Ok(Vec::new());
        }
        let before = UnixTime(self.now.0.saturating_sub(age));
        exclusively(self.repository, &self.marker.collect.stop, |lock| {
            let mut history = lock.history()?;
            let expired: Vec<String> =
                history.remove_automatic(before).into_iter().rev().map(|tag| tag.name).collect();
            if expired.is_empty() {
                return Ok((None, expired));
            }
            self.mend_reflog(lock)?;
            Ok((Some(Next { history: Some(history), ..lock.same_revision(self.now) }), expired))
        })
    }

    /// Lists the objects to delete, then removes their revisions from the reflog, and signs a head that names it.
    fn condemn(&self, marked: &mut Marked) -> Result<(CollectPlan, Option<Waiting>), RepositoryError> {
        let mut plan = self.plan(marked)?;
        let mut lock = self.repository.lock_head(&self.marker.collect.stop)?;
        loop {
            if lock.head().bytes != marked.head.bytes {
                *marked = self.mark_head(lock.head().clone())?;
                plan = self.plan(marked)?;
            }
            let mut waiting = None;
            if marked.doomed.len() > 0 {
                self.folder.write(self.now, marked.doomed.len(), &mut names(&marked.doomed))?;
                self.log.as_ref().map_or(Ok(()), |log| log.condemned(&plan))?;
                waiting = self.folder.read()?.map(|list| self.waiting(&list));
            }
            let forgotten: HashSet<ContentHash> =
                marked.revisions.unlisted().iter().map(|object| object.hash).collect();
            let named = lock.head().verified.manifest().reflog;
            let is_known = marked.reflog.stored.is_some() && marked.reflog.stored == named;
            if forgotten.is_empty() && is_known {
                return Ok((plan, waiting));
            }
            self.mend_reflog(&lock)?;
            if lock.publish(Next { forgotten, ..lock.same_revision(self.now) })? == Swap::Replaced {
                drop(lock);
                // What is kept is still the same.
                marked.head = self.repository.read_head()?;
                return Ok((plan, waiting));
            }
            lock.read_again()?;
        }
    }

    /// Replaces a missing or damaged reflog with a rebuilt one.
    fn mend_reflog(&self, lock: &HeadLock<'_>) -> Result<(), RepositoryError> {
        let sink = self.repository.sink();
        let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
        if stored.is_some_and(|bytes| Reflog::parse(&bytes).is_ok()) {
            return Ok(());
        }
        let head = lock.head().verified.manifest();
        let draft = crate::reflog::rebuild(sink, &self.marker.lists, self.repository.name(), head, self.now)?;
        Ok(sink.put_root(reflog::PATH, &draft.finish())?)
    }
}

/// Removes the files in a folder; false if there is none.
fn clear(disk: &dyn Disk, folder: &Path) -> bool {
    let names = disk.list(folder).unwrap_or_default();
    names.iter().fold(false, |is_cleared, name| disk.remove(&folder.join(name)).is_ok() | is_cleared)
}

/// Returns the names of a set in their own order, which is by algorithm first.
fn names(set: &SortedSet) -> impl Iterator<Item = Result<ObjectName, RepositoryError>> {
    let algorithms = [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128];
    algorithms.into_iter().flat_map(move |algorithm| {
        set.iter().filter_map(move |tagged| match tagged {
            Ok(tagged) => tagged.record.name().filter(|name| name.hash.algorithm() == algorithm).map(Ok),
            Err(error) => Some(Err(error)),
        })
    })
}
