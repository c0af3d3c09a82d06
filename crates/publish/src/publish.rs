//! Publishes a folder: makes the repository, or a subtree of it, equal to the folder.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use esker_format::catalog::PathKey;
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_repository::{
    Base, Repository, RepositoryError, entry, path,
    published::{Listed, Published},
};
use esker_store::Sink;

use crate::build_folder::Relocation;
use crate::content_index::ContentIndex;
use crate::dirtab::{self, Dirtab};
use crate::error::PublishError;
use crate::file_index::{FileIndex, Record};
use crate::follow_rules::Rules;
use crate::pipeline::Content;
use crate::plan::Plan;
use crate::private_files::PrivateFiles;
use crate::progress::Phase;
use crate::remarks;
use crate::report::Report;
use crate::revision::{Context, PublishOptions, until_kept};
use crate::scan::Scan;
use crate::source::{Facts, Source, pack_xattrs, read_xattr_pairs};
use crate::source_entry;
use crate::staged::Staged;

/// Description of a publish.
pub struct Publish<'r> {
    /// Source folder.
    pub source: PathBuf,
    /// Directory of the repository that becomes equal to the source; empty or `/` for the whole repository.
    pub target: Vec<u8>,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

impl Publish<'_> {
    /// Returns the report of a planned publish, and changes nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let context =
            self.context(repository, repository.begin_on(self.options.tag.branch.as_ref())?, now)?;
        let tag = context.check_tag(&self.options)?;
        let mut plan = self.plan(&context)?;
        let (files, bytes) = (plan.jobs as u64, plan.bytes_to_read);
        // Taken before contents are compared, which counts objects as if they were stored.
        let mut report = context.report(plan.differences);
        self.compare_contents(&context, &mut plan)?;
        report.differences = plan.differences;
        report.add_remarks(std::mem::take(&mut plan.remarks));
        context.foresee(&mut plan.changes, tag, &self.options, &mut report)?;
        context.warn_of_shrink(plan.differences.removed.total(), &mut report)?;
        (report.files_read, report.bytes_read) = (files, bytes);
        report.seconds.scan = context.seconds();
        report.seconds.total = report.seconds.scan;
        Ok(report)
    }

    /// Publishes the source. Without a difference there is no new revision.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let branch = self.options.tag.branch.clone();
        until_kept(repository, branch.as_ref(), |base| self.run_on(repository, base, now))
    }

    fn run_on(&mut self, repository: &Repository, base: Base, now: UnixTime) -> Result<Report, PublishError> {
        let context = self.context(repository, base, now)?;
        let index = ContentIndex::of(repository).kept();
        let (mut plan, scanned) = self.store(&context, &index)?;
        let mut report = context.report(plan.differences);
        report.add_remarks(std::mem::take(&mut plan.remarks));
        report.seconds.scan = scanned;
        report.seconds.store = context.seconds() - scanned;
        context.publish(&plan.changes, Some(&index), &mut self.options, &mut report)?;
        if context.filter.relocate.is_none() {
            report.remembered(context.file_index.write(std::mem::take(&mut plan.records)));
        }
        report.seconds.total = context.seconds();
        Ok(report)
    }

    /// Stores the contents of the source and the catalogs that have it, and publishes neither. Returns the unpublished revision, and
    /// the published one that it was made of; without a difference they are the same.
    pub fn stage(&mut self, repository: &Repository, now: UnixTime) -> Result<Staged, PublishError> {
        let base = repository.begin_on(self.options.tag.branch.as_ref())?;
        let _held = repository.hold(&base)?;
        let context = self.context(repository, base, now)?;
        let index = ContentIndex::of(repository).kept();
        let (mut plan, _) = self.store(&context, &index)?;
        let remarks = std::mem::take(&mut plan.remarks).finish();
        let mut warnings = remarks::warnings(&remarks, &mut plan.differences);
        warnings.extend(index.write().err().map(|error| error.to_string()));
        Staged::new(&context, &plan.changes, &mut self.options, warnings)
    }

    /// Compares the source with the published revision, and stores what is new. Returns the changes, and the seconds after which the
    /// comparison ended.
    fn store(&mut self, context: &Context<'_>, index: &ContentIndex) -> Result<(Plan, f64), PublishError> {
        context.check_tag(&self.options)?;
        let mut plan = self.plan(context)?;
        let scanned = context.seconds();
        context.check_files(&plan.changes)?;
        context.confirm_shrink(plan.differences.removed.total(), &mut self.options)?;
        let contents = context.store_folder(&self.source, &mut plan, (index, false), &mut self.options)?;
        resolve(context, &mut plan, &contents)?;
        if !context.target.is_empty() {
            // The source has nothing of the directories elsewhere.
            context.follow_rules(&mut plan.changes)?;
        }
        Ok((plan, scanned))
    }

    fn context<'c>(
        &self,
        repository: &'c Repository,
        base: Base,
        now: UnixTime,
    ) -> Result<Context<'c>, PublishError> {
        let mut context = Context::on(repository, base, &self.target, now)?;
        if self.options.filter.relocate.is_some() {
            // What is published for an unchanged file may name the build folder.
            context.file_index = FileIndex::none(repository.disks().private.clone());
        }
        context.filter.clone_from(&self.options.filter);
        context.filter.ignore_of(&self.source)?;
        let before = Dirtab::of_published(repository.sink(), &context.published)?;
        let now = if context.target.is_empty() { Dirtab::of_folder(&self.source)? } else { before.clone() };
        context.rules = Rules { before, now };
        Ok(context)
    }

    /// Compares the source with the published revision.
    fn plan(&mut self, context: &Context<'_>) -> Result<Plan, PublishError> {
        let PublishOptions { threads, stop, progress, .. } = &mut self.options;
        let mut tick = || progress(context.counters.progress(Phase::Scan, 0, 0, context.started.elapsed()));
        tick();
        let source = Source::open(&self.source)?;
        let facts = source.root_facts()?;
        let private = PrivateFiles::of(context.repository)?;
        private.check_root(&self.source)?;
        let folder = std::path::absolute(&self.source).map_err(|error| PublishError::Source {
            doing: "looking at",
            path: self.source.clone(),
            source: error,
        })?;
        let relocated =
            |from: &PathBuf| Relocation::new(from.as_os_str().as_bytes(), context.home(&context.target));
        let mut relocation = context.filter.relocate.as_ref().map(relocated);
        let comparison = context.comparison();
        let before = context.published.entry(&context.target)?;
        let existed = before.as_ref().is_some_and(Entry::is_directory);
        let scan = Scan {
            source: &source,
            target: &context.target,
            published: &context.published,
            comparison: &comparison,
            private: &private,
            build_folder: folder.as_os_str().as_bytes(),
            relocation: relocation.as_ref(),
            stop,
            counters: &context.counters,
        };
        let mut plan = scan.run(*threads, facts, existed, &mut tick)?;
        plan_top(context, &source, &facts, before, &mut plan)?;
        if let Some(relocation) = &mut relocation {
            relocation.read_records(&source, &plan.reads)?;
        }
        Ok(Plan { relocation, ..plan })
    }

    /// Reads the possibly unchanged files without storing them, and drops changes that are none.
    fn compare_contents(&mut self, context: &Context<'_>, plan: &mut Plan) -> Result<(), PublishError> {
        let mut doubtful = plan.take_doubtful(&context.published)?;
        let index = ContentIndex::of(context.repository);
        let contents =
            context.store_folder(&self.source, &mut doubtful, (&index, true), &mut self.options)?;
        plan.waiting = doubtful.waiting;
        plan.remarks.absorb(doubtful.remarks);
        resolve(context, plan, &contents)
    }
}

/// Compares the target directory with the source, and creates its parents.
fn plan_top(
    context: &Context<'_>,
    source: &Source,
    facts: &Facts,
    before: Option<Entry>,
    plan: &mut Plan,
) -> Result<(), PublishError> {
    let settings = context.repository.settings();
    let mut top = source_entry::of_facts(facts, settings);
    context.filter.own(&mut top);
    if settings.xattrs {
        let folder = source.open_directory(b"")?;
        let pairs = read_xattr_pairs(&folder, b".");
        let pairs = pairs.map_err(source.failed("reading the extended attributes of", b""))?;
        let xattrs = pack_xattrs(pairs, &context.target, settings)?;
        plan.remarks.add_xattrs(&context.target, xattrs.left_out);
        top.xattrs = xattrs.packed;
    }
    top.name = path::split(&context.target).map(|(_, name)| name.to_vec()).unwrap_or_default();
    match &before {
        Some(before) if entry::is_same(before, &top) => {
            plan.differences.unchanged.add(&top);
            return Ok(());
        }
        Some(before) => {
            entry::carry_unknown(before, &mut top);
            plan.differences.changed.add(&top);
        }
        None => plan.differences.added.add(&top),
    }
    let Some((parent, _)) = path::split(&context.target) else {
        plan.changes.root = Some(top);
        plan.changes.touch(b"");
        return Ok(());
    };
    let reason = "a part of it is published, but is no directory";
    let refused = |_: &[u8]| RepositoryError::Target { path: path::shown(&context.target), reason }.into();
    for (directory, made) in context.missing_parents(parent, refused)? {
        plan.differences.added.add(&made);
        plan.changes.put(&directory, made);
    }
    plan.changes.put(parent, top);
    Ok(())
}

/// Sets the content of entries whose files were read, and reverts changes without a difference.
fn resolve(context: &Context<'_>, plan: &mut Plan, contents: &[Content]) -> Result<(), PublishError> {
    let mut listed = Listed::default();
    for waiting in std::mem::take(&mut plan.waiting) {
        let content = contents
            .get(waiting.job)
            .expect("every job has its content because the pipeline ended without an error");
        let entry = plan
            .changes
            .entry_mut(&waiting.directory, &waiting.name)
            .expect("what waits for content is in the changes because both were planned together");
        content.set_in(entry);
        if waiting.settled {
            let key = PathKey::child(&waiting.directory, &waiting.name);
            plan.records.push(Record::new(key, &waiting.facts, entry));
        }
        let before = listed.find(&context.published, &waiting.directory, &waiting.name)?;
        if before.is_some_and(|before| entry::is_same(before, entry)) {
            plan.differences.changed.remove(entry);
            plan.differences.unchanged.add(entry);
            plan.changes.revert(&waiting.directory, &waiting.name);
        } else if let Some(before) = before {
            entry::carry_unknown(before, entry);
        }
    }
    Ok(())
}

impl Dirtab {
    pub(crate) fn of_folder(source: &Path) -> Result<Self, PublishError> {
        let path = source.join(std::ffi::OsStr::from_bytes(dirtab::NAME));
        match std::fs::read(&path) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(PublishError::Source { doing: "reading", path, source }),
        }
    }

    pub(crate) fn of_published(sink: &dyn Sink, published: &Published) -> Result<Self, PublishError> {
        let Some(entry) = published.entry(&path::join(b"", dirtab::NAME))? else {
            return Ok(Self::default());
        };
        Self::parse(&esker_repository::published::read_small_file(sink, &entry, ".cvmfsdirtab")?)
    }
}
