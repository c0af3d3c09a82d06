//! Steps that every kind of publish shares: opening the published revision, and committing the new one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use esker_format::catalog::Flags;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_repository::{
    Base, BranchRequest, Encoder, Repository, RepositoryError, Settings, entry, path, published::Published,
    settings::DAY,
};
use esker_store::Sink;

use crate::balance;
use crate::changes::{Changes, NewTree};
use crate::choices::Choices;
use crate::commit::{self, TagRequest};
use crate::content_index::ContentIndex;
use crate::error::PublishError;
use crate::file_index::FileIndex;
use crate::filter::Filter;
use crate::follow_rules::Rules;
use crate::limits;
use crate::path_changes;
use crate::pipeline::folder::FolderFiles;
use crate::pipeline::{Content, Pipeline};
use crate::plan::{Comparison, Differences, Plan};
use crate::profiles::{NamedProfile, Profiles};
use crate::progress::{Counters, Phase, Progress};
use crate::remarks::RemarkKind;
use crate::report::Report;
use crate::shrink::Shrink;
use crate::snapshots;
use crate::source::Source;
use crate::submission_rules::CommitRules;

/// Seconds before the expiry of a whitelist from which publishers are warned.
const WARN_BEFORE: i64 = 7 * DAY;

/// Maximum number of threads that read; more only make a disk seek.
const READERS_MAX: usize = 8;

/// Options for a new revision.
pub struct PublishOptions<'r> {
    /// The tag of the new revision.
    pub tag: TagRequest,
    /// The number of threads that compress.
    pub threads: usize,
    /// Set to stop the publish early.
    pub stop: Arc<AtomicBool>,
    /// Profiles to store for this and all later revisions.
    pub profiles: Vec<NamedProfile>,
    /// Ignored paths, and the owners of the others.
    pub filter: Filter,
    /// Callback for progress.
    pub progress: &'r mut dyn FnMut(Progress),
    /// Callback that confirms a change that removes most of the repository; `false` ends the publish.
    pub confirm_shrink: &'r mut dyn FnMut(Shrink) -> bool,
}

impl PublishOptions<'_> {
    pub(crate) fn check_stop(&self) -> Result<(), PublishError> {
        if self.stop.load(Ordering::Relaxed) { Err(RepositoryError::Interrupted.into()) } else { Ok(()) }
    }
}

/// Inputs of a new revision.
pub(crate) struct Context<'r> {
    pub(crate) repository: &'r Repository,
    pub(crate) base: Base,
    /// The revision of the base.
    pub(crate) published: Published,
    pub(crate) file_index: FileIndex,
    pub(crate) rules: Rules,
    pub(crate) filter: Filter,
    pub(crate) counters: Counters,
    /// The directory of the repository that changes.
    pub(crate) target: Vec<u8>,
    pub(crate) now: UnixTime,
    pub(crate) started: Instant,
    /// Rules of submissions; none for a publisher with keys.
    pub(crate) submission: Option<CommitRules<'r>>,
    /// Decisions about the changes of a transaction; none for other changes.
    pub(crate) choices: Option<Choices>,
    empty: Empty,
}

/// Attempts of a change whose objects are collected while it is prepared.
const ATTEMPTS: u32 = 5;

/// Computes and publishes a change. Retries on the newest revision if objects of its base were collected meanwhile.
pub(crate) fn until_kept<T>(
    repository: &Repository,
    branch: Option<&BranchRequest>,
    mut attempt: impl FnMut(Base) -> Result<T, PublishError>,
) -> Result<T, PublishError> {
    let mut base = repository.begin_on(branch)?;
    let mut missing = 0;
    for _ in 0..ATTEMPTS {
        let held = repository.hold(&base).map_err(PublishError::from);
        missing = match held.and_then(|_held| attempt(base)) {
            Err(PublishError::Repository(RepositoryError::Collected { objects })) => objects,
            // A catalog or the history of a head that is no longer kept.
            Err(PublishError::Repository(RepositoryError::Missing { .. }))
                if repository.collected_since(&base)? =>
            {
                1
            }
            other => return other,
        };
        base = repository.begin_again(branch)?;
    }
    Err(RepositoryError::Collected { objects: missing }.into())
}

/// The object of an empty file, which markers of nested catalogs are.
pub(crate) struct Empty {
    name: ObjectName,
    stored: Vec<u8>,
    flags: Flags,
}

impl Empty {
    pub(crate) fn new(settings: &Settings, algorithm: HashAlgorithm) -> Result<Self, PublishError> {
        let mut room = Vec::new();
        let stored = Encoder::new(settings.compression, settings.deflate)?.encode(b"", &mut room)?.to_vec();
        let name = ObjectName::new(ContentHash::of(algorithm, &stored), ObjectKind::File);
        Ok(Self { name, stored, flags: Flags(Flags::storage(algorithm, settings.compression)) })
    }

    /// Returns the name of the object, and the flags that say how it is stored.
    pub(crate) fn content(&self) -> (ContentHash, Flags) {
        (self.name.hash, self.flags)
    }
}

impl<'r> Context<'r> {
    /// Creates the inputs of a change of a given revision.
    pub(crate) fn on(
        repository: &'r Repository,
        base: Base,
        target: &[u8],
        now: UnixTime,
    ) -> Result<Self, PublishError> {
        let started = Instant::now();
        let target = path::normalise(target)?;
        let file_index = FileIndex::read(repository.disks().private.clone(), repository.state(), &target);
        Ok(Self { target, file_index, started, ..Self::without_index(repository, base, now)? })
    }

    /// Creates the inputs like `on`, without an index of the source files.
    pub(crate) fn without_index(
        repository: &'r Repository,
        base: Base,
        now: UnixTime,
    ) -> Result<Self, PublishError> {
        let started = Instant::now();
        let sink: Arc<dyn Sink> = repository.storage().sink().clone();
        Ok(Self {
            file_index: FileIndex::none(repository.disks().private.clone()),
            empty: Empty::new(repository.settings(), repository.head().hash_algorithm())?,
            counters: Counters::default(),
            published: Published::with_root(sink, base.root, base.size),
            rules: Rules::default(),
            filter: Filter::default(),
            base,
            repository,
            submission: None,
            choices: None,
            target: Vec::new(),
            now,
            started,
        })
    }

    pub(crate) fn comparison(&self) -> Comparison<'_> {
        Comparison {
            settings: self.repository.settings(),
            file_index: &self.file_index,
            rules: &self.rules,
            filter: &self.filter,
            empty: self.empty.content(),
        }
    }

    /// Makes and removes catalogs in changed directories as the rules of `.cvmfsdirtab` say.
    pub(crate) fn follow_rules(&self, changes: &mut Changes) -> Result<(), PublishError> {
        let published = &self.published;
        if Rules::change_in(changes) {
            // What was put is not there to read before.
            self.repository.sink().flush()?;
        }
        let rules = Rules::of(self.repository.sink(), NewTree { published, changes })?;
        rules.follow(published, changes, self.empty.content())
    }

    pub(crate) fn pipeline<'p>(
        &'p self,
        index: &'p ContentIndex,
        is_dry: bool,
        threads: usize,
        stop: &'p AtomicBool,
    ) -> Result<Pipeline<'p>, PublishError> {
        Ok(Pipeline {
            condemned: self.repository.condemned().read()?,
            sink: self.repository.sink(),
            is_dry,
            index,
            settings: self.repository.settings(),
            algorithm: self.repository.head().hash_algorithm(),
            counters: &self.counters,
            stop,
            threads,
        })
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns a new directory on the path to the target, with the owner of the directory that it is made below.
    pub(crate) fn new_directory(&self, path: &[u8], above: Option<&Entry>) -> Entry {
        let name = path::split(path).map(|(_, name)| name).unwrap_or_default();
        let made = entry::new_directory(name, self.now, self.repository.settings());
        // Some programs write -1 for an unknown owner, whom no kernel accepts.
        let known = |id: &u32| *id != u32::MAX;
        Entry {
            uid: above.map(|above| above.uid).filter(known).unwrap_or(made.uid),
            gid: above.map(|above| above.gid).filter(known).unwrap_or(made.gid),
            ..made
        }
    }

    /// Returns the missing directories on the way to a path, each with the directory that it is made in.
    ///
    /// `refused` is the error for a part of the way that is no directory.
    pub(crate) fn missing_parents(
        &self,
        path: &[u8],
        refused: impl Fn(&[u8]) -> PublishError,
    ) -> Result<Vec<(Vec<u8>, Entry)>, PublishError> {
        let mut above = self.published.entry(b"")?;
        let mut missing = Vec::new();
        for ancestor in path::ancestry(path).skip(1) {
            match self.published.entry(ancestor)? {
                Some(entry) if entry.is_directory() => above = Some(entry),
                Some(_) => return Err(refused(ancestor)),
                None => {
                    let directory = path::split(ancestor).map(|(directory, _)| directory).unwrap_or_default();
                    missing.push((directory.to_vec(), self.new_directory(ancestor, above.as_ref())));
                }
            }
        }
        Ok(missing)
    }

    /// Returns a report of the differences and of the objects stored so far.
    pub(crate) fn report(&self, differences: Differences) -> Report {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Report {
            revision: self.base.revision,
            root: self.base.root.to_string(),
            differences,
            files_read: get(&counters.files),
            bytes_read: get(&counters.bytes),
            objects_stored: get(&counters.objects),
            object_bytes_stored: get(&counters.object_bytes),
            objects_present: get(&counters.present),
            object_bytes_present: get(&counters.present_bytes),
            warnings: self.expiry_warning().into_iter().collect(),
            ..Report::default()
        }
    }

    /// Returns a warning if the whitelist expires soon. Clients refuse a repository whose whitelist expired.
    fn expiry_warning(&self) -> Option<String> {
        let expires = self.repository.head().whitelist_expires();
        let soon = expires.0.saturating_sub(self.now.0) < WARN_BEFORE;
        soon.then(|| {
            format!("the whitelist expires at {expires}; clients then refuse the repository until it is signed again")
        })
    }

    /// Fails if limits are enforced and a new or changed file exceeds one, before its content is stored.
    pub(crate) fn check_files(&self, changes: &Changes) -> Result<(), PublishError> {
        let limits = &self.repository.settings().limits;
        limits::all(limits, &self.published, changes, &[])?.enforced(limits).map(|_| ())
    }

    /// Checks the requested tag before any other work, and returns its name as it would be now.
    pub(crate) fn check_tag(&self, options: &PublishOptions<'_>) -> Result<Option<String>, PublishError> {
        commit::check_tag(self.repository, &options.tag, self.now)
    }

    /// Stores the contents of a folder that a plan reads.
    pub(crate) fn store_folder(
        &self,
        folder: &Path,
        plan: &mut Plan,
        (index, is_dry): (&ContentIndex, bool),
        options: &mut PublishOptions<'_>,
    ) -> Result<Vec<Content>, PublishError> {
        let started = Instant::now();
        let source = Source::open(folder)?;
        let small = u64::from(self.repository.settings().chunks.min());
        let files = FolderFiles::new(&source, plan, (small, self.home(&self.target)));
        let (number, bytes) = (plan.jobs as u64, plan.bytes_to_read);
        let PublishOptions { threads, stop, progress, .. } = options;
        let mut tick = || progress(self.counters.progress(Phase::Store, number, bytes, started.elapsed()));
        tick();
        let feeders = files.feeders((*threads).clamp(2, READERS_MAX));
        let contents = self.pipeline(index, is_dry, *threads, stop)?.run(feeders, &mut tick)?;
        for (path, folder) in files.into_scripts() {
            plan.remarks.add_with(RemarkKind::BuildFolder, &[&self.target, &*path].concat(), &folder);
        }
        Ok(contents)
    }

    /// Returns a path of the repository as clients have it.
    pub(crate) fn home(&self, path: &[u8]) -> Vec<u8> {
        [b"/cvmfs/", self.repository.name().as_str().as_bytes(), path].concat()
    }

    /// Publishes the changes, shows a new tag among the snapshots, and completes the report.
    pub(crate) fn publish(
        &self,
        changes: &Changes,
        index: Option<&ContentIndex>,
        options: &mut PublishOptions<'_>,
        report: &mut Report,
    ) -> Result<(), PublishError> {
        let finished = self.finish(changes, options, report);
        let is_at_gateway = self.repository.gateway().is_some();
        if let (true, Some(index), Err(PublishError::Repository(RepositoryError::Collected { .. }))) =
            (is_at_gateway, index, &finished)
        {
            index.forget();
        }
        finished?;
        if !is_at_gateway {
            snapshots::follow(self.repository, self.now, &options.stop, report);
        }
        if let Some(index) = index {
            report.remembered(index.write());
        }
        report.seconds.total = self.seconds();
        Ok(())
    }

    /// Writes catalogs and makes the revision public, if anything changes.
    pub(crate) fn finish(
        &self,
        changes: &Changes,
        options: &mut PublishOptions<'_>,
        report: &mut Report,
    ) -> Result<(), PublishError> {
        let profiles = Profiles::of(self.repository);
        options.profiles.iter().try_for_each(|added| profiles.add(added))?;
        commit::commit(self, changes, options, report)
    }

    /// Stores the object of an empty file.
    pub(crate) fn put_empty(&self) -> Result<(), PublishError> {
        self.repository.sink().put(&self.empty.name, &self.empty.stored)?;
        Ok(())
    }

    /// Returns a shrink if the removal of so many entries counts as one.
    pub(crate) fn shrink(&self, removed: u64) -> Result<Option<Shrink>, PublishError> {
        // Few removals need no count of the whole repository.
        if removed < Shrink::REMOVED_MIN {
            return Ok(None);
        }
        Ok(Shrink::of(removed, self.published.entries()?))
    }

    /// Fails if the change is a shrink that is not confirmed.
    pub(crate) fn confirm_shrink(
        &self,
        removed: u64,
        options: &mut PublishOptions<'_>,
    ) -> Result<(), PublishError> {
        match self.shrink(removed)? {
            Some(shrink) if !(options.confirm_shrink)(shrink) => {
                options.check_stop()?;
                Err(PublishError::Shrinks(shrink))
            }
            _ => Ok(()),
        }
    }

    /// Adds a warning to the report of a dry run if the change is a shrink.
    pub(crate) fn warn_of_shrink(&self, removed: u64, report: &mut Report) -> Result<(), PublishError> {
        let shrink = self.shrink(removed)?;
        let warning = |shrink| format!("{}; it has to be confirmed", PublishError::Shrinks(shrink));
        report.warnings.extend(shrink.map(warning));
        Ok(())
    }

    /// Adds the paths and the tag of a planned revision to the report of a dry run.
    pub(crate) fn foresee(
        &self,
        changes: &mut Changes,
        tag: Option<String>,
        options: &PublishOptions<'_>,
        report: &mut Report,
    ) -> Result<(), PublishError> {
        report.changes = Some(path_changes::list(&self.published, changes)?);
        if !changes.is_empty() {
            let limits = &self.repository.settings().limits;
            let mut balanced = changes.clone();
            let outlines = balance::decide(&self.published, &mut balanced, &self.comparison())?;
            let over = limits::all(limits, &self.published, changes, &outlines)?;
            report.add_over_limits(over.enforced(limits)?);
        }
        report.add_bundles(&mut self.add_bundles(&self.published, changes, &options.profiles, false)?);
        let is_tagged = options.tag.name.is_some() || !changes.is_empty();
        report.tag = tag.filter(|_| is_tagged);
        report.branch = options.tag.branch.as_ref().map(|branch| branch.name.clone());
        if changes.is_empty() && options.tag.name.is_none() {
            report.warnings.extend(self.message_warning(options));
        }
        Ok(())
    }

    /// Returns a warning if a message is not stored, because there is neither a new revision nor a tag.
    pub(crate) fn message_warning(&self, options: &PublishOptions<'_>) -> Option<String> {
        let revision = self.base.revision;
        (!options.tag.description.is_empty()).then(|| {
            format!(
                "nothing changed, so the message is not stored; name a tag to describe revision {revision}"
            )
        })
    }
}
