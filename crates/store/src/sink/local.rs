//! A repository in a local folder.
//!
//! ```text
//! .cvmfspublished …       root files, each replaced in one step
//! data/00 … data/ff       objects, each with its name only once its bytes are durable
//! data/txn/esker-PID-…/   objects in transit, and a lock that their process holds
//! data/txn/esker.lock     held by the publisher that replaces root files
//! ```
//!
//! Locking rule: objects are stored without a lock, by any number of processes; root files are written under the lock.
//! Crash rule: folders in `txn` whose lock is free are leftovers, and are removed at the next start; unfinished root
//! files are leftovers once the lock is free, and are removed when it is taken.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::{ContentHash, Hasher};
use esker_format::object::ObjectName;
use parking_lot::Mutex;

use crate::cache::disk::{
    Disk, FileFacts, RealDisk, make_dirs, persist, read_file, read_pieces, remove_unfinished,
};
use crate::error::{Cause, StoreError};
use crate::file_lock::{FileLock, Locking};

use super::transit::{self, Transit};
use super::{Listed, Put, Sink, StoredFiles, Swap};

/// Maximum number of pending bytes: a batch of this size is made durable.
const BATCH_BYTES: u64 = 256 << 20;
/// Maximum number of objects in a batch.
const BATCH_OBJECTS: usize = 16_384;
/// Maximum number of files that are synced one by one; for more, syncing the whole file system is cheaper.
const SYNC_SINGLY: usize = 48;
const LOCK: &str = "esker.lock";
/// Size up to which a root file is read to be compared; a larger one is only equal to expected content of its size.
const ROOT_FILE_MAX: u64 = 1 << 20;

/// A repository in a local folder, to publish to.
pub struct LocalSink {
    root: PathBuf,
    disk: Arc<dyn Disk>,
    pending: Mutex<Pending>,
    /// Lock that is held while a batch is made durable.
    flushing: Mutex<()>,
    /// Objects that this process wrote or verified.
    verified: Mutex<HashSet<ObjectName>>,
}

#[derive(Default)]
struct Pending {
    /// Folder of the objects; none before the first.
    transit: Option<Transit>,
    next: u64,
    bytes: u64,
    batch: Vec<(ObjectName, PathBuf)>,
    /// Objects of the current batch and of the one that is being flushed.
    on_the_way: HashSet<ObjectName>,
    /// True once a batch was lost: no further writes are allowed.
    broken: bool,
}

impl LocalSink {
    /// Opens an existing repository.
    pub fn open(root: impl Into<PathBuf>) -> Self {
        Self::on(root, Arc::new(RealDisk::SERVED))
    }

    /// Opens an existing repository on a given disk.
    pub fn on(root: impl Into<PathBuf>, disk: Arc<dyn Disk>) -> Self {
        let (pending, flushing, verified) = Default::default();
        Self { root: root.into(), disk, pending, flushing, verified }
    }

    /// Makes the folders of a new repository; those that exist already are fine.
    pub fn make_folders(&self) -> Result<(), StoreError> {
        let data = self.root.join("data");
        make_dirs(&*self.disk, &self.root)
            .map_err(|source| self.failed("making folder", &self.root, source))?;
        let objects = (0..=u8::MAX).map(|byte| data.join(format!("{byte:02x}")));
        for folder in [data.clone(), data.join("txn")].into_iter().chain(objects) {
            self.disk.make_dir(&folder).map_err(|source| self.failed("making folder", &folder, source))?;
        }
        for folder in [&data, &self.root] {
            self.disk.sync_dir(folder).map_err(|source| self.failed("syncing", folder, source))?;
        }
        Ok(())
    }

    /// Prepares the repository for storing objects: removes what processes left that have ended.
    pub fn prepare(&self) -> Result<(), StoreError> {
        self.check_owner()?;
        let folder = self.transit();
        transit::remove_leftovers(&*self.disk, &folder)
            .map_err(|source| self.failed("removing leftovers in", &folder, source))
    }

    /// Takes the lock that is needed to write root files, and removes unfinished ones of an interrupted publisher.
    pub fn lock(&self) -> Result<Locking, StoreError> {
        self.check_owner()?;
        let folder = self.transit();
        self.disk.make_dir(&folder).map_err(|source| self.failed("making folder", &folder, source))?;
        let path = folder.join(LOCK);
        let locking = FileLock::try_take(&path).map_err(|source| self.failed("locking", &path, source))?;
        if let Locking::Held(_) = locking {
            return Ok(locking);
        }
        // Versions before 0.3 stored objects under the lock, in files of the folder itself.
        let names = self.disk.list(&folder).map_err(|source| self.failed("listing", &folder, source))?;
        for name in names {
            let path = folder.join(&name);
            let ours = name.as_encoded_bytes().starts_with(transit::PREFIX.as_bytes());
            if ours && self.disk.facts(&path).is_ok_and(|facts| facts.regular) {
                self.disk.remove(&path).map_err(|source| self.failed("removing leftover", &path, source))?;
            }
        }
        remove_unfinished(&*self.disk, &self.root, |_| true)
            .map_err(|source| self.failed("removing leftovers in", &self.root, source))?;
        Ok(locking)
    }

    fn check_owner(&self) -> Result<(), StoreError> {
        if rustix::process::geteuid().is_root() { self.check_links() } else { Ok(()) }
    }

    /// Refuses links out of the repository that root did not make: the owner of the repository could make root write
    /// anywhere.
    fn check_links(&self) -> Result<(), StoreError> {
        let objects = (0..=u8::MAX).map(|byte| format!("data/{byte:02x}"));
        let places = [".esker", "data", "data/txn"].map(str::to_owned).into_iter().chain(objects);
        for path in places.map(|place| self.root.join(place)) {
            let facts = std::fs::symlink_metadata(&path);
            if facts.is_ok_and(|facts| facts.is_symlink() && facts.uid() != 0) {
                let text = "it is a link that another user made, and root would write wherever that leads";
                let source = io::Error::new(io::ErrorKind::PermissionDenied, text);
                return Err(self.failed("publishing through", &path, source));
            }
        }
        Ok(())
    }

    /// Returns the folder of the repository.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn transit(&self) -> PathBuf {
        self.root.join("data/txn")
    }

    /// Returns the folder of this process for objects in transit; makes it for the first object.
    fn transit_folder<'p>(&self, pending: &'p mut Pending) -> Result<&'p Transit, StoreError> {
        let transit = match pending.transit.take() {
            Some(transit) => transit,
            None => {
                let all = self.transit();
                Transit::make(self.disk.clone(), &all)
                    .map_err(|source| self.failed("making a folder in", &all, source))?
            }
        };
        Ok(pending.transit.insert(transit))
    }

    /// Returns the facts of a stored object; none if there is no such file.
    fn facts(&self, name: &ObjectName) -> Result<Option<FileFacts>, StoreError> {
        let path = self.root.join(name.path());
        match self.disk.facts(&path) {
            Ok(facts) => Ok(Some(facts).filter(|facts| facts.regular)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("looking for", &path, error)),
        }
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("removing", path, error))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, doing: &'static str, path: &Path, source: io::Error) -> StoreError {
        StoreError::new("the storage", Cause::Disk { doing, path: path.to_owned(), source })
    }

    /// Returns whether an object has its name, whatever its bytes are.
    pub fn is_there(&self, name: &ObjectName) -> Result<bool, StoreError> {
        Ok(self.len_of(name)?.is_some())
    }

    /// Returns whether an object is stored with this length and the bytes of its name. An object that this process did
    /// not write is read once: a crash, a failing disk or another program may have left other bytes.
    fn is_whole(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        if self.len_of(name)? != Some(len) {
            return Ok(false);
        }
        if self.verified.lock().contains(name) {
            return Ok(true);
        }
        // An unreadable object is replaced, too.
        let is_right = self.hash_of(name, len).is_ok_and(|hash| hash == name.hash);
        if is_right {
            self.verified.lock().insert(*name);
        }
        Ok(is_right)
    }

    fn hash_of(&self, name: &ObjectName, len: u64) -> io::Result<ContentHash> {
        let file = self.disk.open(&self.root.join(name.path()))?;
        let mut hasher = Hasher::new(name.hash.algorithm());
        read_pieces(&*self.disk, &file, len, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    }

    fn write_transit(&self, path: &Path, stored: &[u8]) -> Result<(), StoreError> {
        let written = self.disk.create(path).and_then(|file| self.disk.write(&file, stored));
        written.map_err(|source| {
            // The error that matters is the first one; leftovers go at the next start anyway.
            let _ = self.disk.remove(path);
            self.failed("writing", path, source)
        })
    }

    /// Makes a batch durable, then gives the objects their names.
    fn settle(&self, batch: &[(ObjectName, PathBuf)]) -> Result<(), StoreError> {
        let singly = batch.len() <= SYNC_SINGLY;
        if singly {
            for (_, path) in batch {
                let synced = self.disk.open(path).and_then(|file| self.disk.sync(&file));
                synced.map_err(|source| self.failed("syncing", path, source))?;
            }
        } else {
            self.sync_everything()?;
        }
        let mut folders = BTreeSet::new();
        for (name, from) in batch {
            let to = self.root.join(name.path());
            let folder = to.parent().unwrap_or(&self.root).to_owned();
            let renamed = match self.disk.rename(from, &to) {
                // Storage made by others may lack the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    folders.extend(folder.parent().map(Path::to_owned));
                    self.disk.make_dir(&folder).and_then(|()| self.disk.rename(from, &to))
                }
                other => other,
            };
            renamed.map_err(|source| self.failed("renaming to", &to, source))?;
            folders.insert(folder);
        }
        if !singly {
            return self.sync_everything();
        }
        for folder in &folders {
            self.disk.sync_dir(folder).map_err(|source| self.failed("syncing", folder, source))?;
        }
        Ok(())
    }

    fn sync_everything(&self) -> Result<(), StoreError> {
        self.disk.sync_all(&self.root).map_err(|source| self.failed("syncing", &self.root, source))
    }

    fn flush_batch(&self) -> Result<(), StoreError> {
        let batch = {
            let mut pending = self.pending.lock();
            self.check(&pending)?;
            pending.bytes = 0;
            std::mem::take(&mut pending.batch)
        };
        if batch.is_empty() {
            return Ok(());
        }
        let settled = self.settle(&batch);
        if settled.is_ok() {
            self.verified.lock().extend(batch.iter().map(|(name, _)| *name));
        }
        let mut pending = self.pending.lock();
        pending.broken |= settled.is_err();
        for (name, _) in &batch {
            pending.on_the_way.remove(name);
        }
        settled
    }

    fn check(&self, pending: &Pending) -> Result<(), StoreError> {
        if pending.broken {
            let source = io::Error::other("earlier objects could not be made durable");
            return Err(self.failed("writing to", &self.root, source));
        }
        Ok(())
    }
}

impl StoredFiles for LocalSink {
    fn describe(&self) -> String {
        self.root.display().to_string()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let full = self.root.join(path);
        read_file(&*self.disk, &full, limit).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                StoreError::new(path, Cause::TooLarge { limit }).from_place(self.describe())
            }
            _ => self.failed("reading", &full, error),
        })
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        let full = self.root.join(path);
        let failed = |source| self.failed("reading", &full, source);
        let facts = match self.disk.facts(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            facts => facts.map_err(failed)?,
        };
        let file = match self.disk.open(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut written = Ok(());
        let read = read_pieces(&*self.disk, &file, facts.len, |piece| {
            written = to.write_all(piece);
            if written.is_ok() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        });
        written.map_err(|source| self.failed("copying", &full, source))?;
        read.map_err(failed)?;
        Ok(Some(facts.len))
    }
}

impl Sink for LocalSink {
    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        Self::make_folders(self)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        Self::prepare(self)
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        self.lock().map(Some)
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        let len = stored.len() as u64;
        // An object of another length, or with other bytes, is damaged and is replaced.
        if self.is_whole(name, len)? {
            return Ok(Put::Present);
        }
        self.put_anew(name, stored)
    }

    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        let len = stored.len() as u64;
        let path = {
            let mut pending = self.pending.lock();
            self.check(&pending)?;
            if !pending.on_the_way.insert(*name) {
                return Ok(Put::Present);
            }
            pending.next += 1;
            let number = pending.next;
            match self.transit_folder(&mut pending) {
                Ok(transit) => transit.file(number),
                Err(error) => {
                    pending.on_the_way.remove(name);
                    return Err(error);
                }
            }
        };
        if let Err(error) = self.write_transit(&path, stored) {
            self.pending.lock().on_the_way.remove(name);
            return Err(error);
        }
        let full = {
            let mut pending = self.pending.lock();
            pending.batch.push((*name, path));
            pending.bytes += len;
            pending.bytes >= BATCH_BYTES || pending.batch.len() >= BATCH_OBJECTS
        };
        if full && let Some(_flushing) = self.flushing.try_lock() {
            self.flush_batch()?;
        }
        Ok(Put::Stored)
    }

    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        if self.pending.lock().on_the_way.contains(name) {
            return Ok(true);
        }
        self.is_whole(name, len)
    }

    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError> {
        Ok(self.facts(name)?.map(|facts| facts.len))
    }

    fn flush(&self) -> Result<(), StoreError> {
        let _flushing = self.flushing.lock();
        self.flush_batch()
    }

    fn put_root(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.root.join(name);
        persist(&*self.disk, &path, bytes).map_err(|source| self.failed("writing", &path, source))
    }

    fn replace_root(&self, name: &str, bytes: &[u8], expected: Option<&[u8]>) -> Result<Swap, StoreError> {
        let path = self.root.join(name);
        let limit = ROOT_FILE_MAX.max(expected.map_or(0, |content| content.len() as u64));
        let found = read_file(&*self.disk, &path, limit);
        if found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge) {
            return Ok(Swap::Moved);
        }
        if found.map_err(|source| self.failed("reading", &path, source))?.as_deref() != expected {
            return Ok(Swap::Moved);
        }
        self.put_root(name, bytes).map(|()| Swap::Replaced)
    }

    fn remove_root(&self, name: &str) -> Result<(), StoreError> {
        let path = self.root.join(name);
        self.remove_file(&path)?;
        self.disk.sync_dir(&self.root).map_err(|source| self.failed("syncing", &self.root, source))
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        let names = self.disk.list(&self.root);
        let names = names.map_err(|source| self.failed("listing", &self.root, source))?;
        let is_file = |name: &String| self.disk.facts(&self.root.join(name)).is_ok_and(|facts| facts.regular);
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).filter(is_file).collect())
    }

    fn put_alternative(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.root.join(name.alternative_path());
        match self.disk.link(name.path().as_ref(), &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed("linking", &path, error))
            }
            _ => self.disk.sync_dir(&self.root).map_err(|source| self.failed("syncing", &self.root, source)),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        for byte in 0..=u8::MAX {
            let digits = format!("{byte:02x}");
            let folder = self.root.join("data").join(&digits);
            let names = match self.disk.list(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|source| self.failed("listing", &folder, source))?,
            };
            for name in names {
                // Files that are no objects are skipped.
                let object = name.to_str().and_then(|rest| ObjectName::parse(&format!("{digits}{rest}")));
                let Some(name) = object else { continue };
                if let Some(facts) = self.facts(&name)? {
                    visit(Listed { name, len: facts.len, modified: facts.modified });
                }
            }
        }
        Ok(())
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), StoreError> {
        for name in names {
            self.verified.lock().remove(name);
            self.remove_file(&self.root.join(name.path()))?;
        }
        Ok(())
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        for name in self.list_root()?.iter().filter(|name| name.starts_with(".cvmfs")) {
            self.remove_file(&self.root.join(name))?;
        }
        match std::fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed("removing", &self.root, error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
