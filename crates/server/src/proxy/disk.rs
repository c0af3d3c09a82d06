//! Stores verified objects in a folder. The file system is the index, so memory does not grow with the cache.
//!
//! ```text
//! DIR/objects/ab/cdef…   an object, named as on the server; its time of change is the time of its last use
//! DIR/tmp/               unfinished files, removed at the start
//! DIR/heads/             manifests and whitelists that were handed out
//! DIR/clean              bytes by folder, present only after a clean stop
//! ```
//!
//! Objects are not synced one by one. After an unclean stop each object is verified again before its first use: one
//! whose inode changed before the start is doubtful, and the verification changes its inode.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use esker_format::hash::Hasher;
use esker_format::object::ObjectName;
use esker_store::{FileLock, Locking, RealDisk, make_dirs, persist};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{Timespec, Timestamps};

use super::evict;

/// Number of folders of objects, one for each first byte of a hash.
pub(crate) const FOLDERS: usize = 256;
/// Number of threads that list the folders after an unclean stop.
const LISTERS: usize = 8;
/// Number of bytes in one read of a verification.
const PIECE: usize = 256 << 10;
/// Name of the file with the bytes of each folder.
const CLEAN: &str = "clean";

/// Failure to open a cache folder.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Another process uses the folder.
    #[error("the cache {} is in use by another proxy{}", path.display(), pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Busy {
        /// The folder.
        path: PathBuf,
        /// Process id of the other proxy, if known.
        pid: Option<u32>,
    },
    /// The folder can't be used.
    #[error("can't use the cache folder {}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
}

/// An object's file and whether its bytes are known to be right.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: File,
    pub(crate) len: u64,
    pub(crate) is_trusted: bool,
}

/// Bytes of an object to store.
pub(crate) enum Incoming {
    Bytes(Bytes),
    Reader(Box<dyn Read + Send>, u64),
}

/// A folder of objects with a limit of bytes.
#[derive(Debug)]
pub(crate) struct DiskCache {
    root: PathBuf,
    pub(super) limit: u64,
    /// Bytes of all objects, those being written included.
    used: AtomicU64,
    /// Bytes of each folder; its lock is held for each change in the folder.
    pub(super) folders: Vec<Mutex<u64>>,
    /// Time of an unclean stop's restart; inodes not changed after it are doubtful.
    doubtful_before: Option<SystemTime>,
    /// Age of the recorded last use at which a new use is recorded.
    record_after: Duration,
    /// Next folder that an eviction looks at.
    pub(super) cursor: Mutex<usize>,
    temporary: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// True after [`Self::close`]; held for reading while an object is stored or removed.
    is_closed: RwLock<bool>,
    _lock: FileLock,
}

impl DiskCache {
    /// Opens or creates the cache. Lists all objects after an unclean stop.
    pub(crate) fn open(root: &Path, limit: u64, record_after: Duration) -> Result<Self, CacheError> {
        let failed = |source| CacheError::Io { path: root.to_owned(), source };
        make_dirs(&RealDisk::PRIVATE, root).map_err(failed)?;
        let lock = match FileLock::try_take(&root.join("lock")).map_err(failed)? {
            Locking::Taken(lock) => lock,
            Locking::Held(holder) => return Err(CacheError::Busy { path: root.to_owned(), pid: holder.pid }),
        };
        let temporary = root.join("tmp");
        for folder in ["objects", "heads", "tmp"] {
            fs::create_dir_all(root.join(folder)).map_err(failed)?;
        }
        for entry in fs::read_dir(&temporary).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        for number in 0..FOLDERS {
            match fs::create_dir(root.join(format!("objects/{number:02x}"))) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ => {}
            }
        }
        let clean = read_clean(root);
        let is_clean = clean.is_some();
        match fs::remove_file(root.join(CLEAN)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => File::open(root).and_then(|folder| folder.sync_all()).map_err(failed)?,
        }
        let folders = match clean {
            Some(bytes) => bytes,
            None => list_all(root).map_err(failed)?,
        };
        // A new cache has nothing to doubt.
        let is_doubtful = !is_clean && folders.iter().any(|bytes| *bytes > 0);
        let doubtful_before = if is_doubtful { Some(now_at(&temporary).map_err(failed)?) } else { None };
        let cache = Self {
            root: root.to_owned(),
            limit,
            used: AtomicU64::new(folders.iter().sum()),
            folders: folders.into_iter().map(Mutex::new).collect(),
            doubtful_before,
            record_after,
            cursor: Mutex::new(0),
            temporary: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            is_closed: RwLock::new(false),
            _lock: lock,
        };
        // The limit may be smaller than at the last start.
        let _ = evict::make_room(&cache, 0);
        Ok(cache)
    }

    /// Returns the folder of manifests and whitelists.
    pub(crate) fn heads(&self) -> PathBuf {
        self.root.join("heads")
    }

    /// Returns the bytes of all objects.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns true if every object is verified before its first use since the start.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful_before.is_some()
    }

    /// Finds an object and records its use.
    pub(crate) fn find(&self, name: ObjectName) -> io::Result<Option<Found>> {
        let file = match File::open(self.path(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Ok(None);
        }
        let changed = time(facts.ctime(), facts.ctime_nsec());
        // An object of the same tick may be from before the start: it is verified once too often rather than never.
        let is_trusted = self.doubtful_before.is_none_or(|start| changed > start);
        if is_trusted {
            let used = time(facts.mtime(), facts.mtime_nsec());
            if SystemTime::now().duration_since(used).unwrap_or(Duration::MAX) >= self.record_after {
                record_use(&file)?;
            }
        }
        Ok(Some(Found { file, len: facts.len(), is_trusted }))
    }

    /// Compares an object's bytes with its name. A damaged object is removed.
    pub(crate) fn verify(&self, name: ObjectName, found: Found) -> io::Result<Option<Found>> {
        let mut hasher = Hasher::new(name.hash.algorithm());
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let read = found.file.read_at(&mut piece, at)?;
            if read == 0 {
                break;
            }
            hasher.update(piece.get(..read).unwrap_or_default());
            at += read as u64;
        }
        if hasher.finish() == name.hash {
            record_use(&found.file)?;
            return Ok(Some(Found { is_trusted: true, len: at, ..found }));
        }
        tracing::warn!("the cached object {name} was damaged and is removed");
        let is_closed = self.is_closed.read();
        if *is_closed {
            return Ok(None);
        }
        self.remove(folder_of(name), &self.path(name), None)?;
        Ok(None)
    }

    /// Stores an object. Returns false if there is no room for it.
    pub(crate) fn put(&self, name: ObjectName, content: Incoming) -> io::Result<bool> {
        let len = match &content {
            Incoming::Bytes(bytes) => bytes.len() as u64,
            Incoming::Reader(_, len) => *len,
        };
        let is_closed = self.is_closed.read();
        if *is_closed || !evict::make_room(self, len) {
            return Ok(false);
        }
        let temporary = self.temporary();
        let stored = self.write(&temporary, content, len).and_then(|()| self.place(name, &temporary, len));
        if stored.is_err() {
            self.release(len);
            // What is left of it is removed at the next start, too.
            let _ = fs::remove_file(&temporary);
        }
        stored.map(|()| true)
    }

    fn write(&self, path: &Path, content: Incoming, len: u64) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        match content {
            Incoming::Bytes(bytes) => file.write_all(&bytes),
            Incoming::Reader(mut reader, _) => {
                let copied = io::copy(&mut reader, &mut file)?;
                if copied == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }
        }
    }

    fn place(&self, name: ObjectName, temporary: &Path, len: u64) -> io::Result<()> {
        let path = self.path(name);
        let mut bytes = self.folders[folder_of(name)].lock();
        let before = fs::symlink_metadata(&path).map_or(0, |facts| facts.len());
        fs::rename(temporary, &path)?;
        *bytes = (*bytes + len).saturating_sub(before);
        drop(bytes);
        self.release(before);
        Ok(())
    }

    /// Reserves bytes if they are below the limit.
    pub(super) fn reserve(&self, len: u64) -> bool {
        let more = |used: u64| used.checked_add(len).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn release(&self, len: u64) {
        let less = |used: u64| Some(used.saturating_sub(len));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Removes an object unless it was used after `last_use`; returns its bytes.
    pub(super) fn remove(&self, folder: usize, path: &Path, last_use: Option<SystemTime>) -> io::Result<u64> {
        let mut bytes = self.folders[folder].lock();
        let facts = match fs::symlink_metadata(path) {
            Ok(facts) => facts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        if last_use.is_some_and(|last| facts.modified().is_ok_and(|now| now > last)) {
            return Ok(0);
        }
        fs::remove_file(path)?;
        *bytes = bytes.saturating_sub(facts.len());
        drop(bytes);
        self.release(facts.len());
        Ok(facts.len())
    }

    /// Syncs all objects and records that the stop was clean.
    pub(crate) fn close(&self) -> Result<(), CacheError> {
        // Requests that were cut at the end of the grace may still work.
        *self.is_closed.write() = true;
        self.record_clean().map_err(|source| CacheError::Io { path: self.root.clone(), source })
    }

    fn record_clean(&self) -> io::Result<()> {
        let folder = File::open(&self.root)?;
        rustix::fs::syncfs(&folder)?;
        let bytes: Vec<String> = self.folders.iter().map(|folder| folder.lock().to_string()).collect();
        persist(&RealDisk::PRIVATE, &self.root.join(CLEAN), format!("{}\n", bytes.join(" ")).as_bytes())
    }

    pub(super) fn folder(&self, number: usize) -> PathBuf {
        self.root.join(format!("objects/{number:02x}"))
    }

    fn path(&self, name: ObjectName) -> PathBuf {
        let path = name.path();
        self.root.join("objects").join(path.strip_prefix("data/").unwrap_or(&path))
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.root.join(format!("tmp/{}", self.temporary.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Returns the folder of an object.
fn folder_of(name: ObjectName) -> usize {
    usize::from(name.hash.digest()[0])
}

pub(super) fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    UNIX_EPOCH + seconds + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

/// Returns the time by the clock of the file system, which is coarser than that of the process.
fn now_at(folder: &Path) -> io::Result<SystemTime> {
    let probe = folder.join("clock");
    let facts = File::create(&probe)?.metadata()?;
    fs::remove_file(&probe)?;
    Ok(time(facts.ctime(), facts.ctime_nsec()))
}

/// Sets the time of the last use to now, which changes the inode, too.
fn record_use(file: &File) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Ok(rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now })?)
}

/// Reads the bytes of each folder; `None` after an unclean stop.
fn read_clean(root: &Path) -> Option<Vec<u64>> {
    let text = fs::read_to_string(root.join(CLEAN)).ok()?;
    let bytes: Vec<u64> = text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    (bytes.len() == FOLDERS).then_some(bytes)
}

/// Sums the objects of each folder.
fn list_all(root: &Path) -> io::Result<Vec<u64>> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let sums: Vec<AtomicU64> = (0..FOLDERS).map(|_| AtomicU64::new(0)).collect();
    let work = || -> io::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(sum) = sums.get(number) else { return Ok(()) };
            let mut bytes = 0;
            for entry in fs::read_dir(root.join(format!("objects/{number:02x}")))? {
                bytes += entry?.metadata().map_or(0, |facts| facts.len());
            }
            sum.store(bytes, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let listers: Vec<_> = (0..LISTERS).map(|_| scope.spawn(work)).collect();
        listers.into_iter().try_for_each(|lister| {
            lister.join().unwrap_or_else(|_| Err(io::Error::other("a lister panicked")))
        })
    })?;
    Ok(sums.into_iter().map(AtomicU64::into_inner).collect())
}

#[cfg(test)]
mod tests;
