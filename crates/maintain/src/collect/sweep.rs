//! Deletes condemned objects, batch by batch, each under the lock of the head.
//!
//! Object storage has no lock. There the list says that deletion begins, and then a fence follows: the head is replaced by
//! one of the same revision, if it still is the one whose objects are kept. A publisher that read the head before fails to
//! replace it; one that reads it later finds that its objects are being deleted, and waits.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{
    RepositoryError,
    condemned::{LEASE, State},
};
use serde::Serialize;

use super::CollectProgress;
use super::act::{Marked, Run};
use super::deletion_log::DeletionLog;
use super::marks::Marker;
use crate::hash_lists::sorter::SetIter;
use crate::hash_lists::{Record, SortedSet, Tagged};

/// Number of objects that are deleted under one lock, for which publishers wait.
const BATCH: u64 = 10_000;
/// Number of objects that are deleted in a batch in object storage. With each batch the collector records that it is
/// running.
const SHARED_BATCH: u64 = 2000;
/// Number of objects in one request to object storage.
const REQUEST: usize = 1000;
/// Maximum number of folders that are synced one by one; for more, the file system is synced.
const SYNC_SINGLY: usize = 48;

/// Deleted objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Number of objects.
    pub objects: u64,
    /// Number of bytes of the deleted objects.
    pub bytes: u64,
    /// Condemned objects that a kept revision names by now, and that therefore stay.
    pub revived: u64,
}

impl Deleted {
    pub(super) fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.revived += other.revived;
    }
}

/// Deletes the listed objects that no kept revision names, and then the list. Repeating it is harmless.
pub(super) fn sweep(run: &Run<'_>, marked: &mut Marked) -> Result<Deleted, RepositoryError> {
    let mut deleted = Deleted::default();
    if !run.repository.storage().is_folder() && !fence(run, marked)? {
        return Ok(deleted);
    }
    // Publishers take what they use off the list; those of CernVM-FS don't know it, so what is kept is compared again
    // whenever the head moved.
    while !sweep_beside(run, marked, &mut deleted)? {
        *marked = run.mark_published()?;
    }
    Ok(deleted)
}

/// Notes that deletion begins, and replaces the head, so that no publisher counts on a listed object that is not kept.
/// Returns false if there is no list.
fn fence(run: &Run<'_>, marked: &mut Marked) -> Result<bool, RepositoryError> {
    let Some(mut list) = run.folder.read()? else { return Ok(false) };
    list.begin_deleting()?;
    let mut lock = run.repository.lock_head(&run.marker.collect.stop)?;
    loop {
        if lock.head().bytes != marked.head.bytes {
            *marked = run.mark_head(lock.head().clone())?;
        }
        if lock.fence(run.now)? {
            // Without the lock, a further head may be there already, for which nothing is marked.
            if lock.is_exclusive() {
                marked.head = run.repository.read_head()?;
            }
            return Ok(true);
        }
        lock.read_again()?;
    }
}

/// Deletes batches until the end of the list, or until the head is another one.
fn sweep_beside(run: &Run<'_>, marked: &Marked, deleted: &mut Deleted) -> Result<bool, RepositoryError> {
    let mut kept = Cursor::new(&marked.kept.objects);
    loop {
        let lock = run.repository.lock_head(&run.marker.collect.stop)?;
        // After the fence, the revisions of other publishers name no object that is deleted.
        if lock.is_exclusive() && lock.head().bytes != marked.head.bytes {
            return Ok(false);
        }
        let Some(mut list) = run.folder.read()? else { return Ok(true) };
        let (is_folder, begun) = (run.repository.storage().is_folder(), Instant::now());
        // Object storage has to know that this collector has not ended.
        if list.state() == State::Waiting || !is_folder {
            list.begin_deleting()?;
        }
        // After that is noted: work that begins from now on looks at the list.
        if run.repository.open_works().read()?.iter().any(|work| marked.may_miss(work)) {
            return Ok(false);
        }
        let Some(batch) = list.batch(if is_folder { BATCH } else { SHARED_BATCH })? else {
            list.remove()?;
            run.log.as_ref().map_or(Ok(()), DeletionLog::finish)?;
            return Ok(true);
        };
        (run.marker.collect.progress)(CollectProgress::Delete { done: batch.done, total: list.count() });
        // Publishers took the others off the list.
        let covered = batch.done.saturating_sub(list.done());
        deleted.revived += covered.saturating_sub(batch.objects.len() as u64);
        let mut doomed = Vec::new();
        for object in &batch.objects {
            match kept.has(&Record::of(object))? {
                true => deleted.revived += 1,
                false => doomed.push(*object),
            }
        }
        run.log.as_ref().map_or(Ok(()), |log| log.deletes(&doomed))?;
        if is_folder {
            // Each folder is one thread's, so that threads don't wait for each other's folder.
            let folders: Vec<&[ObjectName]> = doomed.chunk_by(|a, b| folder(a) == folder(b)).collect();
            for sizes in run.marker.each(&folders, |objects| delete(&run.marker, objects))? {
                deleted.add(&sizes);
            }
            sync(&run.marker, &doomed)?;
        } else {
            for objects in doomed.chunks(REQUEST) {
                // Another machine may take this collector for ended, and publishers may store the objects again.
                if begun.elapsed() > LEASE / 2 {
                    return Err(RepositoryError::Slow { storage: run.repository.storage().describe() });
                }
                deleted.add(&delete_shared(&run.marker, objects)?);
            }
        }
        list.advance(&batch)?;
    }
}

fn folder(object: &ObjectName) -> u8 {
    Record::of(object).folder()
}

/// Deletes objects of one folder.
fn delete(marker: &Marker<'_>, objects: &[ObjectName]) -> Result<Deleted, RepositoryError> {
    let mut deleted = Deleted::default();
    for name in objects {
        let Some(size) = marker.size(name)? else { continue };
        if !matches!(name.kind, ObjectKind::File | ObjectKind::Chunk) {
            remove(marker, &name.alternative_path())?;
        }
        remove(marker, &name.path())?;
        deleted.objects += 1;
        deleted.bytes = deleted.bytes.saturating_add(size);
    }
    Ok(deleted)
}

/// Deletes objects of object storage.
fn delete_shared(marker: &Marker<'_>, objects: &[ObjectName]) -> Result<Deleted, RepositoryError> {
    let sink = marker.storage.sink();
    let mut deleted = Deleted::default();
    let mut present = Vec::new();
    for (name, size) in objects.iter().zip(marker.each(objects, |name| marker.size(name))?) {
        let Some(size) = size else { continue };
        if !matches!(name.kind, ObjectKind::File | ObjectKind::Chunk) && marker.has_alternative_paths {
            sink.remove_root(&name.alternative_path())?;
        }
        present.push(*name);
        deleted.objects += 1;
        deleted.bytes = deleted.bytes.saturating_add(size);
    }
    sink.delete(&present)?;
    Ok(deleted)
}

fn remove(marker: &Marker<'_>, path: &str) -> Result<(), RepositoryError> {
    let path = marker.storage.place().join(path);
    match marker.served.remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RepositoryError::file("deleting", &path)(error))
        }
        _ => Ok(()),
    }
}

/// Makes deletions durable, so that no object reappears after the list is removed.
fn sync(marker: &Marker<'_>, objects: &[ObjectName]) -> Result<(), RepositoryError> {
    let root = marker.storage.place();
    let folders: BTreeSet<u8> = objects.iter().map(folder).collect();
    if folders.len() > SYNC_SINGLY {
        return marker.served.sync_all(root).map_err(RepositoryError::file("syncing", root));
    }
    for folder in folders {
        let path = root.join("data").join(format!("{folder:02x}"));
        match marker.served.sync_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RepositoryError::file("syncing", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Looks up records in a set; ascending ones in one pass.
struct Cursor<'s> {
    set: &'s SortedSet,
    iter: SetIter<'s>,
    next: Option<Tagged>,
    last: Option<Record>,
}

impl<'s> Cursor<'s> {
    fn new(set: &'s SortedSet) -> Self {
        Self { set, iter: set.iter(), next: None, last: None }
    }

    fn has(&mut self, record: &Record) -> Result<bool, RepositoryError> {
        // The list is ordered by algorithm first, so it goes back where another algorithm begins.
        if self.last.is_none_or(|last| last >= *record) {
            self.iter = self.set.iter();
            self.next = self.iter.next().transpose()?;
        }
        self.last = Some(*record);
        while self.next.is_some_and(|next| next.record < *record) {
            self.next = self.iter.next().transpose()?;
        }
        Ok(self.next.is_some_and(|next| next.record == *record))
    }
}
