//! Ingest: adds the entries of an archive to a directory of the repository, replacing entries of the same name. Other
//! entries of that directory change only if the list of paths to delete names them.

pub(crate) mod archive;
mod collect;
mod links;

use std::path::PathBuf;
use std::time::Instant;

use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;

use crate::content_index::ContentIndex;
use crate::error::PublishError;
use crate::follow_rules::Rules;
use crate::pipeline::Feeder;
use crate::progress::Phase;
use crate::remarks;
use crate::report::Report;
use crate::revision::{Context, PublishOptions, until_kept};
use crate::staged::Staged;

use archive::Archive;
use collect::{Collected, Collector};
use esker_repository::{Base, Repository, path};

/// Owner of the ingested entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User that replaces the owner in the archive.
    pub uid: Option<u32>,
    /// Group that replaces the one in the archive.
    pub gid: Option<u32>,
}

/// Description of an ingest.
pub struct Ingest<'r> {
    /// Archive to read: tar, plain or compressed; `-` is standard input.
    pub archive: PathBuf,
    /// The directory of the repository that it is unpacked into; empty or `/` for the root.
    pub target: Vec<u8>,
    /// Paths in the repository to delete first, with everything below them.
    pub delete: Vec<Vec<u8>>,
    /// Owner of the added entries.
    pub owner: Owner,
    /// True if the target becomes the root of a nested catalog.
    pub nested: bool,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

impl Ingest<'_> {
    /// Returns the report of a planned ingest: reads the archive and stores nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let base = repository.begin_on(self.options.tag.branch.as_ref())?;
        let (context, tag) = self.context(repository, base, now)?;
        let index = ContentIndex::of(repository);
        let mut collected = self.collect(&context, &index, true)?;
        let mut report = context.report(collected.differences);
        report.add_remarks(std::mem::take(&mut collected.remarks));
        report.warnings.extend(collected.warnings());
        context.foresee(&mut collected.changes, tag, &self.options, &mut report)?;
        context.warn_of_shrink(collected.gone(), &mut report)?;
        (report.seconds.store, report.seconds.total) = (context.seconds(), context.seconds());
        Ok(report)
    }

    /// Ingests the archive. Without a difference to the published content there is no new revision.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let branch = self.options.tag.branch.clone();
        if self.archive.as_os_str() == "-" {
            // The archive can't be read twice.
            let base = repository.begin_on(branch.as_ref())?;
            let _held = repository.hold(&base)?;
            return self.run_on(repository, base, now);
        }
        until_kept(repository, branch.as_ref(), |base| self.run_on(repository, base, now))
    }

    /// Stores the archive and the catalogs that have it, and publishes neither. Returns the unpublished revision, and the
    /// published one that it was made of; without a difference they are the same.
    pub fn stage(&mut self, repository: &Repository, now: UnixTime) -> Result<Staged, PublishError> {
        let base = repository.begin_on(self.options.tag.branch.as_ref())?;
        let _held = repository.hold(&base)?;
        let (context, _) = self.context(repository, base, now)?;
        let index = ContentIndex::of(repository).kept();
        let mut collected = self.collect(&context, &index, false)?;
        context.confirm_shrink(collected.gone(), &mut self.options)?;
        let mut warnings = collected.warnings();
        let remarks = std::mem::take(&mut collected.remarks).finish();
        warnings.extend(remarks::warnings(&remarks, &mut collected.differences));
        warnings.extend(index.write().err().map(|error| error.to_string()));
        Staged::new(&context, &collected.changes, &mut self.options, warnings)
    }

    /// Returns the inputs of the change, and the name of the tag as it would be now.
    fn context<'c>(
        &self,
        repository: &'c Repository,
        base: Base,
        now: UnixTime,
    ) -> Result<(Context<'c>, Option<String>), PublishError> {
        let mut context = Context::on(repository, base, &self.target, now)?;
        context.filter.clone_from(&self.options.filter);
        let tag = context.check_tag(&self.options)?;
        Ok((context, tag))
    }

    fn run_on(&mut self, repository: &Repository, base: Base, now: UnixTime) -> Result<Report, PublishError> {
        let (context, _) = self.context(repository, base, now)?;
        let index = ContentIndex::of(repository).kept();
        let mut collected = self.collect(&context, &index, false)?;
        context.confirm_shrink(collected.gone(), &mut self.options)?;
        let mut report = context.report(collected.differences);
        report.add_remarks(std::mem::take(&mut collected.remarks));
        report.warnings.extend(collected.warnings());
        report.seconds.store = context.seconds();
        context.publish(&collected.changes, Some(&index), &mut self.options, &mut report)?;
        Ok(report)
    }

    /// Reads the archive and stores its contents at the same time.
    fn collect(
        &mut self,
        context: &Context<'_>,
        index: &ContentIndex,
        dry_run: bool,
    ) -> Result<Collected, PublishError> {
        let started = Instant::now();
        let mut collector = Collector::new(context, self.owner);
        for delete in &self.delete {
            collector.delete(&path::normalise(delete)?)?;
        }
        let target = collector.enter(&context.target)?;
        if self.nested && !target.is_empty() {
            collector.mark_nested(&target)?;
        }
        let mut archive = Archive::open(&self.archive)?;
        let PublishOptions { threads, stop, progress, .. } = &mut self.options;
        let mut tick = || progress(context.counters.progress(Phase::Store, 0, 0, started.elapsed()));
        let feeder: Feeder<'_> = Box::new(|feed| archive.read(&mut collector, feed));
        let contents = context.pipeline(index, dry_run, *threads, stop)?.run(vec![feeder], &mut tick)?;
        let mut collected = collector.finish(&contents)?;
        // A dry run has stored no rules that the archive brings.
        if !(dry_run && Rules::change_in(&collected.changes)) {
            context.follow_rules(&mut collected.changes)?;
        }
        Ok(collected)
    }
}

impl Collected {
    /// Returns the warnings of an ingest for its report.
    fn warnings(&self) -> Vec<String> {
        let text = "entries of the archive are of a type that isn't known, and became regular files";
        let unknown = (self.unknown_types > 0).then(|| format!("{} {text}", self.unknown_types));
        unknown.into_iter().chain(not_deleted(&self.missing)).collect()
    }
}

/// Maximum number of paths of one list in a warning.
const NAMED_MAX: usize = 20;

/// Warns about paths to delete that do not exist.
fn not_deleted(missing: &[Vec<u8>]) -> Vec<String> {
    let warning = |path: &Vec<u8>| format!("{} was not deleted: there is no such path", path::shown(path));
    let mut warnings: Vec<String> = missing.iter().take(NAMED_MAX).map(warning).collect();
    if missing.len() > NAMED_MAX {
        warnings.push(format!("{} further paths to delete are not there either", missing.len() - NAMED_MAX));
    }
    warnings
}

/// Metadata of one archive entry.
pub(crate) struct Member {
    /// The path in the repository.
    pub(crate) path: Vec<u8>,
    pub(crate) entry: Entry,
    /// Names of the extended attributes that catalogs can't represent.
    pub(crate) xattrs_left_out: Vec<Vec<u8>>,
}
