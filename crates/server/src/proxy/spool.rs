//! Keeps large bodies on disk while they are received and verified, within the limit of the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_store::{Cause, Spool, SpoolAccount, Stored};
use rustix::fs::MemfdFlags;

use super::disk::{DiskCache, PIECE, allocate};
use super::evict;
use super::failure::Failure;

/// Part of the cache that objects may take while they are received, one or all: a large one is there twice.
const OBJECT_PART: u64 = 4;

/// Returns the size of the largest object that is stored.
pub(crate) fn object_max(cache: &DiskCache) -> u64 {
    (cache.limit / OBJECT_PART).max(1)
}

/// Spool in the folder of the cache.
pub(crate) struct CacheSpool(pub(crate) Arc<DiskCache>);

/// Returns a file of bytes that are sent and not stored, which are bounded over all clients: on disk, or in memory if the disk is
/// full. `take` gets a copy of the bytes.
pub(crate) fn hand_out(
    cache: &Arc<DiskCache>,
    stored: Stored,
    mut take: impl FnMut(&[u8]),
) -> Result<(Arc<File>, u64), Failure> {
    let len = stored.len();
    let mut account = Reserved { cache: cache.clone(), bytes: 0, is_in_memory: true };
    account.grow(len).map_err(|_| Failure::Busy)?;
    let spool = CacheSpool(cache.clone());
    let (on_disk, mut reader) = (spool.file().ok(), stored.into_reader());
    let mut file = match on_disk.filter(|file| allocate(file, len).is_ok()) {
        Some(file) => file,
        None => spool.memory()?.0,
    };
    let mut piece = vec![0; PIECE];
    loop {
        let count = reader.read(&mut piece)?;
        if count == 0 {
            break;
        }
        let bytes = piece.get(..count).unwrap_or_default();
        take(bytes);
        file.write_all(bytes)?;
    }
    let file = Arc::new(file);
    cache.lend(&file, len);
    Ok((file, len))
}

/// Reserved bytes of one spooled body.
struct Reserved {
    cache: Arc<DiskCache>,
    bytes: u64,
    /// True for a body in memory, for which the disk has no room.
    is_in_memory: bool,
}

impl Spool for CacheSpool {
    fn file(&self) -> io::Result<File> {
        let path = self.0.temporary();
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
        // The descriptor is all that is needed, and a crash leaves nothing.
        fs::remove_file(&path)?;
        Ok(file)
    }

    fn append(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        let before = file.metadata()?.len();
        self.0
            .with_room(bytes.len() as u64, || file.write_all(bytes).inspect_err(|_| _ = file.set_len(before)))
    }

    fn memory(&self) -> io::Result<(File, Box<dyn SpoolAccount>)> {
        let memory = rustix::fs::memfd_create("esker-body", MemfdFlags::CLOEXEC)?;
        Ok((memory.into(), Box::new(Reserved { cache: self.0.clone(), bytes: 0, is_in_memory: true })))
    }

    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        Some(Box::new(Reserved { cache: self.0.clone(), bytes: 0, is_in_memory: false }))
    }
}

impl SpoolAccount for Reserved {
    fn grow(&mut self, bytes: u64) -> Result<(), Cause> {
        if self.is_in_memory {
            if !self.cache.reserve_memory(bytes) {
                return Err(Cause::Full { needed: bytes, used: self.bytes, limit: self.cache.limit });
            }
            self.bytes += bytes;
            return Ok(());
        }
        // Bodies without an end must not evict more than one object may take.
        let limit = object_max(&self.cache);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let receiving = &self.cache.receiving;
        if receiving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(Cause::TooLarge { limit });
        }
        if !evict::make_room(&self.cache, bytes) {
            receiving.fetch_sub(bytes, Ordering::Relaxed);
            let (used, limit) = (self.cache.used(), self.cache.limit);
            return Err(Cause::Full { needed: bytes, used, limit });
        }
        self.bytes += bytes;
        Ok(())
    }

    fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if self.is_in_memory {
            self.cache.in_memory.fetch_sub(bytes, Ordering::Relaxed);
        } else {
            self.cache.receiving.fetch_sub(bytes, Ordering::Relaxed);
            self.cache.release(bytes);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}
