//! Writing an object: into `txn/`, then under its name, or nowhere.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use super::Inner;
use super::entry::Entry;
use super::space::Reservation;
use super::trailer::Trailer;
use crate::error::Cause;
use crate::wanted::CacheKey;

/// Bytes written at once, at most. The page cache takes a write into folios as large as it, and blocks of 2 MiB and more
/// are what the host of a virtual machine takes back while they are free: there a gigabyte in writes of 8 MiB took 3 to
/// 5 s, in writes up to 1 MiB, which find smaller ones, 0.4 s.
const PIECE: usize = 256 << 10;

/// A file being written; removed on drop unless it was kept.
pub(crate) struct Writing {
    cache: Arc<Inner>,
    path: PathBuf,
    file: Option<File>,
    digest: Box<Xxh3>,
    len: u64,
}

impl Writing {
    /// Begins a file without a name in the cache yet.
    pub(crate) fn begin(cache: &Arc<Inner>) -> Result<Self, Cause> {
        let number = cache.next_file.fetch_add(1, Ordering::Relaxed);
        let path = cache.layout.txn.join(number.to_string());
        let file = cache.disk.create(&path).map_err(|source| cache.failed("creating", &path, source))?;
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

    /// How many bytes were written.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The error of a failed step on this file.
    pub(crate) fn failed(&self, source: io::Error) -> Cause {
        self.cache.failed("writing", &self.path, source)
    }

    /// Gives the object its name in the cache; `prefetched` has the stored bytes if nobody demanded it.
    pub(crate) fn keep(
        mut self,
        key: CacheKey,
        reservation: Reservation,
        prefetched: Option<u64>,
    ) -> Result<Arc<Entry>, Cause> {
        let trailer = Trailer { key, plain_len: self.len, digest: self.digest.digest128() };
        let file = self.file.take().expect("the file is open because only the last step takes it");
        self.cache.disk.write(&file, &trailer.encode()).map_err(|source| self.failed(source))?;
        drop(file);
        // While the gate is held open the cache is not closed: what gets a name is in the index.
        let gate = self.cache.gate.read();
        if *gate {
            return Err(Cause::Closed);
        }
        self.rename(&key)?;
        self.path = PathBuf::new();
        let entry = Entry::new(key, self.len, self.cache.reads.now(), true, &self.cache.descriptors);
        entry.set_prefetched(prefetched);
        reservation.keep(self.cache.charge_of(self.len));
        if let Some(replaced) = self.cache.table.insert(entry.clone()) {
            self.cache.retire(&replaced);
        }
        Ok(entry)
    }

    fn rename(&self, key: &CacheKey) -> Result<(), Cause> {
        let to = self.cache.layout.object(key);
        let disk = &self.cache.disk;
        match disk.rename(&self.path, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The folder of these two digits is made when it is first needed.
                let folder = self.cache.layout.folder(key);
                disk.make_dir(&folder)
                    .map_err(|source| self.cache.failed("making the folder", &folder, source))?;
                disk.rename(&self.path, &to)
            }
            other => other,
        }
        .map_err(|source| self.cache.failed("naming", &to, source))
    }

    /// Ends without keeping it: the file loses its name and is returned open for reading only.
    pub(crate) fn unkept(mut self) -> Result<File, Cause> {
        self.file = None;
        let file = self.cache.disk.open(&self.path);
        let file = file.map_err(|source| self.cache.failed("opening", &self.path, source))?;
        let removed = self.cache.disk.remove(&self.path);
        removed.map_err(|source| self.cache.failed("removing", &self.path, source))?;
        self.path = PathBuf::new();
        Ok(file)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            self.file = None;
            // If this fails too, the next start removes it.
            let _ = self.cache.disk.remove(&self.path);
        }
    }
}
