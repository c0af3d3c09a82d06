//! Publishing: the repository, or a subtree of it, becomes equal to a folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use esker_format::catalog::{Flags, PathKey};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_store::Sink;

use crate::balance;
use crate::catalogs::{CatalogBuilder, Outline};
use crate::changes::NewTree;
use crate::commit::{Commit, TagRequest};
use crate::content_index::ContentIndex;
use crate::dirtab::{self, Dirtab};
use crate::encode::Encoder;
use crate::entry;
use crate::error::AdminError;
use crate::known::{KnownFiles, Record};
use crate::path;
use crate::pipeline::{Content, Pipeline};
use crate::plan::{Comparison, Plan};
use crate::progress::{Counters, Phase, Progress};
use crate::published::Published;
use crate::report::Report;
use crate::repository::Repository;
use crate::scan::Scan;
use crate::source::{Facts, Source};

/// What to publish, and how.
pub struct Publish<'r> {
    /// The folder that the repository becomes equal to.
    pub source: PathBuf,
    /// The directory of the repository that does; empty or `/` for all of it.
    pub target: Vec<u8>,
    /// The tag of the new revision.
    pub tag: TagRequest,
    /// The number of threads that compress.
    pub threads: usize,
    /// Set by whoever wants the publish to end early.
    pub stop: Arc<AtomicBool>,
    /// Told now and then how far it is.
    pub progress: &'r mut dyn FnMut(Progress),
}

/// What does not change while one publish goes on.
struct Context<'r> {
    repository: &'r Repository,
    published: Published,
    known: KnownFiles,
    dirtab: Dirtab,
    empty: Empty,
    counters: Counters,
    target: Vec<u8>,
    now: UnixTime,
}

/// The object of an empty file, which markers of nested catalogs are.
struct Empty {
    name: ObjectName,
    stored: Vec<u8>,
    flags: Flags,
}

impl Empty {
    fn new(repository: &Repository) -> Result<Self, AdminError> {
        let settings = &repository.settings;
        let algorithm = repository.head.hash_algorithm();
        let mut room = Vec::new();
        let stored = Encoder::new(settings.compression, settings.deflate)?.encode(b"", &mut room)?.to_vec();
        let name = ObjectName::new(ContentHash::of(algorithm, &stored), ObjectKind::File);
        Ok(Self { name, stored, flags: Flags(Flags::storage(algorithm, settings.compression)) })
    }
}

impl<'r> Context<'r> {
    fn comparison(&self) -> Comparison<'_> {
        Comparison {
            settings: &self.repository.settings,
            known: &self.known,
            dirtab: &self.dirtab,
            empty: (self.empty.name.hash, self.empty.flags),
        }
    }
}

impl Publish<'_> {
    /// Says what a publish would do, and does nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, AdminError> {
        let started = Instant::now();
        let context = self.context(repository, now)?;
        let plan = self.plan(&context)?;
        let mut report = report_of(repository, &plan, &context.counters);
        report.seconds.scan = started.elapsed().as_secs_f64();
        report.seconds.total = report.seconds.scan;
        Ok(report)
    }

    /// Publishes. Without a difference there is no new revision.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, AdminError> {
        let started = Instant::now();
        let context = self.context(repository, now)?;
        let (history, tag) = Commit::draft_history(repository, &self.tag, now)?;
        let mut plan = self.plan(&context)?;
        let scanned = started.elapsed().as_secs_f64();

        let index = ContentIndex::new(repository.state());
        let contents = self.store(&context, &plan, &index)?;
        resolve(&context, &mut plan, &contents)?;
        let stored = started.elapsed().as_secs_f64();
        let mut report = report_of(repository, &plan, &context.counters);
        report.seconds.scan = scanned;
        report.seconds.store = stored - scanned;

        if !plan.changes.is_empty() {
            (self.progress)(context.counters.progress(Phase::Catalogs, 0, 0, started.elapsed()));
            let outlines = balance::decide(&context.published, &mut plan.changes, &context.comparison())?;
            repository.sink.put(&context.empty.name, &context.empty.stored)?;
            let revision = repository.head.revision().saturating_add(1);
            let ttl = context.published.root()?.catalog.properties().ttl.unwrap_or(repository.head.ttl());
            let root = self.write_catalogs(&context, &plan, &outlines, (revision, ttl), &mut report)?;
            let written = started.elapsed().as_secs_f64();
            report.seconds.catalogs = written - stored;
            self.check_stop()?;
            (self.progress)(context.counters.progress(Phase::Commit, 0, 0, started.elapsed()));
            let commit = Commit { repository, root: &root, revision, ttl, now };
            commit.publish(history, tag.clone(), &self.tag.description)?;
            report.seconds.commit = started.elapsed().as_secs_f64() - written;
            (report.revision, report.root, report.tag) = (revision, root.hash.to_string(), tag);
            report.published = true;
        }
        // What follows only saves time, next time.
        index.write()?;
        context.known.write(std::mem::take(&mut plan.records))?;
        report.seconds.total = started.elapsed().as_secs_f64();
        Ok(report)
    }

    fn check_stop(&self) -> Result<(), AdminError> {
        if self.stop.load(Ordering::Relaxed) { Err(AdminError::Interrupted) } else { Ok(()) }
    }

    fn context<'c>(&self, repository: &'c Repository, now: UnixTime) -> Result<Context<'c>, AdminError> {
        let target = path::normalise(&self.target)?;
        let sink: Arc<dyn Sink> = repository.sink.clone();
        let published = Published::new(sink, &repository.head);
        let dirtab = if target.is_empty() {
            Dirtab::of_folder(&self.source)?
        } else {
            Dirtab::of_published(repository, &published)?
        };
        Ok(Context {
            known: KnownFiles::read(repository.state(), &target),
            empty: Empty::new(repository)?,
            counters: Counters::default(),
            repository,
            published,
            dirtab,
            target,
            now,
        })
    }

    /// Walks over the source and says what differs.
    fn plan(&mut self, context: &Context<'_>) -> Result<Plan, AdminError> {
        let source = Source::open(&self.source)?;
        let facts = source.root_facts()?;
        let comparison = context.comparison();
        let before = context.published.entry(&context.target)?;
        let existed = before.as_ref().is_some_and(Entry::is_directory);
        let scan = Scan {
            source: &source,
            target: &context.target,
            published: &context.published,
            comparison: &comparison,
            stop: &self.stop,
            counters: &context.counters,
        };
        let mut plan = scan.run(self.threads, facts, existed)?;
        self.plan_top(context, &source, &facts, before, &mut plan)?;
        Ok(plan)
    }

    /// Compares the directory that becomes the source itself, and makes those above it.
    fn plan_top(
        &self,
        context: &Context<'_>,
        source: &Source,
        facts: &Facts,
        before: Option<Entry>,
        plan: &mut Plan,
    ) -> Result<(), AdminError> {
        let settings = &context.repository.settings;
        let mut top = entry::of_facts(facts, settings);
        if settings.xattrs {
            let folder = source.open_directory(b"")?;
            let xattrs = crate::source::read_xattrs(&folder, b".");
            top.xattrs = xattrs.map_err(source.failed("reading the extended attributes of", b""))?.packed;
        }
        top.name = path::split(&context.target).map(|(_, name)| name.to_vec()).unwrap_or_default();
        match &before {
            Some(before) if entry::is_same(before, &top) => {
                plan.differences.unchanged.add(&top);
                return Ok(());
            }
            Some(_) => plan.differences.changed.add(&top),
            None => plan.differences.added.add(&top),
        }
        let Some((parent, _)) = path::split(&context.target) else {
            plan.changes.root = Some(top);
            plan.changes.touch(b"");
            return Ok(());
        };
        self.make_parents(context, parent, plan)?;
        plan.changes.put(parent, top);
        Ok(())
    }

    fn make_parents(&self, context: &Context<'_>, parent: &[u8], plan: &mut Plan) -> Result<(), AdminError> {
        for ancestor in path::ancestry(parent).skip(1) {
            match context.published.entry(ancestor)? {
                Some(entry) if entry.is_directory() => {}
                Some(_) => {
                    let reason = "a part of it is published, but is no directory";
                    return Err(AdminError::Target { path: path::shown(&context.target), reason });
                }
                None => {
                    let made = new_directory(ancestor, context);
                    plan.differences.added.add(&made);
                    if let Some((above, _)) = path::split(ancestor) {
                        plan.changes.put(above, made);
                    }
                }
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        context: &Context<'_>,
        plan: &Plan,
        index: &ContentIndex,
    ) -> Result<Vec<Content>, AdminError> {
        let started = Instant::now();
        let source = Source::open(&self.source)?;
        let pipeline = Pipeline {
            source: &source,
            sink: &*context.repository.sink,
            index,
            settings: &context.repository.settings,
            algorithm: context.repository.head.hash_algorithm(),
            counters: &context.counters,
            stop: &self.stop,
        };
        let (files, bytes) = (plan.jobs as u64, plan.bytes_to_read);
        let progress = &mut self.progress;
        let tick = &mut || progress(context.counters.progress(Phase::Store, files, bytes, started.elapsed()));
        pipeline.run(plan, self.threads, tick)
    }

    fn write_catalogs(
        &self,
        context: &Context<'_>,
        plan: &Plan,
        outlines: &[Outline],
        (revision, ttl): (u64, u32),
        report: &mut Report,
    ) -> Result<crate::catalogs::Built, AdminError> {
        let builder = CatalogBuilder {
            tree: NewTree { published: &context.published, changes: &plan.changes },
            sink: &*context.repository.sink,
            algorithm: context.repository.head.hash_algorithm(),
            deflate: context.repository.settings.deflate,
            revision,
            now: context.now,
            ttl,
            built: Default::default(),
        };
        let root = builder.run(outlines, self.threads)?;
        let built = builder.built.into_inner();
        report.catalogs_written = built.len() as u64;
        report.catalog_bytes = built.values().map(|built| built.stored_bytes).sum();
        Ok(root)
    }
}

/// A directory that leads to the target and that nobody described.
fn new_directory(path: &[u8], context: &Context<'_>) -> Entry {
    Entry {
        name: path::split(path).map(|(_, name)| name.to_vec()).unwrap_or_default(),
        mode: 0o040_755,
        size: 4096,
        mtime: context.now.0,
        mtime_ns: context.repository.settings.nanoseconds.then_some(0),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        flags: Flags(0),
        hash: None,
        chunks: Vec::new(),
        symlink: Vec::new(),
        xattrs: None,
        hardlink_group: 0,
        link_count: 2,
    }
}

/// Gives every entry that waited for it its content, and takes back changes that turn out to be none.
fn resolve(context: &Context<'_>, plan: &mut Plan, contents: &[Content]) -> Result<(), AdminError> {
    let mut listed: (Option<Vec<u8>>, HashMap<Vec<u8>, Entry>) = Default::default();
    for waiting in std::mem::take(&mut plan.waiting) {
        let (Some(content), Some(entry)) =
            (contents.get(waiting.job), plan.changes.entry_mut(&waiting.directory, &waiting.name))
        else {
            continue;
        };
        entry.hash = content.hash;
        entry.chunks.clone_from(&content.chunks);
        entry.flags.0 |= content.flags.0;
        if waiting.settled {
            let key = PathKey::child(&waiting.directory, &waiting.name);
            plan.records.push(Record::new(key, &waiting.facts, entry));
        }
        // Entries that wait come directory by directory.
        if listed.0.as_ref() != Some(&waiting.directory) {
            let entries = context.published.list(&waiting.directory)?;
            let by_name = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
            listed = (Some(waiting.directory.clone()), by_name);
        }
        if listed.1.get(&waiting.name).is_some_and(|before| entry::is_same(before, entry)) {
            plan.differences.changed.remove(entry);
            plan.differences.unchanged.add(entry);
            plan.changes.revert(&waiting.directory, &waiting.name);
        }
    }
    Ok(())
}

impl Dirtab {
    fn of_folder(source: &Path) -> Result<Self, AdminError> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = source.join(std::ffi::OsStr::from_bytes(dirtab::NAME));
        match std::fs::read(&path) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(AdminError::Source { doing: "reading", path, source }),
        }
    }

    fn of_published(repository: &Repository, published: &Published) -> Result<Self, AdminError> {
        let Some(entry) = published.entry(&path::join(b"", dirtab::NAME))? else {
            return Ok(Self::default());
        };
        Self::parse(&crate::published::read_small_file(&*repository.sink, &entry, ".cvmfsdirtab")?)
    }
}

fn report_of(repository: &Repository, plan: &Plan, counters: &Counters) -> Report {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Report {
        revision: repository.head.revision(),
        root: repository.head.root_catalog().hash.to_string(),
        differences: plan.differences,
        files_read: plan.jobs as u64,
        bytes_read: plan.bytes_to_read,
        objects_stored: get(&counters.objects),
        object_bytes_stored: get(&counters.object_bytes),
        objects_present: get(&counters.present),
        object_bytes_present: get(&counters.present_bytes),
        ..Report::default()
    }
}
