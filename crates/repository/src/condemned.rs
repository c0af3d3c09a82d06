//! Objects that a collect is about to delete.
//!
//! ```text
//! condemned/list      magic (16)  time (8)  count (8)  records, sorted (22 each)  SHA-1 of all before (20)
//!                     record: algorithm (1)  digest (20)  kind (1)
//! condemned/progress  SHA-1 of the list (20)  state (1)  objects done (8), as JSON
//! condemned/revived   SHA-1 of the list, names of the objects that were taken off it, as JSON
//! collections         number of lists that were begun, and of those that were ended, as text
//! ```
//!
//! A collect writes the list durably (state waiting), waits for the grace time, and deletes (state deleting) in batches,
//! each under the commit lock. A publisher stores a listed object again. At its commit, under the same lock, it
//! takes every object that its revision names off the list, and makes sure that it is there: the batch may have been
//! deleted already. A number that counts begins and ends of lists tells a publisher that one came or went while it
//! worked.
//!
//! All functions that write need the commit lock; reading needs none.
//!
//! Object storage has no such lock, and publishers on several machines. There the record of [`shared`] replaces progress,
//! revived objects and the number; it changes by compare-and-swap, and the list is an object beside it, of which each
//! publisher keeps a copy. Once the record says that objects are being deleted, none of them can be taken off the list
//! any more: a publisher waits for the end of the list, and stores the object again.

mod shared;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::{ContentHash, HashAlgorithm, Hasher};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_store::{Disk, Sink, make_dirs, persist, persist_with, read_file};
use serde::{Deserialize, Serialize};

use crate::error::RepositoryError;
use crate::state;
use crate::storage::Storage;

pub use shared::{LEASE, State};
use shared::{ListRecord, SharedRecord};

const MAGIC: &[u8; 16] = b"esker-condemn-1\n";
/// Magic, time and count.
const HEADER_LEN: usize = 32;
const RECORD_LEN: usize = 22;
const DIGEST_LEN: usize = 20;
/// The folder of the files, in that of the publisher.
pub const FOLDER: &str = "condemned";
const LIST: &str = "list";
const PROGRESS: &str = "progress";
const REVIVED: &str = "revived";
const COLLECTIONS: &str = "collections";
/// Maximum length of the list of revived objects in bytes: ten million names need less.
const REVIVED_MAX: u64 = 1 << 30;
const SMALL_MAX: u64 = 1 << 16;
/// Number of records in one read or write.
const RECORDS_AT_ONCE: usize = 4096;

/// Place of the lists of one repository.
#[derive(Clone)]
pub struct CondemnedFolder {
    disk: Arc<dyn Disk>,
    state: PathBuf,
    /// Record in object storage; none if the files of the folder count.
    shared: Option<SharedRecord>,
}

/// The list of a repository.
pub struct Condemned {
    folder: CondemnedFolder,
    file: File,
    /// Hash of the list, or the id that the record in object storage gives it.
    id: String,
    since: UnixTime,
    count: u64,
    progress: Progress,
    revived: BTreeSet<ObjectName>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Progress {
    list: String,
    state: State,
    done: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Revived {
    list: String,
    objects: Vec<String>,
}

/// Objects of a list to delete next.
#[derive(Debug)]
pub struct Batch {
    /// The objects, without those that were revived.
    pub objects: Vec<ObjectName>,
    /// Value for [`Condemned::advance`] once they are deleted.
    pub done: u64,
}

impl CondemnedFolder {
    /// Creates the place in a publisher's state folder, without reading it.
    pub fn new(disk: Arc<dyn Disk>, state: &Path) -> Self {
        Self { disk, state: state.to_owned(), shared: None }
    }

    /// Returns the place of the lists of a repository.
    pub fn of(storage: &Storage) -> Self {
        Self::new(storage.disks().private.clone(), &state::folder(storage.place())).shared(storage.shared())
    }

    /// Keeps the lists in object storage too, for publishers without a common lock.
    pub fn shared(self, sink: Option<Arc<dyn Sink>>) -> Self {
        Self { shared: sink.map(SharedRecord::new), ..self }
    }

    /// Sets that all writers hold a lease, as those of a replica in object storage do. Objects can then be removed
    /// from a list whose deletion has begun, as in a folder.
    pub fn with_lease(self) -> Self {
        Self { shared: self.shared.map(SharedRecord::with_lease), ..self }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.state.join(FOLDER).join(name)
    }

    /// Returns how many lists were begun, and how many of them were ended.
    pub fn collections(&self) -> Result<u64, RepositoryError> {
        if let Some(shared) = &self.shared {
            return Ok(shared.read()?.collections);
        }
        let path = self.state.join(COLLECTIONS);
        let text =
            read_file(&*self.disk, &path, SMALL_MAX).map_err(RepositoryError::file("reading", &path))?;
        let Some(text) = text else { return Ok(0) };
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| unreadable(&path))
    }

    fn count(&self) -> Result<(), RepositoryError> {
        let path = self.state.join(COLLECTIONS);
        let number = self.collections()?.saturating_add(1).to_string();
        persist(&*self.disk, &path, number.as_bytes()).map_err(RepositoryError::file("writing", &path))
    }

    /// Reads the list; none if there is none. Its objects stay on the disk.
    pub fn read(&self) -> Result<Option<Condemned>, RepositoryError> {
        match &self.shared {
            Some(shared) => self.read_shared(shared),
            None => self.read_folder(),
        }
    }

    /// Reads the list that the record names, and fetches it unless there is a copy.
    fn read_shared(&self, shared: &SharedRecord) -> Result<Option<Condemned>, RepositoryError> {
        for _ in 0..shared::ATTEMPTS {
            let Some(list) = shared.read()?.list else { return Ok(None) };
            if let Some(copy) = self.copy_of(&list) {
                return Ok(Some(copy));
            }
            // Without the object, another process has just ended the list.
            if let Some(bytes) = shared.read_list(&list.id)? {
                let folder = self.state.join(FOLDER);
                make_dirs(&*self.disk, &folder).map_err(RepositoryError::file("making folder", &folder))?;
                let path = folder.join(LIST);
                let _lock = state::lock(&self.state)?;
                persist(&*self.disk, &path, &bytes).map_err(RepositoryError::file("writing", &path))?;
            }
        }
        Err(shared.unreadable())
    }

    /// Returns the local copy of a list; none if there is no whole one.
    fn copy_of(&self, list: &ListRecord) -> Option<Condemned> {
        let mut copy = self.read_folder().ok().flatten()?;
        if copy.id != shared::hash_of(&list.id) {
            return None;
        }
        copy.id.clone_from(&list.id);
        (copy.progress.state, copy.progress.done) = (list.state, list.done);
        copy.revived = list.revived.iter().filter_map(|name| ObjectName::parse(name)).collect();
        Some(copy)
    }

    fn read_folder(&self) -> Result<Option<Condemned>, RepositoryError> {
        let path = self.path(LIST);
        let failed = || RepositoryError::file("reading", &path);
        let file = match self.disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed())?,
        };
        let len = file.metadata().map_err(failed())?.len();
        let mut header = [0; HEADER_LEN];
        let mut id = [0; DIGEST_LEN];
        let end = len.checked_sub(DIGEST_LEN as u64).ok_or_else(|| unreadable(&path))?;
        self.disk.read_exact_at(&file, &mut header, 0).map_err(failed())?;
        self.disk.read_exact_at(&file, &mut id, end).map_err(failed())?;
        let number = |at: usize| {
            let bytes = header[at..at + 8].try_into().expect("a slice of eight bytes has eight bytes");
            i64::from_le_bytes(bytes)
        };
        let (since, count) = (UnixTime(number(16)), number(24).cast_unsigned());
        let records = count.checked_mul(RECORD_LEN as u64).and_then(|len| len.checked_add(HEADER_LEN as u64));
        if header[..16] != MAGIC[..] || records != Some(end) {
            return Err(unreadable(&path));
        }
        let id = ContentHash::new(HashAlgorithm::Sha1, id).hex();
        let begin = Progress { list: id.clone(), state: State::Waiting, done: 0 };
        // What was noted for an earlier list does not count.
        let progress = self.note::<Progress>(PROGRESS)?.filter(|progress| progress.list == id);
        let revived = self.note::<Revived>(REVIVED)?.filter(|revived| revived.list == id);
        let revived = revived.map(|revived| revived.objects).unwrap_or_default();
        let revived = revived.iter().filter_map(|name| ObjectName::parse(name)).collect();
        let progress = progress.unwrap_or(begin);
        Ok(Some(Condemned { folder: self.clone(), file, id, since, count, progress, revived }))
    }

    /// Writes a list in the state waiting. The objects come in their order, each once.
    pub fn write(
        &self,
        since: UnixTime,
        count: u64,
        objects: &mut dyn Iterator<Item = Result<ObjectName, RepositoryError>>,
    ) -> Result<(), RepositoryError> {
        let folder = self.state.join(FOLDER);
        make_dirs(&*self.disk, &folder).map_err(RepositoryError::file("making folder", &folder))?;
        let lock = state::lock(&self.state)?;
        // Counted first: a publisher that sees the old number has begun before the list.
        if self.shared.is_none() {
            self.count()?;
        }
        let path = self.path(LIST);
        let mut failed = None;
        let mut id = String::new();
        let written = persist_with(&*self.disk, &path, |write| {
            let mut digest = Hasher::new(HashAlgorithm::Sha1);
            let mut put = |bytes: &[u8]| {
                digest.update(bytes);
                write(bytes)
            };
            let header = [&MAGIC[..], &since.0.to_le_bytes(), &count.to_le_bytes()].concat();
            put(&header)?;
            let mut last = None;
            let mut left = count;
            let mut room = Vec::with_capacity(RECORDS_AT_ONCE * RECORD_LEN);
            for object in objects {
                let object = match object {
                    Ok(object) => object,
                    Err(error) => {
                        failed = Some(error);
                        return Err(io::ErrorKind::Other.into());
                    }
                };
                if last.is_some_and(|last| last >= object) || left == 0 {
                    return Err(io::Error::other(
                        "the objects are out of order, or more than were announced",
                    ));
                }
                (last, left) = (Some(object), left - 1);
                encode(&object, &mut room);
                if room.len() >= RECORDS_AT_ONCE * RECORD_LEN {
                    put(&room)?;
                    room.clear();
                }
            }
            if left > 0 {
                return Err(io::Error::other("there are fewer objects than were announced"));
            }
            put(&room)?;
            let digest = digest.finish();
            id = digest.hex();
            write(digest.digest())
        });
        match failed {
            Some(error) => return Err(error),
            None => written.map_err(RepositoryError::file("writing", &path))?,
        }
        let Some(shared) = &self.shared else { return Ok(()) };
        let bytes =
            read_file(&*self.disk, &path, REVIVED_MAX).map_err(RepositoryError::file("reading", &path))?;
        drop(lock);
        shared.begin(&id, &bytes.ok_or_else(|| unreadable(&path))?)
    }

    fn note<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, RepositoryError> {
        let path = self.path(name);
        let text =
            read_file(&*self.disk, &path, REVIVED_MAX).map_err(RepositoryError::file("reading", &path))?;
        text.map(|text| serde_json::from_slice(&text).map_err(|_| unreadable(&path))).transpose()
    }

    fn write_note<T: Serialize>(&self, name: &str, note: &T) -> Result<(), RepositoryError> {
        let path = self.path(name);
        let text = serde_json::to_vec(note).expect("a note becomes JSON because its keys are text");
        let _lock = state::lock(&self.state)?;
        persist(&*self.disk, &path, &text).map_err(RepositoryError::file("writing", &path))
    }
}

impl Condemned {
    /// Returns the time at which the list was written.
    pub fn since(&self) -> UnixTime {
        self.since
    }

    /// Returns the number of objects that were put on the list.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns how many objects of the list the batches so far covered.
    pub fn done(&self) -> u64 {
        self.progress.done
    }

    /// Returns the state of the list.
    pub fn state(&self) -> State {
        self.progress.state
    }

    /// Returns whether an object is on the list and was not revived.
    pub fn contains(&self, object: &ObjectName) -> Result<bool, RepositoryError> {
        if self.revived.contains(object) {
            return Ok(false);
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.records(middle, 1)?.first() {
                Some(found) if found < object => low = middle + 1,
                Some(found) if found > object => high = middle,
                found => return Ok(found.is_some()),
            }
        }
        Ok(false)
    }

    /// Removes objects from the list, durably; ignores those that are not on it.
    pub fn revive(&mut self, objects: &[ObjectName]) -> Result<(), RepositoryError> {
        let before = self.revived.len();
        for object in objects {
            if self.contains(object)? {
                self.revived.insert(*object);
            }
        }
        if self.revived.len() == before {
            return Ok(());
        }
        if let Some(shared) = &self.folder.shared {
            return shared.revive(&self.id, &self.revived);
        }
        let objects = self.revived.iter().map(ToString::to_string).collect();
        self.folder.write_note(REVIVED, &Revived { list: self.id.clone(), objects })
    }

    /// Notes durably that deletion begins.
    pub fn begin_deleting(&mut self) -> Result<(), RepositoryError> {
        if let Some(shared) = &self.folder.shared {
            let owner = state::id(&*self.folder.disk, &self.folder.state)?;
            self.revived = shared.begin_deleting(&self.id, &owner)?;
            self.progress.state = State::Deleting;
            return Ok(());
        }
        self.set_progress(State::Deleting, self.progress.done)
    }

    /// Returns the next objects to delete, at most `max` records further; none at the end of the list.
    pub fn batch(&self, max: u64) -> Result<Option<Batch>, RepositoryError> {
        let done = self.progress.done.min(self.count);
        let records = self.records(done, max.min(self.count - done))?;
        let done = done + records.len() as u64;
        let is_revived = |object: &ObjectName| self.revived.contains(object);
        let objects = records.iter().filter(|object| !is_revived(object)).copied().collect();
        Ok((!records.is_empty()).then_some(Batch { objects, done }))
    }

    /// Notes durably that a batch is deleted.
    pub fn advance(&mut self, batch: &Batch) -> Result<(), RepositoryError> {
        if let Some(shared) = &self.folder.shared {
            let owner = state::id(&*self.folder.disk, &self.folder.state)?;
            shared.advance(&self.id, &owner, batch.done)?;
            self.progress.done = batch.done;
            return Ok(());
        }
        self.set_progress(State::Deleting, batch.done)
    }

    /// Removes the list once all its objects are deleted, or when the collect is cancelled.
    pub fn remove(self) -> Result<(), RepositoryError> {
        if let Some(shared) = &self.folder.shared {
            shared.end(&self.id)?;
        }
        let _lock = state::lock(&self.folder.state)?;
        // A publisher that began while there was a list has to notice that it ended.
        if self.folder.shared.is_none() {
            self.folder.count()?;
        }
        let folder = self.folder.state.join(FOLDER);
        // The list goes first: without it the notes mean nothing.
        for name in [LIST, PROGRESS, REVIVED] {
            state::remove(&*self.folder.disk, &folder.join(name))?;
            if name == LIST {
                let synced = self.folder.disk.sync_dir(&folder);
                synced.map_err(RepositoryError::file("writing folder", &folder))?;
            }
        }
        Ok(())
    }

    fn set_progress(&mut self, state: State, done: u64) -> Result<(), RepositoryError> {
        let progress = Progress { list: self.id.clone(), state, done };
        self.folder.write_note(PROGRESS, &progress)?;
        self.progress = progress;
        Ok(())
    }

    fn records(&self, first: u64, number: u64) -> Result<Vec<ObjectName>, RepositoryError> {
        let path = self.folder.path(LIST);
        let len = usize::try_from(number).ok().and_then(|number| number.checked_mul(RECORD_LEN));
        let mut bytes = vec![0; len.ok_or_else(|| unreadable(&path))?];
        let at = HEADER_LEN as u64 + first * RECORD_LEN as u64;
        let read = self.folder.disk.read_exact_at(&self.file, &mut bytes, at);
        read.map_err(RepositoryError::file("reading", &path))?;
        let (records, _) = bytes.as_chunks::<RECORD_LEN>();
        records.iter().map(decode).collect::<Option<_>>().ok_or_else(|| unreadable(&path))
    }
}

fn encode(object: &ObjectName, out: &mut Vec<u8>) {
    out.push(object.hash.algorithm().to_flag());
    out.extend_from_slice(object.hash.digest());
    let kind = ObjectKind::ALL.iter().position(|kind| *kind == object.kind).unwrap_or_default();
    out.push(u8::try_from(kind).unwrap_or_default());
}

fn decode(record: &[u8; RECORD_LEN]) -> Option<ObjectName> {
    let [algorithm, digest @ .., kind] = record;
    let hash = ContentHash::new(HashAlgorithm::from_flag(*algorithm)?, *digest);
    Some(ObjectName::new(hash, *ObjectKind::ALL.get(usize::from(*kind))?))
}

fn unreadable(path: &Path) -> RepositoryError {
    let text = "it is damaged; remove the folder `condemned`, and collect again";
    RepositoryError::file("reading", path)(io::Error::new(io::ErrorKind::InvalidData, text))
}

#[cfg(test)]
mod tests;
