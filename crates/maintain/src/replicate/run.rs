//! The steps of a replication.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::master_keys::MasterKeys;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog;
use esker_format::time::UnixTime;
use esker_repository::{
    DATABASE_MAX, LOCK_WAIT, OpenStorage, ReplicaState, RepositoryError, SkippedRevision,
    head::wait_for_lock, signed::SMALL_FILE_MAX,
};
use esker_store::LargeBytes;

use super::commit::{Prepared, Switched};
use super::error::ReplicateError;
use super::fetcher::Fetcher;
use super::history::{CopiedHistory, Tagged, described};
use super::offer::Offer;
use super::options::{Replicate, Replicated, ReplicationPlan, RevisionLimit};
use super::origin::Origin;
use super::replica::{Replica, fingerprint};
use super::retrying::Retrying;
use super::walk::{Tree, Walker, plain_size};
use crate::hash_lists::{HashLists, SortedSet, Sorter};
use crate::status_file;

/// Attempts to switch the head, of which all but the first follow a collect or another program's change.
const ATTEMPTS: u32 = 4;
/// File that exists while a replication is under way.
const IN_PROGRESS: &str = ".cvmfs_is_snapshotting";

/// Revisions that are copied besides the head.
struct Others {
    history: CopiedHistory,
    /// Revisions without tags between the old head and the new one.
    between: Vec<Tagged>,
    /// Objects of all these revisions that the head does not name.
    wanted: SortedSet,
}

/// Maximum number of revisions without tags that one run copies.
const BETWEEN_MAX: usize = 10_000;

impl Replicate<'_> {
    /// Returns what a replication would fetch, and changes nothing.
    pub fn dry_run(&self, place: impl OpenStorage, now: UnixTime) -> Result<ReplicationPlan, ReplicateError> {
        let storage = place.storage()?;
        let keys = self.master_keys()?;
        let replica = Replica::look(storage, &self.name)?;
        let origin = self.origin(&replica);
        let before = head_of(&replica)?;
        let offer = Offer::fetch(&origin, &replica, self, &keys, now)?;
        let lists = self.lists(&replica);
        let mut walker = Walker::new(self, &origin, &replica, &lists);
        walker.trusts = !self.full && replica.is_complete(&self.path_texts())?;
        let condemned = replica.condemned().map(|folder| folder.read()).transpose()?.flatten();
        walker.condemned = condemned.as_ref();
        walker.new_paths = self.new_paths(replica.remembered.as_ref());
        let (named, wanted) = self.walk_head(&mut walker, &offer, before.as_ref())?;
        let others = self.walk_others(&mut walker, &offer, &named, &origin, &replica, before.as_ref())?;
        let mut plan = ReplicationPlan {
            before: before.map(|head| head.revision),
            revision: offer.head.revision(),
            catalogs: walker.fetched.load(Ordering::Relaxed),
            ..ReplicationPlan::default()
        };
        let fetcher = Fetcher::new(self, &origin, &replica);
        for tagged in wanted.iter().chain(others.wanted.iter()) {
            let tagged = tagged?;
            if let Some(name) = tagged.record.name()
                && !fetcher.is_here(&name)?
            {
                plan.objects += 1;
                plan.plain_bytes = plan.plain_bytes.saturating_add(plain_size(&tagged).unwrap_or(0));
            }
        }
        for tagged in &others.history.revisions {
            match walker.catalogs_of(&tagged.root, &HashSet::new())? {
                Ok(catalogs) => plan.revisions += u64::from(!catalogs.is_empty()),
                Err(reason) => {
                    let (revision, tags) = (tagged.revision, tagged.tags.clone());
                    plan.skipped.push(SkippedRevision { revision, tags, reason });
                }
            }
        }
        Ok(plan)
    }

    /// Replicates into the storage of a place: a folder, which is made if it does not exist, or the object storage that
    /// is remembered there.
    pub fn run(&self, place: impl OpenStorage, now: UnixTime) -> Result<Replicated, ReplicateError> {
        let storage = place.storage()?;
        let begun = Instant::now();
        let keys = self.master_keys()?;
        if ReplicaState::of(&storage)?.is_none() {
            // Nothing is made for a repository that the servers don't have.
            let absent = Replica::look(storage.clone(), &self.name)?;
            Offer::fetch(&self.origin(&absent), &absent, self, &keys, now)?;
        }
        let mut replica = Replica::open(storage, &self.name)?;
        let mut state = replica.remembered.clone().unwrap_or_default();
        state.attempted = now.0;
        let outcome = self.attempts(&mut replica, &mut state, &keys, now);
        if replica.remembered.is_none() && outcome.is_err() {
            // No head was verified, so nothing is remembered.
            return outcome;
        }
        // The next run removes it if this fails.
        let removed = replica.remove_root_file(IN_PROGRESS);
        match outcome {
            Ok(mut done) => {
                self.asked(&mut state);
                state.failure = None;
                state.succeeded = Some(now.0);
                replica.remember(state)?;
                removed?;
                done.seconds = begun.elapsed().as_secs_f64();
                Ok(done)
            }
            Err(error) => {
                state.failure = Some(crate::info::causes(&error));
                // The error that matters is the first one.
                let _ = replica.remember(state);
                Err(error)
            }
        }
    }

    /// Writes files in the root of the replica. A collect that takes the lock removes unfinished ones.
    fn locked(
        &self,
        replica: &Replica,
        write: impl FnOnce() -> Result<(), RepositoryError>,
    ) -> Result<(), RepositoryError> {
        let locked = || wait_for_lock(&replica.storage, true, (Some(LOCK_WAIT), |_| {}), &self.stop);
        let _lock = replica.storage.is_folder().then(locked).transpose()?;
        write()
    }

    /// Notes what this run was asked for.
    fn asked(&self, state: &mut ReplicaState) {
        state.name = self.name.to_string();
        state.servers.clone_from(&self.servers);
        state.keys = String::from_utf8_lossy(&self.keys).into_owned();
        (state.paths, state.revisions) = (self.path_texts(), self.revisions.number());
        state.reserve = self.reserve.or(state.reserve);
    }

    fn attempts(
        &self,
        replica: &mut Replica,
        state: &mut ReplicaState,
        keys: &MasterKeys,
        now: UnixTime,
    ) -> Result<Replicated, ReplicateError> {
        let mut done = Replicated::default();
        for _ in 0..ATTEMPTS {
            let origin = self.origin(replica);
            let offer = Offer::fetch(&origin, replica, self, keys, now)?;
            state.upstream_revision = offer.head.revision();
            if replica.remembered.is_none() {
                // The head is verified. From now on, a run that was killed is continued.
                self.asked(state);
                replica.remember(state.clone())?;
            }
            let is_same = self.is_up_to_date(replica, &offer)?;
            if is_same || self.copy(replica, state, &origin, &offer, &mut done, now)? {
                done.revision = offer.head.revision();
                done.root = offer.head.root_catalog().hash.to_string();
                if is_same {
                    if let Some(reflog) = replica.sink.read(reflog::PATH, DATABASE_MAX)? {
                        // A run that was killed may have left the one before.
                        self.tell_spool(replica, &offer, &reflog)?;
                    }
                    done.before = Some(done.revision);
                    self.locked(replica, || self.set_status(replica, now))?;
                }
                return Ok(done);
            }
        }
        Err(RepositoryError::Moving.into())
    }

    /// Returns true if the servers offer exactly the head that is here, with everything that was asked for.
    fn is_up_to_date(&self, replica: &Replica, offer: &Offer) -> Result<bool, RepositoryError> {
        let is_same = replica.manifest()?.as_ref() == Some(&offer.manifest)
            && replica.root_file(esker_format::whitelist::PATH)?.as_ref() == Some(&offer.whitelist);
        let revisions = replica.remembered.as_ref().map(|known| known.revisions);
        // What an earlier run left out may be there by now; versions before this one didn't record it.
        let left_out = replica.remembered.as_ref().and_then(|known| known.left_out.as_ref());
        let is_asked =
            !self.full && revisions == Some(self.revisions.number()) && left_out.is_some_and(Vec::is_empty);
        Ok(is_same && is_asked && replica.is_complete(&self.path_texts())? && has_all_named(replica, offer)?)
    }

    /// Copies what is missing and switches the head; false if that has to be repeated.
    fn copy(
        &self,
        replica: &mut Replica,
        state: &mut ReplicaState,
        origin: &Origin,
        offer: &Offer,
        done: &mut Replicated,
        now: UnixTime,
    ) -> Result<bool, ReplicateError> {
        let text = format!("{}\n", status_file::date(now));
        self.locked(replica, || Ok(replica.sink.put_root(IN_PROGRESS, text.as_bytes())?))?;
        let before = replica.manifest()?;
        let whitelist_before = replica.root_file(esker_format::whitelist::PATH)?;
        let head = head_of(replica)?;
        done.before = head.as_ref().map(|head| head.revision);
        let folder = replica.condemned();
        let collections = folder.as_ref().map(|folder| folder.collections()).transpose()?;
        let condemned = folder.as_ref().map(|folder| folder.read()).transpose()?.flatten();
        let lists = self.lists(replica);
        let mut walker = Walker::new(self, origin, replica, &lists);
        walker.trusts = !self.full && replica.is_complete(&self.path_texts())?;
        walker.condemned = condemned.as_ref();
        walker.new_paths = self.new_paths(Some(state));
        let (named, wanted) = self.walk_head(&mut walker, offer, head.as_ref())?;
        let trusts = walker.trusts;
        let fetcher = Fetcher::new(self, origin, replica);
        // The objects of the head arrive while the other revisions are read.
        let others = std::thread::scope(|scope| {
            let fetched = scope.spawn(|| fetcher.fetch(&wanted, true));
            let others = self.walk_others(&mut walker, offer, &named, origin, replica, head.as_ref());
            if others.is_err() {
                fetcher.give_up();
            }
            let fetched = fetched.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            fetched.and(others)
        })?;
        let lost = fetcher.fetch(&others.wanted, false)?;
        let (roots, catalogs) = complete_revisions(&walker, offer, &others, &lost, done)?;
        let catalogs = walker.levels(&catalogs);
        let small = small_objects(replica, origin, offer, others.history.object.as_ref())?;
        let mut prepared = Prepared { before, collections, roots, catalogs, small, ..Prepared::default() };
        // Of a list that began or ended meanwhile, the commit finds out itself.
        let named = wanted.iter().chain(others.wanted.iter());
        let named = named.filter_map(|tagged| tagged.map(|tagged| tagged.record.name()).transpose());
        let catalogs =
            prepared.catalogs.iter().flatten().map(|hash| Ok(ObjectName::new(*hash, ObjectKind::Catalog)));
        let small = prepared.small.iter().map(|(name, _)| Ok(*name));
        prepared.revived = replica.condemned_of(named.chain(catalogs).chain(small))?;
        count(done, &walker, &fetcher);
        drop(fetcher);
        drop(walker);
        if !trusts {
            // Catalogs with another selection of paths are about to be stored: if that is interrupted, none is trusted.
            state.complete = None;
            replica.remember(state.clone())?;
        }
        if self.switch(replica, offer, &prepared, now)? == Switched::Again {
            done.skipped.clear();
            return Ok(false);
        }
        done.changed = prepared.before.as_ref() != Some(&offer.manifest)
            || whitelist_before.as_ref() != Some(&offer.whitelist);
        state.left_out = Some(done.skipped.clone());
        state.complete = Some(fingerprint(&offer.manifest));
        replica.clear_staging();
        Ok(true)
    }

    /// Visits the catalogs of the head, and returns the objects that they name, and those among them that may be absent.
    fn walk_head(
        &self,
        walker: &mut Walker<'_>,
        offer: &Offer,
        before: Option<&Manifest>,
    ) -> Result<(SortedSet, SortedSet), ReplicateError> {
        let root = offer.head.root_catalog();
        let (root_path, size) = (Some(offer.head.path(root)), offer.head.root_catalog_size());
        let mut sorter = walker.sorter();
        walker.trees(vec![Tree { root: root.hash, root_path, size }], true, &mut sorter)?;
        let named = sorter.finish()?;
        let replaced = walker.of_replaced(before.map(|head| head.root_catalog), root.hash)?;
        let wanted = walker.without(&named, &replaced)?;
        Ok((named, wanted))
    }

    /// Visits the catalogs of the other revisions, and returns their objects that the head does not name.
    fn walk_others(
        &self,
        walker: &mut Walker<'_>,
        offer: &Offer,
        named: &SortedSet,
        origin: &Origin,
        replica: &Replica,
        before: Option<&Manifest>,
    ) -> Result<Others, ReplicateError> {
        let history = CopiedHistory::fetch(self, origin, replica, &offer.head)?;
        let mut sorter = walker.sorter();
        let tree = |tagged: &Tagged| Tree { root: tagged.root, root_path: None, size: tagged.size };
        walker.trees(history.revisions.iter().map(tree).collect(), false, &mut sorter)?;
        let between = self.between(walker, offer, before, &mut sorter)?;
        let wanted = walker.without(&sorter.finish()?, named)?;
        Ok(Others { history, between, wanted })
    }

    /// Visits the revisions without tags between the old head and the new one, if the repository keeps all revisions. A
    /// replica of CernVM-FS that copies from this one follows them and fails if one is missing.
    fn between(
        &self,
        walker: &mut Walker<'_>,
        offer: &Offer,
        before: Option<&Manifest>,
        sorter: &mut Sorter,
    ) -> Result<Vec<Tagged>, ReplicateError> {
        let mut found = Vec::new();
        if before.is_none() || offer.head.garbage_collectable() || self.revisions != RevisionLimit::All {
            return Ok(found);
        }
        let mut next = walker.previous_of(&offer.head.root_catalog().hash)?;
        while let Some(root) = next.filter(|_| found.len() < BETWEEN_MAX) {
            if walker.is_complete(&root)? || Some(root) == before.map(|head| head.root_catalog) {
                break;
            }
            walker.trees(vec![Tree { root, root_path: None, size: None }], false, sorter)?;
            found.push(Tagged { root, revision: 0, size: None, tags: Vec::new() });
            next = walker.previous_of(&root)?;
        }
        Ok(found)
    }

    fn master_keys(&self) -> Result<MasterKeys, RepositoryError> {
        MasterKeys::parse(&self.keys).map_err(|error| RepositoryError::PublicKey {
            path: format!("of {}", self.name).into(),
            reason: error.to_string(),
        })
    }

    fn origin(&self, replica: &Replica) -> Origin {
        let stop = self.stop.clone();
        let objects = Arc::new(Retrying::start(self.source.clone(), self.retries, stop.clone()));
        Origin { source: self.source.clone(), objects, stop, spool: replica.scratch() }
    }

    fn lists<'r>(&self, replica: &'r Replica) -> HashLists<'r> {
        HashLists::new(&*replica.sink, replica.disk().clone(), replica.state.as_deref())
    }

    /// Returns the paths that no successful run copied. One that is mistyped is refused; one that a later revision lacks is not.
    fn new_paths(&self, state: Option<&ReplicaState>) -> Vec<Vec<u8>> {
        let known = state.filter(|state| state.succeeded.is_some()).map_or(&[][..], |state| &state.paths);
        let is_new = |path: &&Vec<u8>| !known.contains(&esker_repository::path::shown(path));
        self.paths.iter().filter(is_new).cloned().collect()
    }

    pub(super) fn path_texts(&self) -> Vec<String> {
        let mut paths: Vec<String> =
            self.paths.iter().map(|path| esker_repository::path::shown(path)).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

/// Returns the roots of the revisions that are here with all their objects, that of the head first, and the catalogs of
/// these revisions. Other revisions than the head are left out if an object of them is lost.
fn complete_revisions(
    walker: &Walker<'_>,
    offer: &Offer,
    others: &Others,
    lost: &HashSet<ObjectName>,
    done: &mut Replicated,
) -> Result<(Vec<ContentHash>, BTreeSet<ContentHash>), ReplicateError> {
    let root = offer.head.root_catalog().hash;
    let below = walker.catalogs_of(&root, &HashSet::new())?;
    let below = below.map_err(|what| RepositoryError::Missing { what, object: root.to_string() })?;
    let (mut roots, mut catalogs) = (vec![root], BTreeSet::from_iter(below));
    for tagged in others.history.revisions.iter().chain(&others.between) {
        match walker.catalogs_of(&tagged.root, lost)? {
            Ok(below) => {
                done.revisions += u64::from(!below.is_empty());
                catalogs.extend(below);
                roots.push(tagged.root);
            }
            Err(reason) => {
                let (revision, tags) = (tagged.revision, tagged.tags.clone());
                done.skipped.push(SkippedRevision { revision, tags, reason });
            }
        }
    }
    Ok((roots, catalogs))
}

/// Returns the stored bytes of the certificate, the history and the other small objects that the head names.
fn small_objects(
    replica: &Replica,
    origin: &Origin,
    offer: &Offer,
    history: Option<&(ObjectName, LargeBytes)>,
) -> Result<Vec<(ObjectName, LargeBytes)>, ReplicateError> {
    let mut small = vec![offer.certificate.clone()];
    small.extend(history.cloned());
    for name in described(&offer.head) {
        let stored = match replica.stored(&name, SMALL_FILE_MAX)? {
            Some(stored) => Some(stored),
            None => origin.object(&name, offer.head.path(name), SMALL_FILE_MAX)?,
        };
        let what = || format!("an object that the head names on {}", origin.source.describe());
        let stored =
            stored.ok_or_else(|| RepositoryError::Missing { what: what(), object: name.to_string() })?;
        small.push((name, stored));
    }
    Ok(small)
}

/// Adds what was fetched to the result.
fn count(done: &mut Replicated, walker: &Walker<'_>, fetcher: &Fetcher<'_>) {
    done.catalogs += walker.fetched.load(Ordering::Relaxed);
    done.catalog_bytes += walker.fetched_bytes.load(Ordering::Relaxed);
    done.objects += fetcher.objects.load(Ordering::Relaxed);
    done.bytes += fetcher.bytes.load(Ordering::Relaxed);
    done.present = fetcher.present.load(Ordering::Relaxed);
}

/// Returns true if everything that a head names is here.
fn has_all_named(replica: &Replica, offer: &Offer) -> Result<bool, RepositoryError> {
    let head = &offer.head;
    let named = [head.root_catalog(), offer.certificate.0].into_iter();
    let named = named.chain(head.history()).chain(described(head));
    Ok(replica.storage.missing(&named.collect::<Vec<_>>())?.is_empty())
}

/// Returns the head of the replica; none if there is none that can be read.
fn head_of(replica: &Replica) -> Result<Option<Manifest>, RepositoryError> {
    Ok(replica.manifest()?.and_then(|bytes| Manifest::parse(&bytes).ok()))
}
