//! Publishes the changes that a command made to a revision under the kernel's overlayfs.
//!
//! ```text
//!  lower layer: the published revision ┐
//!                                      ├─ overlayfs ─► the tree that the command changes
//!  upper folder: its changes ──────────┘
//!        │
//!        └─► walk: marks of overlayfs undone, contents compared ─► Changes ─► pipeline ─► commit
//! ```
//!
//! The upper folder holds new and changed entries whole, whiteouts for removed ones, and a mark on each directory that was
//! removed and made again. A file that was copied up and is as before is no change; the parts of a published hard link
//! group that were copied up and changed leave it.

mod access;
mod carried;
mod contents;
mod marks;
mod origin;
mod same;
mod walk;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_format::catalog::XattrList;
use esker_format::copied_xattr::PUBLISHED_PATH;
use esker_format::time::UnixTime;
use esker_format::write::catalog::Entry;
use esker_store::Sink;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, utimensat,
};
use rustix::io::Errno;

use crate::base::BaseRevision;
use crate::changes::{Changes, NewTree};
use crate::choices::Choices;
use crate::content_index::ContentIndex;
use crate::dirtab::Dirtab;
use crate::error::PublishError;
use crate::filter::{self, Filter};
use crate::follow_rules::Rules;
use crate::path_changes::{self, PathChange};
use crate::plan::{Differences, Plan};
use crate::progress::Phase;
use crate::report::Report;
use crate::revision::{Context, Empty, PublishOptions};
use crate::source::Source;
use crate::staged::Staged;
use crate::tidy::tidy;

use access::Access;
pub use contents::{Compared, FileSide};
use esker_repository::{
    ChangeKind, Repository, RepositoryError, Settings, Storage,
    entry::is_same_directory,
    path,
    published::{Published, read_small_file},
};
use walk::{Walk, Walked};

/// An upper folder and the revision that it was made above.
#[derive(Clone, Debug)]
pub struct Upper {
    /// The folder.
    pub folder: PathBuf,
    /// The revision that was the lower layer.
    pub base: BaseRevision,
    /// The published revision that the base was made of, if that is an unpublished one.
    pub origin: Option<BaseRevision>,
    /// Owner that the lower layer showed for every entry; `None` if it showed the published ones.
    pub claimed: Option<(u32, u32)>,
    /// The directory of the repository that may change; empty or `/` for all of it.
    pub within: Vec<u8>,
    /// Ignored paths, and the owners of the others.
    pub filter: Filter,
}

/// Description of the publish of an upper folder.
pub struct PublishUpper<'r> {
    /// The upper folder.
    pub upper: Upper,
    /// Decisions about conflicts with later revisions, and about changes that are left out.
    pub choices: Choices,
    /// Options of the publish.
    pub options: PublishOptions<'r>,
}

/// Maximum number of paths that an error about changes outside of a directory lists.
const OUTSIDE_NAMED: usize = 20;

/// A published revision in a folder, read without keys and without a lock.
struct Lower {
    sink: Arc<dyn Sink>,
    published: Published,
    settings: Settings,
}

impl Upper {
    /// Copies the attributes of the base's root to a new upper folder, whose attributes the overlay shows at its root.
    pub fn prepare(&self, repository: &Path) -> Result<(), PublishError> {
        let base = self.open_base(repository)?;
        let Some(root) = base.published.entry(b"")? else { return Ok(()) };
        let (uid, gid) = self.claimed.unwrap_or((root.uid, root.gid));
        let failed = |doing| RepositoryError::file(doing, &self.folder);
        let done = |outcome: rustix::io::Result<()>, doing| {
            outcome.map_err(|error| PublishError::from(failed(doing)(error.into())))
        };
        let owner =
            chownat(CWD, &self.folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::empty());
        done(owner, "changing the owner of")?;
        if let Some(Ok(xattrs)) = root.xattrs.as_deref().map(XattrList::parse) {
            for (name, value) in xattrs.iter() {
                // Only root may set some of them, and a file system may refuse others.
                let _ = rustix::fs::setxattr(&self.folder, name, value, XattrFlags::empty());
            }
        }
        let mode = Mode::from_raw_mode(root.mode & 0o7777);
        done(chmodat(CWD, &self.folder, mode, AtFlags::empty()), "changing the mode of")?;
        let nanoseconds = i64::from(root.mtime_ns.unwrap_or(0));
        let time = Timespec { tv_sec: root.mtime, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        done(utimensat(CWD, &self.folder, &times, AtFlags::empty()), "changing the times of")
    }

    /// Lists the changed paths. Needs the folder of the repository, and neither keys nor a valid whitelist.
    pub fn changes(&self, repository: &Path, stop: &AtomicBool) -> Result<Vec<PathChange>, PublishError> {
        let base = self.open_base(repository)?;
        let planned = self.plan(&base, &Choices::default(), stop)?;
        let origin = self.origin.as_ref().unwrap_or(&self.base);
        let origin = Published::with_root(base.sink, origin.root, origin.size);
        planned.list(&origin, &planned.changes(&base.published, &origin)?)
    }

    /// Gives entries back the modes that an interrupted publish changed. Must be called before the folder is mounted again.
    pub fn restore_modes(&self) -> Result<(), PublishError> {
        access::restore(&self.folder)
    }

    fn open_base(&self, repository: &Path) -> Result<Lower, PublishError> {
        let storage = Storage::open(repository)?;
        let sink = storage.sink().clone();
        let published = Published::with_root(sink.clone(), self.base.root, self.base.size);
        let settings = Settings::read_of(&storage)?.unwrap_or_default();
        Ok(Lower { sink, published, settings })
    }

    /// Adds the rules of the merged tree.
    fn add_ignored(&self, filter: &mut Filter, base: &Lower) -> Result<(), PublishError> {
        let path = path::join(b"", filter::NAME.as_bytes());
        match std::fs::symlink_metadata(self.folder.join(filter::NAME)) {
            Ok(facts) if facts.is_file() => filter.ignore_of(&self.folder),
            // A whiteout.
            Ok(_) => Ok(()),
            Err(_) => {
                let Some(entry) = base.published.entry(&path)?.filter(Entry::is_file) else { return Ok(()) };
                let text = read_small_file(&*base.sink, &entry, filter::NAME)?;
                filter.ignore(&text, Path::new(filter::NAME))
            }
        }
    }

    /// Returns true if the folder can hold attributes of users.
    fn keeps_xattrs(&self) -> bool {
        let asked = rustix::fs::getxattr(&self.folder, PUBLISHED_PATH, &mut [0; 4096][..]);
        !matches!(asked, Err(Errno::NOTSUP | Errno::NOSYS))
    }

    /// Compares the folder with its base.
    fn plan(&self, base: &Lower, choices: &Choices, stop: &AtomicBool) -> Result<Planned, PublishError> {
        let Lower { sink, published, settings } = base;
        let within = path::normalise(&self.within)?;
        let access = Access::open(&self.folder)?;
        let mut filter = self.filter.clone();
        filter.left_out.clone_from(choices.dropped());
        self.add_ignored(&mut filter, base)?;
        let source = Source::open(&self.folder)?;
        let walk = Walk {
            source: &source,
            published,
            sink: &**sink,
            settings,
            filter: &filter,
            claimed: self.claimed,
            keeps_xattrs: self.keeps_xattrs(),
            access: &access,
            stop,
        };
        let Walked { mut plan, mut directories } = walk.run()?;
        let before = Dirtab::of_published(&**sink, published)?;
        let is_changed = Rules::change_in(&plan.changes);
        let now = if is_changed { Dirtab::of_folder(&self.folder)? } else { before.clone() };
        let rules = Rules { before, now };
        let tree = NewTree { published, changes: &plan.changes };
        if is_changed {
            directories = tree.directories()?;
        } else {
            directories.extend(rules.missing(tree)?);
        }
        let empty = Empty::new(settings, published.algorithm())?.content();
        for directory in directories {
            rules.follow_in(published, &mut plan.changes, empty, &directory)?;
        }
        tidy(published, &mut plan.changes)?;
        let mut dropped = BTreeMap::new();
        for path in choices.dropped() {
            revert_times_above(published, path, &mut plan.changes)?;
            let below = OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path));
            dropped.insert(path.clone(), self.folder.join(below).symlink_metadata().is_ok());
        }
        Ok(Planned { plan, within, dropped, _access: access })
    }
}

/// Reverts the times of the directories above a path that have no other change.
fn revert_times_above(published: &Published, path: &[u8], changes: &mut Changes) -> Result<(), PublishError> {
    let mut above = path::split(path).map(|(directory, _)| directory);
    while let Some(directory) = above {
        if changes.get(directory).is_some_and(|change| !change.entries.is_empty()) {
            break;
        }
        let tree = NewTree { published, changes };
        if let (Some(old), Some(new)) = (published.entry(directory)?, tree.entry(directory)?)
            && is_same_directory(&old, &new)
        {
            changes.drop_at(directory);
        }
        above = path::split(directory).map(|(directory, _)| directory);
    }
    Ok(())
}

/// Changes of an upper folder.
struct Planned {
    plan: Plan,
    within: Vec<u8>,
    /// Paths that are left out; true for those at which the upper folder has something.
    dropped: BTreeMap<Vec<u8>, bool>,
    /// Keeps the folder readable.
    _access: Access,
}

impl Planned {
    /// Returns the changes of the published revision that the lower layer was made of.
    fn changes(&self, lower: &Published, origin: &Published) -> Result<Changes, PublishError> {
        let mut changes = match lower.root_hash() == origin.root_hash() {
            true => self.plan.changes.clone(),
            false => origin::difference(origin, NewTree { published: lower, changes: &self.plan.changes })?,
        };
        for (path, is_there) in &self.dropped {
            if !changes.drop_at(path) && !is_there {
                return Err(PublishError::Unchanged(path::shown(path)));
            }
            revert_times_above(origin, path, &mut changes)?;
        }
        Ok(changes)
    }

    /// Lists the changed paths. Fails if one is outside of the directory that may change.
    fn list(&self, origin: &Published, changes: &Changes) -> Result<Vec<PathChange>, PublishError> {
        let changes = path_changes::list(origin, changes)?;
        let may_change = |change: &&PathChange| {
            let path = change.path.strip_prefix(b"/").map_or(&b""[..], |rest| match rest {
                b"" => b"",
                _ => &change.path,
            });
            let is_above = change.kind == "directory" && path::is_within(&self.within, path);
            path::is_within(path, &self.within) || is_above && change.change != ChangeKind::Removed
        };
        let mut outside =
            changes.iter().filter(|change| !may_change(change)).map(|change| change.path.clone());
        let paths: Vec<Vec<u8>> = outside.by_ref().take(OUTSIDE_NAMED).collect();
        if paths.is_empty() {
            return Ok(changes);
        }
        Err(PublishError::Outside {
            within: path::shown(&self.within),
            count: paths.len() as u64 + outside.count() as u64,
            paths: paths.iter().map(|path| path::shown(path)).collect(),
        })
    }
}

impl PublishUpper<'_> {
    /// Returns the report of a planned publish, and changes nothing.
    pub fn dry_run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let context = self.context(repository, now)?;
        let tag = context.check_tag(&self.options)?;
        let (lower, mut planned) = self.plan(&context)?;
        let mut changed = planned.changes(&lower, &context.published)?;
        let changes = planned.list(&context.published, &changed)?;
        let mut report = context.report(counts(&changes));
        report.add_remarks(std::mem::take(&mut planned.plan.remarks));
        context.foresee(&mut changed, tag, &self.options, &mut report)?;
        context.warn_of_shrink(report.differences.removed.total(), &mut report)?;
        (report.files_read, report.bytes_read) = (planned.plan.jobs as u64, planned.plan.bytes_to_read);
        report.seconds.scan = context.seconds();
        report.seconds.total = report.seconds.scan;
        Ok(report)
    }

    /// Publishes. Without a difference there is no new revision.
    pub fn run(&mut self, repository: &Repository, now: UnixTime) -> Result<Report, PublishError> {
        let context = self.context(repository, now)?;
        context.check_tag(&self.options)?;
        let index = ContentIndex::of(repository).kept();
        let (changed, mut report) = self.store(&context, &index)?;
        context.publish(&changed, Some(&index), &mut self.options, &mut report)?;
        Ok(report)
    }

    /// Stores the changes on top of the newest revision, and publishes nothing. Ignored entries are left behind.
    pub fn stage(&mut self, repository: &Repository, now: UnixTime) -> Result<Staged, PublishError> {
        let newest = repository.begin_on(self.options.tag.branch.as_ref())?;
        let context = self.context(repository, now)?;
        let index = ContentIndex::of(repository).kept();
        let (changed, report) = self.store(&context, &index)?;
        let mut staged = Staged::new(&context, &changed, &mut self.options, report.warnings)?;
        staged.warnings.extend(index.write().err().map(|error| error.to_string()));
        (staged.base.collections, staged.origin.collections) = (newest.collections, newest.collections);
        Ok(staged)
    }

    /// Stores the new contents. Returns the changes of the published revision, and the begin of the report.
    fn store(
        &mut self,
        context: &Context<'_>,
        index: &ContentIndex,
    ) -> Result<(Changes, Report), PublishError> {
        let (lower, mut planned) = self.plan(context)?;
        let changed = planned.changes(&lower, &context.published)?;
        let changes = planned.list(&context.published, &changed)?;
        let differences = counts(&changes);
        let scanned = context.seconds();
        context.check_files(&changed)?;
        context.confirm_shrink(differences.removed.total(), &mut self.options)?;
        self.store_contents(context, &mut planned.plan, index)?;
        tidy(&lower, &mut planned.plan.changes)?;
        let changed = planned.changes(&lower, &context.published)?;
        let mut report = context.report(differences);
        report.add_remarks(std::mem::take(&mut planned.plan.remarks));
        report.seconds.scan = scanned;
        report.seconds.store = context.seconds() - scanned;
        Ok((changed, report))
    }

    fn context<'c>(&self, repository: &'c Repository, now: UnixTime) -> Result<Context<'c>, PublishError> {
        let base = self.upper.origin.as_ref().unwrap_or(&self.upper.base);
        let mut context = Context::without_index(repository, base.base(), now)?;
        context.choices = Some(self.choices.clone());
        Ok(context)
    }

    /// Returns the lower layer, and what the upper folder changes in it.
    fn plan(&mut self, context: &Context<'_>) -> Result<(Published, Planned), PublishError> {
        let PublishOptions { stop, progress, .. } = &mut self.options;
        progress(context.counters.progress(Phase::Scan, 0, 0, context.started.elapsed()));
        let sink: Arc<dyn Sink> = context.repository.storage().sink().clone();
        let published = Published::with_root(sink.clone(), self.upper.base.root, self.upper.base.size);
        let lower = Lower { sink, published, settings: *context.repository.settings() };
        let planned = self.upper.plan(&lower, &self.choices, stop)?;
        Ok((lower.published, planned))
    }

    /// Stores the new contents, and fills in where they went.
    fn store_contents(
        &mut self,
        context: &Context<'_>,
        plan: &mut Plan,
        index: &ContentIndex,
    ) -> Result<(), PublishError> {
        let contents = context.store_folder(&self.upper.folder, plan, (index, false), &mut self.options)?;
        for waiting in std::mem::take(&mut plan.waiting) {
            let content = contents
                .get(waiting.job)
                .expect("every job has its content because the pipeline ended without an error");
            let entry = plan
                .changes
                .entry_mut(&waiting.directory, &waiting.name)
                .expect("an entry that waits for content differs from the published one because it has none");
            content.set_in(entry);
        }
        Ok(())
    }
}

/// Counts changes by kind.
fn counts(changes: &[PathChange]) -> Differences {
    let mut differences = Differences::default();
    for change in changes {
        let counts = match change.change {
            ChangeKind::Added => &mut differences.added,
            ChangeKind::Changed => &mut differences.changed,
            ChangeKind::Removed => &mut differences.removed,
        };
        match change.kind {
            "file" => counts.files += 1,
            "directory" => counts.directories += 1,
            "symlink" => counts.symlinks += 1,
            _ => counts.special += 1,
        }
    }
    differences
}
