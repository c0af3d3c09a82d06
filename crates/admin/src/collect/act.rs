//! The steps of a collect.

use std::collections::HashSet;
use std::path::PathBuf;

use esker_format::hash::ContentHash;
use esker_format::history::History;
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog;
use esker_format::time::UnixTime;
use esker_format::write::head::sign_manifest;
use esker_format::write::history::HistoryDraft;
use esker_format::write::reflog::ReflogDraft;
use esker_store::Sink as _;

use super::condemn::{Condemned, CondemnedFile, State};
use super::largest::{extent, largest};
use super::marks::{Kept, Marker, tags};
use super::reflog::KnownReflog;
use super::revisions::{Revisions, expired_tags};
use super::{Collect, CollectPlan, Collected, Waiting, orphans, status_file, sweep};
use crate::encode::Encoder;
use crate::error::AdminError;
use crate::hash_lists::{HashLists, Record, SortedSet};
use crate::kept;
use crate::repository::{DATABASE_MAX, Repository};
use crate::signed::read_object;

/// Folder below the publisher's state for runs that are sorted.
const SCRATCH: &str = "collect";

/// A collect of one repository.
struct Run<'r> {
    marker: Marker<'r>,
    repository: &'r Repository,
    head: Manifest,
    reflog: KnownReflog,
    now: UnixTime,
    file: CondemnedFile,
}

/// What a collect found out.
struct Marked {
    revisions: Revisions,
    kept: Kept,
    doomed: SortedSet,
    orphans: Vec<Record>,
}

impl Collect<'_> {
    /// Returns what a collect would do, and changes nothing but the lists of hashes.
    pub fn dry_run(&self, repository: &Repository, now: UnixTime) -> Result<CollectPlan, AdminError> {
        let run = self.start(repository, now)?;
        let all = tags(&repository.sink, &run.head)?;
        let expired = expired_tags(&all, self.automatic_tags, now);
        let names: HashSet<&str> = expired.iter().map(|tag| tag.name.as_str()).collect();
        let left: Vec<_> = all.iter().filter(|tag| !names.contains(tag.name.as_str())).cloned().collect();
        let marked = run.mark(&left)?;
        let mut plan = run.plan(&marked)?;
        plan.tags_removed = expired.iter().map(|tag| tag.name.clone()).collect();
        plan.largest = largest(&run.marker, &marked.kept, &marked.revisions.kept)?;
        plan.waiting = run.file.read()?.map(|list| run.waiting(&list));
        Ok(plan)
    }

    /// Collects a repository.
    pub fn run(&self, repository: &Repository, now: UnixTime) -> Result<Collected, AdminError> {
        let mut run = self.start(repository, now)?;
        let tags_removed = run.prune_tags()?;
        let marked = run.mark(&tags(&repository.sink, &run.head)?)?;
        let mut collected = Collected::default();
        if let Some(list) = run.file.read()? {
            let is_due = list.state == State::Deleting || self.is_due(&list, now);
            if is_due {
                collected.deleted = sweep::sweep(&run.marker, &run.file, list, &marked.kept)?;
            } else {
                collected.waiting = Some(run.waiting(&list));
            }
        }
        if collected.waiting.is_none() {
            collected.plan = run.plan(&marked)?;
            collected.waiting = run.condemn(&marked)?;
        }
        if self.grace <= 0
            && let Some(list) = run.file.read()?
        {
            let deleted = sweep::sweep(&run.marker, &run.file, list, &marked.kept)?;
            collected.deleted.objects += deleted.objects;
            collected.deleted.bytes = collected.deleted.bytes.saturating_add(deleted.bytes);
            collected.deleted.revived += deleted.revived;
            collected.waiting = None;
        }
        collected.plan.revision = run.head.revision;
        collected.plan.kept = marked.revisions.kept.len() as u64;
        collected.plan.tags_removed = tags_removed;
        run.marker.lists.retain(&marked.kept.catalogs);
        status_file::set(&repository.sink, &[("last_gc", &status_file::date(now))])?;
        Ok(collected)
    }

    fn is_due(&self, list: &Condemned, now: UnixTime) -> bool {
        list.since.0.saturating_add(self.grace.max(0)) <= now.0
    }

    fn start<'r>(&'r self, repository: &'r Repository, now: UnixTime) -> Result<Run<'r>, AdminError> {
        let head = repository.head.manifest().clone();
        if !head.garbage_collectable {
            return Err(AdminError::NotCollectable(repository.name.to_string()));
        }
        let (served, private) = (repository.disks.served.clone(), repository.disks.private.clone());
        let sink = &*repository.sink;
        let lists = HashLists::new(sink, private.clone(), Some(repository.state()));
        let reflog = KnownReflog::read(sink, &lists, &repository.name, &head, now)?;
        let scratch = self.scratch(repository)?;
        let file = CondemnedFile::new(private.clone(), repository.state());
        let marker = Marker { collect: self, sink, served, private, lists, scratch };
        Ok(Run { marker, repository, head, reflog, now, file })
    }

    /// Makes the folder for sorting, and empties it.
    fn scratch(&self, repository: &Repository) -> Result<PathBuf, AdminError> {
        let disk = &*repository.disks.private;
        let folder = repository.state().join(SCRATCH);
        disk.make_dir(&folder).map_err(AdminError::file("making folder", &folder))?;
        for name in disk.list(&folder).map_err(AdminError::file("listing", &folder))? {
            let path = folder.join(name);
            disk.remove(&path).map_err(AdminError::file("removing leftover", &path))?;
        }
        Ok(folder)
    }
}

impl Run<'_> {
    fn mark(&self, tags: &[esker_format::history::Tag]) -> Result<Marked, AdminError> {
        let revisions = self.marker.revisions(&self.head, tags, &self.reflog.reflog, self.now)?;
        let kept = self.marker.kept(&self.head, &self.reflog.reflog, &revisions)?;
        let doomed = self.marker.dropped(&revisions, &kept)?;
        let orphans = match self.marker.collect.orphans {
            Some(age) => orphans::find(&self.marker, &kept, age, self.now)?,
            None => Vec::new(),
        };
        Ok(Marked { revisions, kept, doomed, orphans })
    }

    /// Describes what was found.
    fn plan(&self, marked: &Marked) -> Result<CollectPlan, AdminError> {
        let condemned = marked.condemned()?;
        let list = Condemned { state: State::Waiting, since: self.now, objects: condemned };
        let extent = extent(&self.marker, list.iter())?;
        Ok(CollectPlan {
            revision: self.head.revision,
            kept: marked.revisions.kept.len() as u64,
            dropped: marked.revisions.dropped.clone(),
            auxiliary: marked.revisions.auxiliary.len() as u64,
            objects: extent.objects,
            bytes: extent.bytes,
            orphans: list.objects.len() as u64 - marked.doomed.len(),
            warnings: marked.kept.warnings.clone(),
            ..CollectPlan::default()
        })
    }

    fn waiting(&self, list: &Condemned) -> Waiting {
        Waiting {
            objects: list.objects.len() as u64,
            since: list.since.0,
            until: list.since.0.saturating_add(self.marker.collect.grace.max(0)),
        }
    }

    /// Removes automatic tags that are too old from the history, and returns their names.
    ///
    /// It is a change of its own, before anything is condemned: at no moment a tag names a revision that goes.
    fn prune_tags(&mut self) -> Result<Vec<String>, AdminError> {
        let Some(hash) = self.head.history else { return Ok(Vec::new()) };
        let sink = &*self.repository.sink;
        let object = ObjectName::new(hash, ObjectKind::History);
        let bytes = read_object(sink, &object, None, DATABASE_MAX, "the history")?;
        let history = History::parse(&bytes).map_err(AdminError::History)?;
        let expired = expired_tags(history.tags(), self.marker.collect.automatic_tags, self.now);
        let names: Vec<String> = expired.iter().map(|tag| tag.name.clone()).collect();
        if names.is_empty() {
            return Ok(names);
        }
        let mut draft = HistoryDraft::continuing(&history, hash);
        draft.retain_tags(|tag| !names.contains(&tag.name));
        let mut room = Vec::new();
        let mut encoder = Encoder::for_metadata();
        let plain = draft.finish();
        let stored = encoder.encode(&plain, &mut room)?;
        let name =
            ObjectName::new(ContentHash::of(self.head.root_catalog.algorithm(), stored), ObjectKind::History);
        sink.put(&name, stored)?;
        self.head.history = Some(name.hash);
        let mut reflog = ReflogDraft::continuing(&self.reflog.reflog);
        reflog.add(name, self.now);
        self.put_head(reflog)?;
        Ok(names)
    }

    /// Lists what goes, and then forgets it: in the reflog, and in the head that names the reflog.
    fn condemn(&mut self, marked: &Marked) -> Result<Option<Waiting>, AdminError> {
        let objects = marked.condemned()?;
        let mut waiting = None;
        if !objects.is_empty() {
            let list = Condemned { state: State::Waiting, since: self.now, objects };
            self.file.write(&list)?;
            waiting = Some(self.waiting(&list));
        }
        let unlisted = marked.revisions.unlisted();
        let is_known = self.reflog.stored.is_some() && self.reflog.stored == self.head.reflog;
        if !unlisted.is_empty() || !is_known {
            let mut reflog = ReflogDraft::continuing(&self.reflog.reflog);
            reflog.retain(|reference| !unlisted.contains(&reference.object));
            self.put_head(reflog)?;
        }
        Ok(waiting)
    }

    /// Stores the reflog, and signs the head that names it.
    fn put_head(&mut self, mut reflog: ReflogDraft) -> Result<(), AdminError> {
        let repository = self.repository;
        let sink = &*repository.sink;
        let own = repository.publisher.certificate();
        let certificate = match kept::certificate(sink, &repository.head, own)? {
            Some(published) => published,
            None => {
                let mut room = Vec::new();
                let mut encoder = Encoder::for_metadata();
                let stored = encoder.encode(repository.publisher.certificate_pem().as_bytes(), &mut room)?;
                let hash = ContentHash::of(self.head.root_catalog.algorithm(), stored);
                let name = ObjectName::new(hash, ObjectKind::Certificate);
                sink.put(&name, stored)?;
                reflog.add(name, self.now);
                name
            }
        };
        sink.flush()?;
        if self.head.alternative_paths {
            sink.put_alternative(&certificate)?;
            let history = self.head.history.map(|hash| ObjectName::new(hash, ObjectKind::History));
            history.iter().try_for_each(|history| sink.put_alternative(history))?;
        }
        let bytes = reflog.finish();
        sink.put_root(reflog::PATH, &bytes)?;
        let hash = ContentHash::of(self.head.root_catalog.algorithm(), &bytes);
        if let Some(spool) = &repository.spool {
            spool.remember_reflog(&hash)?;
        }
        self.head.certificate = Some(certificate.hash);
        self.head.reflog = Some(hash);
        // Clients refuse a head that is older than the one they saw.
        self.head.timestamp = self.now.max(self.head.timestamp);
        let signed = sign_manifest(&self.head, repository.publisher.key()).map_err(AdminError::Signing)?;
        sink.put_root(manifest::PATH, &signed)?;
        self.reflog.reflog = esker_format::reflog::Reflog::parse(&bytes).map_err(AdminError::Reflog)?;
        self.reflog.stored = Some(hash);
        Ok(())
    }
}

impl Marked {
    /// Returns the names of all objects that go, sorted.
    fn condemned(&self) -> Result<Vec<Record>, AdminError> {
        let mut records = Vec::new();
        for tagged in self.doomed.iter() {
            records.push(tagged?.record);
        }
        records.extend_from_slice(&self.orphans);
        records.sort_unstable();
        records.dedup();
        Ok(records)
    }
}
