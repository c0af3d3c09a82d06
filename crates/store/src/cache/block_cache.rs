//! Blocks of large files on servers, cached on disk.
//!
//! ```text
//!   <cache>/images/lock              held while blocks are evicted
//!   <cache>/images/<name>/<number>   a block, then XXH3-128 of name, number and content
//!   <cache>/images/<name>/list       the list of digests of the blocks, if there is one
//!   <cache>/images/<name>/.part-…    being written
//! ```
//!
//! The name identifies one version of one file: its digest, or its URL with the server's validator. So a file never
//! changes, and several processes may write at once without coordination (each renames completed blocks). Nothing is
//! synced: a block that a crash left damaged, or under another name, fails its checksum and is fetched again.
//!
//! Writers bound the size: after each sixteenth of the limit a writer measures the folder and evicts the least recently
//! read blocks. Processes that write at once may exceed the limit by a sixteenth each.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use esker_format::hash::{ContentHash, HashAlgorithm};
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_OMIT, flock, futimens};
use xxhash_rust::xxh3::Xxh3;

use crate::cache::disk::{Disk, RealDisk, make_dirs};
use crate::cache::{ours, private};
use crate::error::{Cause, StoreError, is_full};
use crate::own_file::open_to_lock;

const FOLDER: &str = "images";
const LIST: &str = "list";
const TEMPORARY: &str = ".part-";
const SUM_LEN: usize = 16;
/// Minimum time between two updates of a block's access time.
const TOUCH_EVERY: Duration = Duration::from_secs(600);
/// Age at which an unfinished file counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Folder of all cached blocks.
pub struct BlockCache {
    folder: PathBuf,
    limit: u64,
    /// Bytes written since the folder was last measured.
    written: AtomicU64,
    temporary: AtomicU64,
}

/// Cached blocks of one version of one file.
pub struct FileBlocks {
    cache: Arc<BlockCache>,
    name: String,
    folder: PathBuf,
}

impl BlockCache {
    /// Opens the block cache in a cache folder, making it if needed; blocks may take `limit` bytes.
    pub fn open(cache: &Path, limit: u64) -> Result<Arc<Self>, StoreError> {
        let folder = cache.join(FOLDER);
        let failed = |cause| StoreError::new("the cache of images", cause);
        let disk = RealDisk::PRIVATE;
        ours(cache).map_err(failed)?;
        make_dirs(&disk, &folder).map_err(|source| {
            failed(Cause::Disk { doing: "making the folder", path: folder.clone(), source })
        })?;
        for folder in [cache, &folder] {
            private(folder).map_err(failed)?;
        }
        // It marks the folder as a cache.
        open_lock(&folder).map_err(|source| {
            failed(Cause::Disk { doing: "making the lock of", path: folder.clone(), source })
        })?;
        // The first one that writes looks how much there is.
        let written = AtomicU64::new(limit);
        Ok(Arc::new(Self { folder, limit, written, temporary: AtomicU64::new(0) }))
    }

    /// Returns the blocks of the file version that `identity` names.
    pub fn of(self: &Arc<Self>, identity: &[u8]) -> FileBlocks {
        let name = ContentHash::of(HashAlgorithm::Shake128, identity).hex();
        FileBlocks { cache: self.clone(), folder: self.folder.join(&name), name }
    }

    /// Removes all blocks; returns their size in bytes.
    pub fn wipe(&self) -> Result<u64, StoreError> {
        self.shrink(0).map_err(|source| {
            let cause = Cause::Disk { doing: "removing what is in", path: self.folder.clone(), source };
            StoreError::new("the cache of images", cause)
        })
    }

    fn note(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= self.limit / 16 {
            self.written.store(0, Ordering::Relaxed);
            // A folder that can't be listed now is measured again later.
            let _ = self.make_room();
        }
    }

    /// Evicts the least recently read blocks if there are too many.
    fn make_room(&self) -> io::Result<()> {
        self.shrink(self.limit).map(drop)
    }

    /// Evicts the least recently read blocks down to seven eighths of `limit`; does nothing below it, or while another
    /// process evicts.
    fn shrink(&self, limit: u64) -> io::Result<u64> {
        let lock = open_lock(&self.folder)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(0);
        }
        let mut parts = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            if file.file_type()?.is_dir() {
                list(&file.path(), &mut parts)?;
            }
        }
        let mut total: u64 = parts.iter().map(|part| part.bytes).sum();
        let before = total;
        if total > limit {
            parts.sort_unstable_by(|one, other| (one.read, &one.path).cmp(&(other.read, &other.path)));
            for part in parts {
                if total <= limit - limit / 8 {
                    break;
                }
                // A file that is gone already is fine.
                let _ = fs::remove_file(&part.path);
                total = total.saturating_sub(part.bytes);
                // Only an empty folder goes.
                part.path.parent().map(fs::remove_dir);
            }
        }
        Ok(before - total)
    }
}

fn open_lock(folder: &Path) -> io::Result<File> {
    open_to_lock(&folder.join("lock"), fs::OpenOptions::new().append(true))
}

struct Found {
    path: PathBuf,
    bytes: u64,
    read: SystemTime,
}

/// Adds the files of a folder; removes abandoned unfinished files.
fn list(folder: &Path, parts: &mut Vec<Found>) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        // Another may be removing it.
        let Ok(meta) = file.metadata() else { continue };
        let read = meta.accessed()?;
        let is_old = || meta.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED));
        if file.file_name().to_string_lossy().starts_with(TEMPORARY) && is_old() {
            let _ = fs::remove_file(file.path());
            continue;
        }
        parts.push(Found { path: file.path(), bytes: meta.blocks() * 512, read });
    }
    Ok(())
}

impl FileBlocks {
    /// Returns a block if it is cached and whole.
    pub fn get(&self, number: u64, len: usize) -> Option<Vec<u8>> {
        let name = number.to_string();
        let mut content = self.read(&name, len as u64 + SUM_LEN as u64)?;
        let at = content.len().checked_sub(SUM_LEN).filter(|at| *at == len)?;
        let sum = content.split_off(at);
        self.is_sum(&name, &content, &sum).then_some(content)
    }

    /// Returns the list of digests if it is cached and not longer than `limit` bytes.
    pub fn list(&self, limit: u64) -> Option<Vec<u8>> {
        let mut content = self.read(LIST, limit + SUM_LEN as u64)?;
        let at = content.len().checked_sub(SUM_LEN)?;
        let sum = content.split_off(at);
        self.is_sum(LIST, &content, &sum).then_some(content)
    }

    /// Stores a block. After a failure the block is fetched again on the next read.
    pub fn keep(&self, number: u64, content: &[u8]) {
        self.write(&number.to_string(), content);
    }

    /// Caches the list of digests.
    pub fn keep_list(&self, content: &[u8]) {
        self.write(LIST, content);
    }

    fn sum(&self, name: &str, content: &[u8]) -> [u8; SUM_LEN] {
        let mut sum = Xxh3::new();
        for text in [&self.name, name] {
            sum.update(text.as_bytes());
            sum.update(&[0]);
        }
        sum.update(content);
        sum.digest128().to_le_bytes()
    }

    fn is_sum(&self, name: &str, content: &[u8], sum: &[u8]) -> bool {
        let good = self.sum(name, content) == *sum;
        if !good {
            // It would fail the check on every read.
            let _ = fs::remove_file(self.folder.join(name));
        }
        good
    }

    fn read(&self, name: &str, most: u64) -> Option<Vec<u8>> {
        let file = RealDisk::PRIVATE.open(&self.folder.join(name)).ok()?;
        let meta = file.metadata().ok()?;
        let len = usize::try_from(meta.len()).ok().filter(|_| meta.is_file() && meta.len() <= most)?;
        let mut content = vec![0; len];
        file.read_exact_at(&mut content, 0).ok()?;
        touch(&file, &meta);
        Some(content)
    }

    fn write(&self, name: &str, content: &[u8]) {
        match self.try_write(name, content) {
            Ok(()) => self.cache.note((content.len() + SUM_LEN) as u64),
            // Other processes may have filled the disk; the least recently read blocks are worth least.
            Err(error) if is_full(&error) => _ = self.cache.shrink(self.cache.limit / 2),
            Err(_) => {}
        }
    }

    fn try_write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let disk = RealDisk::PRIVATE;
        let number = self.cache.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let file = match disk.create(&temporary) {
            // A process that evicts may have removed the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_dirs(&disk, &self.folder)?;
                disk.create(&temporary)?
            }
            other => other?,
        };
        let written = disk
            .write(&file, content)
            .and_then(|()| disk.write(&file, &self.sum(name, content)))
            .and_then(|()| disk.rename(&temporary, &self.folder.join(name)));
        if written.is_err() {
            // Left behind it would be removed in an hour.
            let _ = disk.remove(&temporary);
        }
        written
    }
}

/// Updates the access time of a file, which some file systems don't. File systems don't all do so by
/// themselves.
fn touch(file: &File, meta: &fs::Metadata) {
    let is_old = meta.accessed().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > TOUCH_EVERY));
    if is_old && let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        let now = Timespec { tv_sec: i64::try_from(now.as_secs()).unwrap_or(0), tv_nsec: 0 };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // It then counts as unread, which costs at most another fetch.
        let _ = futimens(file, &Timestamps { last_access: now, last_modification: omit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, Arc<BlockCache>) {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(&folder.path().join("cache"), limit).unwrap();
        (folder, cache)
    }

    #[test]
    fn kept_blocks_return_for_the_same_version_only() {
        let (_folder, cache) = cache(1 << 20);
        let parts = cache.of(b"one");
        parts.keep(7, b"seven");
        parts.keep_list(b"digests");
        assert_eq!(parts.get(7, 5).as_deref(), Some(&b"seven"[..]));
        assert_eq!(parts.list(100).as_deref(), Some(&b"digests"[..]));
        assert_eq!((parts.get(7, 4), parts.get(8, 5), parts.list(3)), (None, None, None));
        assert_eq!(cache.of(b"other").get(7, 5), None);
        assert!(cache.wipe().unwrap() > 0);
        assert_eq!(parts.get(7, 5), None);
        parts.keep(7, b"again");
        assert_eq!(parts.get(7, 5).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn leftovers_of_a_crash_are_not_trusted() {
        let (_folder, cache) = cache(1 << 20);
        let parts = cache.of(b"one");
        let place = |number: u64| parts.folder.join(number.to_string());
        parts.keep(0, &[1; 100]);
        let whole = fs::read(place(0)).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(place(0), &damaged).unwrap();
            assert_eq!(parts.get(0, 100), None, "byte {at}");
            assert!(!place(0).exists());
        }
        for len in [0, 1, 99, 115] {
            fs::write(place(0), &whole[..len]).unwrap();
            assert_eq!(parts.get(0, 100), None, "{len} bytes");
        }
        fs::write(place(1), &whole).unwrap();
        assert_eq!(parts.get(1, 100), None, "another name");
        let elsewhere = cache.of(b"other");
        elsewhere.keep(5, &[2; 100]);
        fs::write(elsewhere.folder.join("0"), &whole).unwrap();
        assert_eq!(elsewhere.get(0, 100), None, "another file");
    }

    #[test]
    fn the_limit_holds_and_recently_read_blocks_stay() {
        let limit = 64 * 4096;
        let (_folder, cache) = cache(limit);
        let (one, other) = (cache.of(b"one"), cache.of(b"other"));
        one.keep(0, &[0; 4000]);
        let hour = |hours: u64| SystemTime::now() - Duration::from_secs(3600 * hours);
        let file =
            |number: u64| File::options().write(true).open(other.folder.join(number.to_string())).unwrap();
        for number in 0..200 {
            other.keep(number, &[1; 4000]);
            if other.folder.join(number.to_string()).exists() {
                let times = fs::FileTimes::new().set_accessed(hour(300 - number));
                file(number).set_times(times).unwrap();
            }
        }
        let mut found = Vec::new();
        list(&one.folder, &mut found).unwrap();
        list(&other.folder, &mut found).unwrap();
        let total: u64 = found.iter().map(|part| part.bytes).sum();
        assert!(total <= limit + limit / 16 + 8192, "{total} of {limit}");
        assert!(one.get(0, 4000).is_some(), "read a moment ago");
        assert!(other.get(199, 4000).is_some() && other.get(0, 4000).is_none());
    }

    #[test]
    fn a_folder_that_others_write_to_is_no_cache() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = BlockCache::open(folder.path(), 1).err().unwrap();
        assert!(matches!(refused.cause(), Cause::NotPrivate { .. }), "{refused}");
    }
}
