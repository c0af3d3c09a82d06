//! Deletes condemned objects, batch by batch, each under the lock of the head.

use std::collections::BTreeSet;
use std::io;

use esker_format::object::{ObjectKind, ObjectName};
use serde::Serialize;

use super::CollectProgress;
use super::act::{Marked, Run};
use super::deletion_log::DeletionLog;
use super::marks::Marker;
use crate::condemned::State;
use crate::error::AdminError;
use crate::hash_lists::sorter::SetIter;
use crate::hash_lists::{Record, SortedSet, Tagged};

/// Objects that are deleted in one go: publishers wait for the lock meanwhile.
const BATCH: u64 = 10_000;
/// Up to this many folders are synced one by one; above, the whole file system is.
const SYNC_SINGLY: usize = 48;

/// Deleted objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes.
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
pub(super) fn sweep(run: &Run<'_>, marked: &mut Marked) -> Result<Deleted, AdminError> {
    let mut deleted = Deleted::default();
    // Publishers take what they use off the list; those of CernVM-FS don't know it, so what is kept is compared again
    // whenever the head moved.
    while !sweep_beside(run, marked, &mut deleted)? {
        *marked = run.mark_published()?;
    }
    Ok(deleted)
}

/// Deletes batches until the end of the list, or until the head is another one.
fn sweep_beside(run: &Run<'_>, marked: &Marked, deleted: &mut Deleted) -> Result<bool, AdminError> {
    let mut kept = Cursor::new(&marked.kept.objects);
    loop {
        let lock = run.repository.lock_head(&run.marker.collect.stop)?;
        if lock.head().bytes != marked.head.bytes {
            return Ok(false);
        }
        let Some(mut list) = run.folder.read()? else { return Ok(true) };
        if list.state() == State::Waiting {
            list.begin_deleting()?;
        }
        let Some(batch) = list.batch(BATCH)? else {
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
        // Each folder is one thread's, so that threads don't wait for each other's folder.
        let folders: Vec<&[ObjectName]> = doomed.chunk_by(|a, b| folder(a) == folder(b)).collect();
        for sizes in run.marker.each(&folders, |objects| delete(&run.marker, objects))? {
            deleted.add(&sizes);
        }
        sync(&run.marker, &doomed)?;
        list.advance(&batch)?;
    }
}

fn folder(object: &ObjectName) -> u8 {
    Record::of(object).folder()
}

/// Deletes objects of one folder.
fn delete(marker: &Marker<'_>, objects: &[ObjectName]) -> Result<Deleted, AdminError> {
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

fn remove(marker: &Marker<'_>, path: &str) -> Result<(), AdminError> {
    let path = marker.sink.root().join(path);
    match marker.served.remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(AdminError::file("deleting", &path)(error))
        }
        _ => Ok(()),
    }
}

/// Makes deletions durable, so that no object reappears after the list is removed.
fn sync(marker: &Marker<'_>, objects: &[ObjectName]) -> Result<(), AdminError> {
    let root = marker.sink.root();
    let folders: BTreeSet<u8> = objects.iter().map(folder).collect();
    if folders.len() > SYNC_SINGLY {
        return marker.served.sync_all(root).map_err(AdminError::file("syncing", root));
    }
    for folder in folders {
        let path = root.join("data").join(format!("{folder:02x}"));
        match marker.served.sync_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(AdminError::file("syncing", &path)(error));
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

    fn has(&mut self, record: &Record) -> Result<bool, AdminError> {
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
