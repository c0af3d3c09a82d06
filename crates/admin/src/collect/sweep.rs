//! Deletes condemned objects.

use std::collections::BTreeSet;
use std::io;

use esker_format::object::ObjectKind;
use serde::Serialize;

use super::CollectProgress;
use super::condemn::{Condemned, CondemnedFile, State};
use super::marks::{Kept, Marker};
use crate::error::AdminError;
use crate::hash_lists::{Record, minus};

/// Objects that are deleted between two looks at the stop flag and two reports of progress.
const BATCH: usize = 10_000;
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

/// Deletes the objects of the list that no kept revision names, and then the list. Repeating it is harmless.
pub(crate) fn sweep(
    marker: &Marker<'_>,
    file: &CondemnedFile,
    list: Condemned,
    kept: &Kept,
) -> Result<Deleted, AdminError> {
    let listed = list.objects.len() as u64;
    let mut doomed = Vec::new();
    for tagged in minus(list.iter(), kept.objects.iter()) {
        doomed.push(tagged?.record);
    }
    if list.state != State::Deleting || doomed.len() as u64 != listed {
        // Objects that stay are taken off the list before anything is deleted.
        file.write(&Condemned { state: State::Deleting, since: list.since, objects: doomed.clone() })?;
    }
    let mut deleted = Deleted { revived: listed - doomed.len() as u64, ..Deleted::default() };
    let total = doomed.len() as u64;
    let mut done = 0;
    for batch in doomed.chunks(BATCH) {
        (marker.collect.progress)(CollectProgress::Delete { done, total });
        // Each folder is one thread's, so that threads don't wait for each other's folder.
        let folders: Vec<&[Record]> = batch.chunk_by(|a, b| a.folder() == b.folder()).collect();
        for sizes in marker.each(&folders, |folder| delete(marker, folder))? {
            deleted.objects += sizes.objects;
            deleted.bytes = deleted.bytes.saturating_add(sizes.bytes);
        }
        done += batch.len() as u64;
    }
    sync(marker, &doomed)?;
    file.remove()?;
    Ok(deleted)
}

/// Deletes objects of one folder.
fn delete(marker: &Marker<'_>, records: &[Record]) -> Result<Deleted, AdminError> {
    let mut deleted = Deleted::default();
    for name in records.iter().filter_map(Record::name) {
        let Some(size) = marker.size(&name)? else { continue };
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

/// Makes the deletions durable, so that no object comes back after the list is gone.
fn sync(marker: &Marker<'_>, records: &[Record]) -> Result<(), AdminError> {
    let root = marker.sink.root();
    let folders: BTreeSet<u8> = records.iter().map(Record::folder).collect();
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
