//! Stores verified objects in a folder. The file system is the index, so memory does not grow with the cache.
//!
//! ```text
//! DIR/objects/ab/cdef…   an object, named as on the server; its time of change is the time of its last use
//! DIR/tmp/               unfinished files, removed at the start
//! DIR/heads/             manifests and whitelists that were handed out
//! DIR/clean              bytes by folder, present only after a clean stop
//! ```
//!
//! A full disk costs no request more than a failed allocation: own objects make room, and where they can't, bytes are handed on
//! without being stored ([`DiskCache::trouble`] tells).
//!
//! Objects are not synced one by one. After an unclean stop each object is verified again before its first use: one
//! whose inode changed before the start is doubtful, and the verification changes its inode.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use esker_format::hash::Hasher;
use esker_format::object::ObjectName;
use esker_store::{CacheKind, FileLock, Locking, RealDisk, is_full, make_dirs, persist, read_file};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use super::evict;
use super::in_use::InUse;

/// Number of folders of objects, one for each first byte of a hash.
pub(crate) const FOLDERS: usize = 256;
/// Number of threads that list the folders after an unclean stop.
const LISTERS: usize = 8;
/// Number of bytes in one read of a verification.
pub(super) const PIECE: usize = 256 << 10;
/// Name of the file with the bytes of each folder.
const CLEAN: &str = "clean";
/// Longest such file, in bytes: a number of up to 20 digits for each folder.
const CLEAN_MAX: u64 = 21 * FOLDERS as u64 + 1;
/// Name of an empty file whose times show the clock of the file system.
const CLOCK: &str = "clock";
/// Maximum number of bytes that are sent and not stored, and of bodies in memory that the disk has no room for.
const MEMORY_MAX: u64 = 256 << 20;
/// Time for which no room is made again after that was of no use.
const NO_ROOM: Duration = Duration::from_secs(2);
/// Size of the file that is written to find out whether the disk is well again.
const PROBE: usize = 64 << 10;

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
    /// The folder is not empty, and nothing in it says that a proxy made it.
    #[error("{} is not empty and is no cache of a proxy: it holds `{}`", path.display(), entry.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// Name of an entry that a proxy's cache doesn't have.
        entry: OsString,
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
    /// Next folder that an eviction reads.
    pub(super) cursor: Mutex<usize>,
    temporary: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// True after [`Self::close`]; held for reading while an object is stored or removed.
    is_closed: RwLock<bool>,
    /// Reason of the last failure to store something; none once something was stored again.
    trouble: Mutex<Option<String>>,
    /// Time at which the disk was full although room had been made, or there was nothing to evict.
    no_room: Mutex<Option<Instant>>,
    /// Bytes of bodies in memory that are being received, and files in memory that were handed out.
    pub(super) in_memory: AtomicU64,
    lent: Mutex<Vec<(Weak<File>, u64)>>,
    /// Bytes of bodies that are being received in files.
    pub(super) receiving: AtomicU64,
    /// Objects that are being sent.
    pub(super) in_use: InUse,
    _lock: FileLock,
}

/// An unfinished file with room for an object; removed on drop unless it became the object.
pub(crate) struct Draft<'c> {
    cache: &'c DiskCache,
    file: File,
    path: PathBuf,
    len: u64,
    /// True if the cache still counts its bytes as reserved for it.
    is_reserved: bool,
    /// Keeps the cache open.
    _gate: RwLockReadGuard<'c, bool>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.is_reserved {
            self.cache.release(self.len);
            // What is left of it is removed at the next start, too.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl DiskCache {
    /// Opens or creates the cache. Lists all objects after an unclean stop.
    pub(crate) fn open(root: &Path, limit: u64, record_after: Duration) -> Result<Self, CacheError> {
        let failed = |source| CacheError::Io { path: root.to_owned(), source };
        if let Some(entry) = CacheKind::Proxy.foreign_entry(root).map_err(failed)? {
            return Err(CacheError::NotOurs { path: root.to_owned(), entry });
        }
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
            let entry = entry.map_err(failed)?;
            let is_number = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
            if is_number || entry.file_name() == CLOCK {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
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
            trouble: Mutex::default(),
            no_room: Mutex::default(),
            in_memory: AtomicU64::new(0),
            lent: Mutex::default(),
            receiving: AtomicU64::new(0),
            in_use: InUse::default(),
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
                record_use(&self.path(name))?;
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
            record_use(&self.path(name))?;
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
        let Some(draft) = self.begin(len)? else { return Ok(false) };
        self.finish(draft, name, content).map(|()| true)
    }

    /// Makes a file with room for so many bytes; `None` if the cache has none.
    pub(crate) fn begin(&self, len: u64) -> io::Result<Option<Draft<'_>>> {
        let gate = self.is_closed.read();
        if *gate || !evict::make_room(self, len) {
            return Ok(None);
        }
        let made = self.with_room(len, || {
            let path = self.temporary();
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            // So that a full disk is found out before anything is written.
            allocate(&file, len).inspect_err(|_| _ = fs::remove_file(&path))?;
            Ok((file, path))
        });
        let (file, path) = made.inspect_err(|_| self.release(len))?;
        Ok(Some(Draft { cache: self, file, path, len, is_reserved: true, _gate: gate }))
    }

    /// Writes an object into its file and names it.
    pub(crate) fn finish(&self, mut draft: Draft<'_>, name: ObjectName, content: Incoming) -> io::Result<()> {
        let written = match content {
            Incoming::Bytes(bytes) => draft.file.write_all(&bytes),
            Incoming::Reader(mut reader, _) => {
                io::copy(&mut reader, &mut draft.file).and_then(|copied| match copied == draft.len {
                    true => Ok(()),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                })
            }
        };
        let stored = written.and_then(|()| self.place(name, &draft.path, draft.len));
        self.note(stored.as_ref().err());
        draft.is_reserved = stored.is_err();
        stored
    }

    /// Saves a small file durably.
    pub(crate) fn save(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.with_room(bytes.len() as u64, || {
            make_dirs(&RealDisk::PRIVATE, path.parent().unwrap_or(path))?;
            persist(&RealDisk::PRIVATE, path, bytes)
        })
    }

    /// Calls `write`, and once more after evicting objects if the disk is full.
    pub(super) fn with_room<T>(&self, len: u64, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let outcome = match write() {
            Err(error) if is_full(&error) && self.frees_disk(len) => {
                write().inspect_err(|_| *self.no_room.lock() = Some(Instant::now()))
            }
            other => other,
        };
        self.note(outcome.as_ref().err());
        outcome
    }

    /// Evicts so many bytes for a full disk, unless that was of no use a moment ago; returns true if it did.
    fn frees_disk(&self, len: u64) -> bool {
        if self.no_room.lock().is_some_and(|since| since.elapsed() < NO_ROOM) {
            return false;
        }
        let is_freed = evict::free(self, len);
        *self.no_room.lock() = (!is_freed).then(Instant::now);
        is_freed
    }

    fn note(&self, failure: Option<&io::Error>) {
        *self.trouble.lock() = failure.map(ToString::to_string);
    }

    /// Returns why the last object or manifest could not be stored, if that is still so. Blocks on the disk.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().as_ref()?;
        let path = self.temporary();
        let written = File::create_new(&path).and_then(|mut file| file.write_all(&[0; PROBE]));
        let _ = fs::remove_file(&path);
        self.note(written.as_ref().err());
        self.trouble.lock().clone()
    }

    /// Reserves bytes of memory for a body that the disk has no room for.
    pub(super) fn reserve_memory(&self, bytes: u64) -> bool {
        let mut lent = self.lent.lock();
        lent.retain(|(file, _)| file.strong_count() > 0);
        let handed_out: u64 = lent.iter().map(|(_, len)| len).sum();
        let more = |used: u64| used.checked_add(bytes).filter(|sum| sum + handed_out <= MEMORY_MAX);
        self.in_memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts a file that is handed out without being stored.
    pub(super) fn lend(&self, file: &std::sync::Arc<File>, len: u64) {
        self.lent.lock().push((std::sync::Arc::downgrade(file), len));
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
        self.with_room(PROBE as u64, || {
            let bytes: Vec<String> = self.folders.iter().map(|folder| folder.lock().to_string()).collect();
            persist(&RealDisk::PRIVATE, &self.root.join(CLEAN), format!("{}\n", bytes.join(" ")).as_bytes())
        })
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

/// Reserves the blocks of a file, where the file system can.
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    match if len == 0 { Ok(()) } else { fallocate(file, FallocateFlags::empty(), 0, len) } {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
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
    let probe = folder.join(CLOCK);
    let facts = File::create_new(&probe)?.metadata()?;
    fs::remove_file(&probe)?;
    Ok(time(facts.ctime(), facts.ctime_nsec()))
}

/// Sets the time of the last use to now, which changes the inode, too; returns false if there is no such file. Setting the same
/// length does that, and needs a file that this process may write to. Servers may not set times, which Landlock doesn't
/// limit to a cache.
pub(super) fn record_use(path: &Path) -> io::Result<bool> {
    match File::options()
        .write(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
    {
        Ok(file) => file.set_len(file.metadata()?.len()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the bytes of each folder; `None` after an unclean stop.
fn read_clean(root: &Path) -> Option<Vec<u64>> {
    let text = read_file(&RealDisk::PRIVATE, &root.join(CLEAN), CLEAN_MAX).ok()??;
    let text = String::from_utf8(text).ok()?;
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
