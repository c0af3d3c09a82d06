//! The virtual directory `/.cvmfs/snapshots`, which shows each tagged revision in a directory of its own.
//!
//! It is a hidden nested catalog of bind mountpoints, so that neither its size nor its cost depends on what the
//! revisions hold. A tag may name the newest revision, which therefore can't list itself: the directory is part of a
//! revision that follows.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use esker_format::catalog::{Flags, NestedCatalog, is_name};
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, Tag};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_format::trust::VerifiedHead;
use esker_format::write::catalog::Entry;
use esker_format::write::history::{HistoryDraft, is_reserved};
use esker_repository::{
    Encoder, Repository, RepositoryError,
    entry::MARKER,
    head::{HeadLock, Next, exclusively},
    path::{self, RESERVED},
    published::{OldCatalog, Published},
};

use crate::catalogs::{CatalogBuilder, outline_all};
use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::report::Report;

/// The directory with a directory for each tag.
const SNAPSHOTS: &[u8] = b"/.cvmfs/snapshots";
/// Size of the directories in the rows of the reference.
const DIRECTORY_SIZE: u64 = 97;

/// A revision with other snapshots.
pub(crate) struct Refreshed {
    pub(crate) number: u64,
    pub(crate) root: String,
}

/// Brings the virtual directory in line with the tags and the settings. Returns the revision that this makes; none if
/// nothing was to do.
pub(crate) fn refresh(
    repository: &Repository,
    now: UnixTime,
    stop: &AtomicBool,
) -> Result<Option<Refreshed>, PublishError> {
    let is_wanted = |head: &VerifiedHead| -> Result<Option<bool>, PublishError> {
        let exists =
            Published::new(repository.storage().sink().clone(), head).root()?.nested.contains_key(RESERVED);
        // Without settings of this repository, what another program made stays.
        let wanted = repository.settings().virtual_snapshots || exists && !repository.has_settings();
        Ok(Some(wanted).filter(|wanted| *wanted || exists))
    };
    // Most repositories have no snapshots, and need no lock for that.
    if is_wanted(&repository.read_head()?.verified)?.is_none() {
        return Ok(None);
    }
    exclusively(repository, stop, |lock| {
        let Some(wanted) = is_wanted(&lock.head().verified)? else { return Ok((None, None)) };
        let (next, refreshed) = write(repository, lock, wanted, now)?.unzip();
        Ok((next, refreshed))
    })
}

/// Brings the virtual directory up to date after a publish. The revision is public already, so a failure only delays
/// that until the next publish.
pub(crate) fn follow(repository: &Repository, now: UnixTime, stop: &AtomicBool, report: &mut Report) {
    if !report.published && report.tag.is_none() {
        return;
    }
    match refresh(repository, now, stop) {
        Ok(Some(_)) if report.branch.is_some() => {}
        Ok(Some(revision)) => (report.revision, report.root) = (revision.number, revision.root),
        Ok(None) => {}
        Err(error) => {
            report.warnings.push(format!("/.cvmfs/snapshots is out of date until the next publish: {error}"));
        }
    }
}

/// Writes the next revision; none if the directory is as it has to be.
fn write(
    repository: &Repository,
    lock: &HeadLock<'_>,
    wanted: bool,
    now: UnixTime,
) -> Result<Option<(Next, Refreshed)>, PublishError> {
    let head = &lock.head().verified;
    let published = Published::new(repository.storage().sink().clone(), head);
    let mut history = lock.history()?;
    let mut changes = Changes::default();
    let same = lock.same_revision(now);
    match wanted {
        true => {
            Refresh { repository, published: &published, now: same.timestamp }
                .plan(&history, &mut changes)?;
        }
        false => changes.remove(b"", &RESERVED[1..]),
    }
    if changes.is_empty() {
        return Ok(None);
    }
    changes.touch(b"");
    let builder = CatalogBuilder {
        tree: NewTree { published: &published, changes: &changes },
        sink: repository.sink(),
        algorithm: head.hash_algorithm(),
        revision: head.revision().saturating_add(1),
        replaces: None,
        recount: false,
        now: same.timestamp,
        ttl: published.root()?.catalog.properties().ttl.unwrap_or(head.ttl()),
        built: Default::default(),
    };
    let root = builder.run(&outline_all(builder.tree)?, 1)?;
    // An undo is to take back what was published before, and not this.
    history.replace_head(&Tag {
        name: String::new(),
        root_catalog: root.hash,
        size: Some(root.size),
        revision: builder.revision,
        timestamp: builder.now,
        description: String::new(),
        branch: DEFAULT_BRANCH.to_owned(),
    });
    let (revision, ttl) = (builder.revision, builder.ttl);
    let next = Next { root: (root.hash, root.size), revision, ttl, history: Some(history), ..same };
    Ok(Some((next, Refreshed { number: revision, root: root.hash.to_string() })))
}

struct Refresh<'r> {
    repository: &'r Repository,
    published: &'r Published,
    now: UnixTime,
}

impl Refresh<'_> {
    fn plan(&self, history: &HistoryDraft, changes: &mut Changes) -> Result<(), PublishError> {
        let entry = |path: &[u8]| self.published.entry(path);
        if entry(RESERVED)?.is_none() {
            let mut top = self.directory(&RESERVED[1..]);
            top.flags.0 |= Flags::HIDDEN;
            changes.put(b"", top);
        }
        if entry(&path::join(RESERVED, MARKER))?.is_none() {
            changes.put(RESERVED, self.marker()?);
        }
        let mut shown = BTreeMap::new();
        if entry(SNAPSHOTS)?.is_none() {
            changes.put(RESERVED, self.directory(b"snapshots"));
        } else {
            for entry in self.published.list(SNAPSHOTS)? {
                let bind = self.published.nested_at(&path::join(SNAPSHOTS, &entry.name))?;
                shown.insert(entry.name, bind.and_then(|bind| bind.hash));
            }
        }
        for tag in history.tags() {
            // A name with a slash can't be that of a directory.
            if is_reserved(&tag.name) || !is_name(tag.name.as_bytes()) {
                continue;
            }
            let before = shown.remove(tag.name.as_bytes());
            if before != Some(Some(tag.root_catalog)) && !self.show(tag, changes)? && before.is_some() {
                changes.remove(SNAPSHOTS, tag.name.as_bytes());
            }
        }
        shown.keys().for_each(|name| changes.remove(SNAPSHOTS, name));
        Ok(())
    }

    /// Shows the revision of a tag. Returns false if it can't be shown, since it was collected.
    fn show(&self, tag: &Tag, changes: &mut Changes) -> Result<bool, PublishError> {
        let root = match OldCatalog::read(&*self.published.objects, b"", tag.root_catalog, tag.size) {
            Err(RepositoryError::Missing { .. }) => return Ok(false),
            root => root?,
        };
        let Some(top) = root.entry(b"")? else { return Ok(false) };
        let path = path::join(SNAPSHOTS, tag.name.as_bytes());
        let entry = Entry {
            name: tag.name.clone().into_bytes(),
            flags: Flags(Flags::BIND_MOUNTPOINT),
            xattrs: None,
            ..top
        };
        let (hash, size) = (Some(tag.root_catalog), Some(root.catalog.size()));
        changes.put(SNAPSHOTS, entry);
        changes.bind(NestedCatalog { path, hash, size, bind: true });
        Ok(true)
    }

    fn directory(&self, name: &[u8]) -> Entry {
        let (name, mtime) = (name.to_vec(), self.now.0);
        Entry { name, size: DIRECTORY_SIZE, mtime, link_count: 2, ..Entry::of_mode(0o040_555) }
    }

    fn marker(&self) -> Result<Entry, PublishError> {
        let algorithm = self.repository.head().hash_algorithm();
        let mut room = Vec::new();
        let stored = Encoder::for_metadata().encode(b"", &mut room)?;
        let hash = ContentHash::of(algorithm, stored);
        self.repository.sink().put(&ObjectName::new(hash, ObjectKind::File), stored)?;
        Ok(Entry {
            name: MARKER.to_vec(),
            mtime: self.now.0,
            hash: Some(hash),
            flags: Flags(Flags::storage(algorithm, Compression::Zlib)),
            ..Entry::of_mode(0o100_444)
        })
    }
}
