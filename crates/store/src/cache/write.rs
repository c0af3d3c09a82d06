//! Writes an object: without a name where the file system can, otherwise in `txn/`; then renames or discards
//! it.
//!
//! Files of `txn/` are made and renamed by all threads at once, and the kernel lets one after the other into a folder, and one
//! alone on a file system rename from folder to folder.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::entry::Entry;
use super::space::Reservation;
use super::state::CacheState;
use super::trailer::Trailer;
use crate::error::Cause;
use crate::objects::request::CacheKey;

/// Maximum number of bytes in one write. The page cache takes a write into folios as large as it, and the host
/// of a virtual machine takes free blocks of 2 MiB and more back: there a gigabyte in writes of 8 MiB took 3 to
/// 5 s, in writes of up to 1 MiB, which find smaller blocks, 0.4 s.
const PIECE: usize = 256 << 10;

/// A file being written; removed on drop unless it was cached.
pub(crate) struct Writing {
    cache: Arc<CacheState>,
    /// Path in `txn/`, if the file has a name there.
    path: Option<PathBuf>,
    file: Option<File>,
    digest: Box<Xxh3>,
    len: u64,
}

impl Writing {
    /// Begins a file without a name in the cache yet.
    pub(crate) fn begin(cache: &Arc<CacheState>) -> Result<Self, Cause> {
        let folder = cache.drafts.folder();
        let nameless = cache.drafts.begin_nameless();
        let nameless = nameless.map_err(|source| cache.failed("creating a file in", folder, source))?;
        let (file, path) = match nameless {
            Some(file) => (file, None),
            None => {
                let path = cache.drafts.path();
                let file = cache.disk.create(&path);
                (file.map_err(|source| cache.failed("creating", &path, source))?, Some(path))
            }
        };
        Ok(Self { cache: cache.clone(), path, file: Some(file), digest: Box::new(Xxh3::new()), len: 0 })
    }

    /// Appends plain bytes.
    pub(crate) fn write(&mut self, plain: &[u8]) -> io::Result<()> {
        let file = self.file.as_ref().expect("the file is open because only the last step takes it");
        for piece in plain.chunks(PIECE) {
            self.cache.disk.write(file, piece)?;
            self.digest.update(piece);
        }
        self.len += plain.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes written.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the error of a failed step on this file.
    pub(crate) fn failed(&self, source: io::Error) -> Cause {
        match &self.path {
            Some(path) => self.cache.failed("writing", path, source),
            None => self.cache.failed("writing a file in", &self.cache.layout.txn, source),
        }
    }

    /// Adds the object to the cache; `prefetched` has the stored size of a prefetched object.
    pub(crate) fn keep(
        mut self,
        key: CacheKey,
        reservation: Reservation,
        prefetched: Option<u64>,
    ) -> Result<Arc<Entry>, Cause> {
        let trailer = Trailer { key, plain_len: self.len, digest: self.digest.digest128() };
        let file = self.file.take().expect("the file is open because only the last step takes it");
        self.cache.disk.write(&file, &trailer.encode()).map_err(|source| self.failed(source))?;
        // While the gate is held the cache stays open, so every named file is in the index.
        let gate = self.cache.gate.read();
        if *gate {
            return Err(Cause::Closed);
        }
        self.place(&file, &key)?;
        self.path = None;
        drop(file);
        let reads = &self.cache.reads;
        let (now, checked) = (reads.now(), Some(reads.checked_now()));
        let entry = Entry::new(key, self.len, now, checked, &self.cache.descriptors);
        entry.set_prefetched(prefetched);
        reservation.keep(self.cache.charge_of(self.len));
        if let Some(replaced) = self.cache.enter(entry.clone()) {
            self.cache.retire(&replaced);
        }
        Ok(entry)
    }

    fn place(&self, file: &File, key: &CacheKey) -> Result<(), Cause> {
        let to = self.cache.layout.object(key);
        match self.put(file, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The folder of these two digits is made when it is first needed.
                let folder = self.cache.layout.folder(key);
                let made = self.cache.disk.make_dir(&folder);
                made.map_err(|source| self.cache.failed("making the folder", &folder, source))?;
                self.put(file, &to)
            }
            other => other,
        }
        .map_err(|source| self.cache.failed("naming", &to, source))
    }

    /// Names the file, and replaces an existing one.
    fn put(&self, file: &File, to: &Path) -> io::Result<()> {
        let disk = &self.cache.disk;
        if let Some(path) = &self.path {
            return disk.rename(path, to);
        }
        match disk.name(file, to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = self.cache.drafts.path();
                disk.name(file, &path)?;
                // If that fails too, the next start removes it.
                disk.rename(&path, to).inspect_err(|_| drop(disk.remove(&path)))
            }
            other => other,
        }
    }

    /// Ends without adding the object; returns the unnamed file, opened for reading only.
    pub(crate) fn unkept(mut self) -> Result<File, Cause> {
        let written = self.file.take().expect("the file is open because only the last step takes it");
        let (cache, disk) = (&self.cache, &self.cache.disk);
        let Some(path) = &self.path else {
            return disk
                .reopen(&written)
                .map_err(|source| cache.failed("opening a file in", &cache.layout.txn, source));
        };
        drop(written);
        let file = disk.open(path).map_err(|source| cache.failed("opening", path, source))?;
        disk.remove(path).map_err(|source| cache.failed("removing", path, source))?;
        self.path = None;
        Ok(file)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            self.file = None;
            // If this fails too, the next start removes it.
            let _ = self.cache.disk.remove(path);
        }
    }
}
