//! Copies a directory of the repository by its catalog rows. No content is read, and none is stored again.

use esker_format::catalog::Flags;
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_repository::{Base, Repository, RepositoryError, entry, path};

use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::plan::Differences;
use crate::report::Report;
use crate::revision::{Context, PublishOptions, until_kept};
use crate::staged::Staged;
use crate::trigger_flags::with_flags_mended;

/// Description of a copy inside a repository.
pub struct CopyTree<'r> {
    /// The directory to copy.
    pub from: Vec<u8>,
    /// Path of the copy, which must not exist.
    pub to: Vec<u8>,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

/// Changes that make the copy.
struct Planned {
    changes: Changes,
    differences: Differences,
}

impl CopyTree<'_> {
    /// Returns the report of a planned copy, and changes nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let context = Context::without_index(repository, repository.begin(), now)?;
        let tag = context.check_tag(&self.options)?;
        let mut planned = self.plan(&context)?;
        let mut report = context.report(planned.differences);
        context.foresee(&mut planned.changes, tag, &self.options, &mut report)?;
        report.seconds.scan = context.seconds();
        report.seconds.total = report.seconds.scan;
        Ok(report)
    }

    /// Publishes the copy.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        until_kept(repository, None, |base| self.run_on(repository, base, now))
    }

    /// Stores the copy as a revision, and does not publish it.
    pub fn stage(&mut self, repository: &Repository, now: UnixTime) -> Result<Staged, PublishError> {
        let base = repository.begin();
        let _held = repository.hold(&base)?;
        let context = Context::without_index(repository, base, now)?;
        context.check_tag(&self.options)?;
        let planned = self.plan(&context)?;
        Staged::new(&context, &planned.changes, &mut self.options, Vec::new())
    }

    fn run_on(&mut self, repository: &Repository, base: Base, now: UnixTime) -> Result<Report, PublishError> {
        let context = Context::without_index(repository, base, now)?;
        context.check_tag(&self.options)?;
        let planned = self.plan(&context)?;
        let mut report = context.report(planned.differences);
        report.seconds.scan = context.seconds();
        context.publish(&planned.changes, None, &mut self.options, &mut report)?;
        Ok(report)
    }

    fn plan(&self, context: &Context<'_>) -> Result<Planned, PublishError> {
        let (from, to) = (path::normalise(&self.from)?, path::normalise(&self.to)?);
        let published = &context.published;
        let refused =
            |path: &[u8], reason| Err(RepositoryError::Target { path: path::shown(path), reason }.into());
        let Some((parent, name)) = path::split(&to) else { return refused(&to, "it exists already") };
        let top = match published.entry(&from)? {
            Some(top) if from.is_empty() || path::is_within(&to, &from) => {
                debug_assert!(top.is_directory());
                return refused(&to, "a directory can't be copied into itself");
            }
            Some(top) if top.is_directory() => top,
            Some(_) => return refused(&from, "it is no directory"),
            None => return refused(&from, "it is not published"),
        };
        if published.entry(&to)?.is_some() {
            return refused(&to, "it exists already");
        }
        let mut planned = Planned { changes: Changes::default(), differences: Differences::default() };
        let reason = "it is no directory, and the copy would be below it";
        let blocked =
            |ancestor: &[u8]| RepositoryError::Target { path: path::shown(ancestor), reason }.into();
        for (directory, made) in context.missing_parents(parent, blocked)? {
            planned.put(&directory, made);
        }
        planned.put(parent, Entry { name: name.to_vec(), ..top });
        let mut waiting = vec![(from, to)];
        while let Some((from, to)) = waiting.pop() {
            self.options.check_stop()?;
            planned.directory(context, &from, &to, &mut waiting)?;
        }
        context.follow_rules(&mut planned.changes)?;
        Ok(planned)
    }
}

impl Planned {
    /// Copies the entries of one directory. Markers come with them, so that nested catalogs are at the same places.
    fn directory(
        &mut self,
        context: &Context<'_>,
        from: &[u8],
        to: &[u8],
        waiting: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<(), PublishError> {
        for entry in context.published.list(from)? {
            // Profiles name the paths of their bundles, and a copy is at others.
            if entry::is_profile_bundle(&entry) {
                continue;
            }
            if entry.flags.has(Flags::BIND_MOUNTPOINT) {
                let path = path::shown(&path::join(from, &entry.name));
                return Err(RepositoryError::Target { path, reason: "it shows another revision" }.into());
            }
            if entry.is_directory() {
                waiting.push((path::join(from, &entry.name), path::join(to, &entry.name)));
            }
            self.put(to, entry);
        }
        for entry in with_flags_mended(NewTree { published: &context.published, changes: &self.changes }, to)?
        {
            self.changes.put(to, entry);
        }
        Ok(())
    }

    fn put(&mut self, directory: &[u8], entry: Entry) {
        if !entry.flags.has(Flags::HIDDEN) {
            self.differences.added.add(&entry);
        }
        self.changes.put(directory, entry);
    }
}
