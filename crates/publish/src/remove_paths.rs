//! Removes paths of the repository by their names or by patterns, in one commit.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use esker_format::time::UnixTime;
use esker_repository::{Base, Repository, RepositoryError, entry, path, published::Published};
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::changes::Changes;
use crate::error::PublishError;
use crate::plan::Differences;
use crate::report::Report;
use crate::revision::{Context, PublishOptions, until_kept};
use crate::tidy::tidy;

/// Characters of patterns.
const WILD: &[u8] = b"*?[";

/// Description of a removal.
pub struct RemovePaths<'r> {
    /// Paths, or patterns of them: `*`, `?` and `[…]` within a name, `**` for any directories. All must match something.
    pub patterns: Vec<Vec<u8>>,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

/// Changes that remove the paths.
struct Planned {
    changes: Changes,
    differences: Differences,
}

impl RemovePaths<'_> {
    /// Returns the path that a pattern matches nothing outside of: itself, or the directory above its first name with a wildcard.
    pub fn start(pattern: &[u8]) -> &[u8] {
        let Some(wild) = pattern.iter().position(|byte| WILD.contains(byte)) else { return pattern };
        let plain = pattern.get(..wild).unwrap_or(pattern);
        let end = plain.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        pattern.get(..end).unwrap_or_default()
    }

    /// Returns the report of a planned removal, and changes nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let context = Context::without_index(repository, repository.begin(), now)?;
        let tag = context.check_tag(&self.options)?;
        let mut planned = self.plan(&context)?;
        let removed = planned.differences.removed.total();
        let mut report = context.report(planned.differences);
        context.foresee(&mut planned.changes, tag, &self.options, &mut report)?;
        context.warn_of_shrink(removed, &mut report)?;
        report.seconds.scan = context.seconds();
        report.seconds.total = report.seconds.scan;
        Ok(report)
    }

    /// Publishes the removal.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        until_kept(repository, None, |base| self.run_on(repository, base, now))
    }

    fn run_on(&mut self, repository: &Repository, base: Base, now: UnixTime) -> Result<Report, PublishError> {
        let context = Context::without_index(repository, base, now)?;
        context.check_tag(&self.options)?;
        let planned = self.plan(&context)?;
        context.confirm_shrink(planned.differences.removed.total(), &mut self.options)?;
        let mut report = context.report(planned.differences);
        report.seconds.scan = context.seconds();
        context.publish(&planned.changes, None, &mut self.options, &mut report)?;
        Ok(report)
    }

    fn plan(&self, context: &Context<'_>) -> Result<Planned, PublishError> {
        let mut found = BTreeSet::new();
        for pattern in &self.patterns {
            let before = found.len();
            let pattern = path::normalise(pattern)?;
            if pattern.is_empty() {
                return Err(refused(&pattern, "the root of a repository can't be removed"));
            }
            if context.published.entry(&pattern)?.is_some() {
                found.insert(pattern);
                continue;
            }
            if pattern.iter().any(|byte| WILD.contains(byte)) {
                self.matching(&context.published, &pattern, &mut found)?;
            }
            if found.len() == before {
                return Err(refused(&pattern, "nothing of this name is published"));
            }
        }
        let mut planned = Planned { changes: Changes::default(), differences: Differences::default() };
        let mut gone: Option<&[u8]> = None;
        for removed in &found {
            // What is below a removed directory goes with it.
            if gone.is_some_and(|gone| path::is_within(removed, gone)) {
                continue;
            }
            gone = Some(removed);
            planned.remove(&context.published, removed)?;
        }
        tidy(&context.published, &mut planned.changes)?;
        context.follow_rules(&mut planned.changes)?;
        Ok(planned)
    }

    /// Adds the paths that a pattern matches.
    fn matching(
        &self,
        published: &Published,
        pattern: &[u8],
        found: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), PublishError> {
        let matcher = matcher(pattern)?;
        let start = Self::start(pattern);
        if !published.entry(start)?.is_some_and(|entry| entry.is_directory()) {
            return Ok(());
        }
        let mut waiting = vec![start.to_vec()];
        while let Some(directory) = waiting.pop() {
            self.options.check_stop()?;
            for entry in published.list(&directory)? {
                let at = path::join(&directory, &entry.name);
                let relative = Path::new(OsStr::from_bytes(at.strip_prefix(b"/").unwrap_or(&at)));
                if matcher.matched(relative, entry.is_directory()).is_ignore() {
                    if !entry::is_profile_bundle(&entry) {
                        found.insert(at);
                    }
                } else if entry.is_directory() {
                    waiting.push(at);
                }
            }
        }
        Ok(())
    }
}

impl Planned {
    fn remove(&mut self, published: &Published, removed: &[u8]) -> Result<(), PublishError> {
        let (Some((directory, name)), Some(entry)) = (path::split(removed), published.entry(removed)?) else {
            return Ok(());
        };
        self.differences.removed.add(&entry);
        if entry.is_directory() {
            self.differences.add_removed_below(published, removed)?;
        }
        self.changes.remove(directory, name);
        Ok(())
    }
}

fn refused(path: &[u8], reason: &'static str) -> PublishError {
    RepositoryError::Target { path: path::shown(path), reason }.into()
}

/// Returns the matcher of one pattern, which begins at the root of the repository.
fn matcher(pattern: &[u8]) -> Result<Gitignore, PublishError> {
    let unusable = |_| refused(pattern, "the pattern can't be read");
    let text = str::from_utf8(pattern).map_err(|_| refused(pattern, "a pattern has to be UTF-8"))?;
    let mut builder = GitignoreBuilder::new("");
    builder.add_line(None, text).map_err(unusable)?;
    builder.build().map_err(unusable)
}
