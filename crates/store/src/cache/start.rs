//! Opening and closing a cache folder.
//!
//! 1. Make and check the folder, take the lock: one writer.
//! 2. Read the index. Remove it durably before anything else changes: from now on a stop is unclean.
//! 3. With a good index, its objects become entries. Without one, every file in `objects/` does. Each is checked before
//!    its first use.
//! 4. Remove unfinished files.

use parking_lot::{Mutex, RwLock};
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::descriptors::{Descriptors, default_limit};
use super::disk::{Disk, TEMPORARY_PREFIX, persist};
use super::disk_failures::DiskFailures;
use super::drafts::{Drafts, is_draft};
use super::entry::{Entry, Reads, Table};
use super::evict;
use super::index::{self, Listed};
use super::layout::Layout;
use super::occupation::Occupation;
use super::options::CacheOptions;
use super::pins::Pins;
use super::space::{Marks, Space};
use super::state::{CacheCounts, CacheState, Found, LowerCache};
use super::trailer::TRAILER_LEN;
use super::uncached::UncachedAccount;
use crate::engine::Engine;
use crate::error::Cause;
use crate::folder_owner::CacheKind;

/// Maximum memory in bytes for objects that are served uncached because the disk fails. They live as long as a reader
/// holds them, so this bounds the bytes read at once.
const UNKEPT_MEMORY_MAX: u64 = 256 << 20;

/// Content of the folder when the cache was opened.
pub(super) struct Loaded {
    entries: Vec<Listed>,
    found: Found,
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> Cause {
    Cause::Disk { doing, path: path.to_owned(), source }
}

/// Refuses a folder of something else, in which nothing may be removed.
pub(crate) fn ours(folder: &Path) -> Result<(), Cause> {
    let found = CacheKind::Mounts.foreign_entry(folder);
    match found.map_err(|source| failed("listing", folder, source))? {
        Some(entry) => Err(Cause::NotOurs { path: folder.to_owned(), entry }),
        None => Ok(()),
    }
}

/// Creates the folders, and refuses a folder that others could write to, or that is something else's.
pub(super) fn make_folders(disk: &dyn Disk, layout: &Layout) -> Result<(), Cause> {
    if let Some(parent) = layout.root.parent()
        && !parent.as_os_str().is_empty()
        && !parent.exists()
    {
        std::fs::create_dir_all(parent).map_err(|source| failed("making the folder", parent, source))?;
    }
    ours(&layout.root)?;
    for folder in [&layout.root, &layout.objects, &layout.txn, &layout.heads] {
        disk.make_dir(folder).map_err(|source| failed("making the folder", folder, source))?;
    }
    private(&layout.root)
}

/// Refuses a folder that another user owns or can write to.
pub(crate) fn private(folder: &Path) -> Result<(), Cause> {
    let facts = std::fs::metadata(folder).map_err(|source| failed("looking at", folder, source))?;
    let me = rustix::process::geteuid().as_raw();
    let problem = if facts.uid() != me {
        format!("belongs to user {} and not to user {me}, who wants to use it as a cache", facts.uid())
    } else if facts.mode() & 0o022 != 0 {
        "may be written to by other users, who could put anything there; use `chmod go-w`".to_owned()
    } else {
        return Ok(());
    };
    Err(Cause::NotPrivate { path: folder.to_owned(), problem })
}

/// Performs steps 2 to 4 of opening; returns the content found.
pub(super) fn load(disk: &dyn Disk, layout: &Layout) -> Result<Loaded, Cause> {
    let listed = read_index(disk, layout);
    match disk.remove(&layout.index) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(failed("removing", &layout.index, source)),
    }
    disk.sync_dir(&layout.root).map_err(|source| failed("syncing", &layout.root, source))?;
    let mut leftovers = remove_all(disk, &layout.txn, is_draft)?;
    let unfinished = |name: &OsStr| name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes());
    leftovers += remove_all(disk, &layout.heads, unfinished)?;
    leftovers += remove_all(disk, &layout.root, unfinished)?;
    match listed {
        Some(entries) => Ok(Loaded { entries, found: Found { leftovers, unclean: false } }),
        None => {
            let entries = scan(disk, layout)?;
            let unclean = !entries.is_empty() || leftovers > 0;
            Ok(Loaded { entries, found: Found { leftovers, unclean } })
        }
    }
}

fn read_index(disk: &dyn Disk, layout: &Layout) -> Option<Vec<Listed>> {
    let facts = disk.facts(&layout.index).ok()?;
    let file = disk.open(&layout.index).ok()?;
    let mut bytes = vec![0; usize::try_from(facts.len).ok()?];
    disk.read_exact_at(&file, &mut bytes, 0).ok()?;
    index::decode(&bytes)
}

fn remove_all(disk: &dyn Disk, folder: &Path, which: impl Fn(&OsStr) -> bool) -> Result<u64, Cause> {
    let names = disk.list(folder).map_err(|source| failed("listing", folder, source))?;
    let mut removed = 0;
    for name in names.iter().filter(|name| which(name)) {
        let path = folder.join(name);
        disk.remove(&path).map_err(|source| failed("removing", &path, source))?;
        removed += 1;
    }
    Ok(removed)
}

/// Lists the objects in `objects/`, least recently modified first, because the order of reads is unknown. Damaged ones are
/// removed, which would take space outside of the account; files with names that the cache never gives are left alone.
fn scan(disk: &dyn Disk, layout: &Layout) -> Result<Vec<Listed>, Cause> {
    let mut found: Vec<(SystemTime, Listed)> = Vec::new();
    for folder_name in list(disk, &layout.objects)? {
        let folder = layout.objects.join(&folder_name);
        if folder_name.len() != 2 || facts(disk, &folder)?.regular {
            continue;
        }
        for name in list(disk, &folder)? {
            let path = folder.join(&name);
            let facts = facts(disk, &path)?;
            let key = folder_name.to_str().zip(name.to_str()).and_then(|(dir, name)| Layout::key(dir, name));
            let plain_len = facts.len.checked_sub(TRAILER_LEN as u64);
            match (key, plain_len) {
                (Some(key), Some(plain_len)) if facts.regular => {
                    found.push((facts.modified, Listed { key, plain_len }));
                }
                (Some(_), _) => remove(disk, &path)?,
                (None, _) => {}
            }
        }
    }
    found.sort_by_key(|(modified, listed)| (*modified, listed.key));
    Ok(found.into_iter().map(|(_, listed)| listed).collect())
}

fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<std::ffi::OsString>, Cause> {
    disk.list(folder).map_err(|source| failed("listing", folder, source))
}

fn facts(disk: &dyn Disk, path: &Path) -> Result<super::disk::FileFacts, Cause> {
    disk.facts(path).map_err(|source| failed("looking at", path, source))
}

fn remove(disk: &dyn Disk, path: &Path) -> Result<(), Cause> {
    disk.remove(path).map_err(|source| failed("removing", path, source))
}

/// Returns the block size of the file system, within sensible limits, for counting the size of files.
pub(super) fn block_size(root: &Path) -> u64 {
    rustix::fs::statvfs(root).map_or(4096, |facts| facts.f_frsize).clamp(512, 1 << 16)
}

impl CacheState {
    /// Opens a cache folder and starts its evictor.
    pub(super) fn open(
        engine: &Engine,
        folder: &Path,
        options: CacheOptions,
        lower: Option<Arc<dyn LowerCache>>,
    ) -> Result<Arc<Self>, Cause> {
        let (pool, disk) = (engine.pool().clone(), options.disk.clone());
        let layout = Layout::new(folder);
        make_folders(&*disk, &layout)?;
        let occupation = Occupation::take(&layout)?;
        let opened = load(&*disk, &layout)?;
        let drafts = Drafts::open(disk.clone(), &layout.txn);
        let cannot_start =
            |source| Cause::Disk { doing: "starting threads for", path: folder.into(), source };
        let space = Space::new(Marks::new(options.quota, options.hard_limit, options.patience));
        let limit = options.descriptors.unwrap_or_else(default_limit);
        let descriptors = Descriptors::new(limit, Arc::downgrade(&pool), layout.clone());
        let (pins, unreadable) = Pins::load(&*disk, &layout.pins);
        let inner = Arc::new(Self {
            disk,
            pins,
            block: block_size(&layout.root),
            layout,
            table: Table::new(),
            space,
            uncached_files: UncachedAccount::new(options.unkept_limit),
            uncached_memory: UncachedAccount::new(UNKEPT_MEMORY_MAX),
            descriptors,
            holders: Mutex::default(),
            lower,
            streaming: options.streaming,
            pool,
            evictor: Mutex::new(None),
            occupation,
            gate: RwLock::new(false),
            reads: Reads::default(),
            drafts,
            counts: CacheCounts::default(),
            disk_failures: DiskFailures::default(),
            no_index: AtomicBool::new(false),
            found: opened.found,
        });
        if unreadable.is_some() {
            inner.disk_failures.note_silently();
        }
        inner.adopt(&opened.entries);
        let (space, weak) = (inner.space.clone(), Arc::downgrade(&inner));
        let evictor =
            esker_threads::spawn("esker-evict", move || evict::run(&space, &weak)).map_err(cannot_start)?;
        *inner.evictor.lock() = Some(evictor);
        Ok(inner)
    }

    /// Fills the table and the account with the result of [`load`].
    pub(super) fn adopt(&self, entries: &[Listed]) {
        for (place, listed) in (0..).zip(entries) {
            let Listed { key, plain_len } = *listed;
            let entry = Entry::new(key, plain_len, place, None, &self.descriptors);
            self.enter(entry);
        }
        self.space.charge(entries.iter().map(|listed| self.charge_of(listed.plain_len)).sum());
    }

    /// Shuts down cleanly: stops writing, makes everything durable, then writes the index. Only the first call
    /// has an effect.
    pub(super) fn close(&self) -> Result<(), Cause> {
        {
            let mut closed = self.gate.write();
            if std::mem::replace(&mut *closed, true) {
                return Ok(());
            }
        }
        if let Some(lower) = &self.lower {
            lower.stop();
        }
        self.space.stop();
        self.descriptors.close();
        self.stop_evictor();
        // At the place of a folder that is gone there may be another, with a writer of its own.
        let unlisted = self.no_index.load(Ordering::Relaxed) || self.is_lost();
        let outcome = if unlisted { Ok(()) } else { self.write_index() };
        // Held until here, so that no other process writes meanwhile.
        self.occupation.end();
        outcome
    }

    fn write_index(&self) -> Result<(), Cause> {
        let layout = &self.layout;
        let listed = |(_, entry): (u64, Arc<Entry>)| Listed { key: entry.key, plain_len: entry.plain_len };
        let entries: Vec<_> = self.table.oldest_first().into_iter().map(listed).collect();
        self.disk.sync_all(&layout.root).map_err(|source| self.failed("syncing", &layout.root, source))?;
        let bytes = index::encode(&entries);
        persist(&*self.disk, &layout.index, &bytes)
            .map_err(|source| self.failed("writing", &layout.index, source))
    }
}
