//! Compares the objects that are named with those that the storage has.

use std::collections::HashMap;
use std::fs::{DirEntry, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;

use esker_format::object::ObjectName;
use esker_repository::{RepositoryError, parallel};
use esker_store::{Disk, Listed, Sink};

use super::finding::FindingKind;
use super::options::{Check, CheckProgress};
use crate::hash_lists::{Record, SortedSet, Sorter, Tagged, minus};

/// Number of folders that are listed concurrently.
const FOLDERS: usize = 16;

/// Objects with a fault that a check of the catalogs does not see, and the fault of each.
pub(super) type BadObjects = HashMap<Record, (FindingKind, String)>;

/// Returns the named objects that the storage does not have, in one pass over its folders.
pub(super) fn missing(
    check: &Check<'_>,
    root: &Path,
    named: &SortedSet,
) -> Result<BadObjects, RepositoryError> {
    (check.progress)(CheckProgress::Presence { objects: named.len() });
    let folders: Vec<u8> = (0..=u8::MAX).collect();
    let mut listed = folders.chunks(FOLDERS).map(|folders| {
        let listed = parallel::map(check.threads, &check.stop, folders, |folder| list(root, *folder));
        Ok(listed?.into_iter().flatten().collect::<Vec<_>>())
    });
    let mut failure = None;
    let stored = std::iter::from_fn(|| match listed.next()? {
        Ok(records) => Some(records),
        Err(error) => {
            failure = Some(error);
            None
        }
    });
    let stored = stored.flatten().map(|record| Ok(Tagged::shared(record)));
    let mut bad = BadObjects::new();
    for tagged in minus(named.iter(), stored) {
        let record = tagged?.record;
        let fault = describe(root, &record);
        bad.insert(record, fault);
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(bad),
    }
}

/// Returns the named objects that object storage does not have, in one pass over its listing.
pub(super) fn missing_listed(
    check: &Check<'_>,
    sink: &dyn Sink,
    named: &SortedSet,
    (disk, scratch): (Arc<dyn Disk>, &Path),
) -> Result<BadObjects, RepositoryError> {
    (check.progress)(CheckProgress::Presence { objects: named.len() });
    let mut sorter = Sorter::new(disk, scratch, check.buffer);
    let mut empty = BadObjects::new();
    sorter.extend_listed(sink, |Listed { name, len, .. }| {
        // Only an object that is stored as it is may be empty.
        if *len == 0 && !is_hash_of_nothing(name) {
            empty.insert(Record::of(name), (FindingKind::ObjectDamaged, "the object is empty".to_owned()));
        }
        true
    })?;
    let stored = sorter.finish()?;
    let mut bad = BadObjects::new();
    for tagged in minus(named.iter(), stored.iter()) {
        bad.insert(tagged?.record, missing_object());
    }
    for tagged in named.iter() {
        let record = tagged?.record;
        bad.extend(empty.remove(&record).map(|fault| (record, fault)));
    }
    Ok(bad)
}

fn missing_object() -> (FindingKind, String) {
    (FindingKind::ObjectMissing, "the storage does not have the object".to_owned())
}

fn describe(root: &Path, record: &Record) -> (FindingKind, String) {
    let path = record.name().map(|name| root.join(name.path()));
    match path.and_then(|path| std::fs::metadata(path).ok()) {
        Some(facts) if facts.is_file() => (FindingKind::ObjectDamaged, "the object is empty".to_owned()),
        Some(_) => (FindingKind::ObjectKind, "its name is that of a folder or device".to_owned()),
        None => missing_object(),
    }
}

/// Returns the objects in a folder that may be whole, sorted.
fn list(root: &Path, folder: u8) -> Result<Vec<Record>, RepositoryError> {
    let digits = format!("{folder:02x}");
    let path = root.join("data").join(&digits);
    let failed = |error| RepositoryError::file("listing", &path)(error);
    let entries = match std::fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let object = name.to_str().and_then(|rest| ObjectName::parse(&format!("{digits}{rest}")));
        let Some(object) = object else { continue };
        // Only an object that is stored as it is may be empty.
        let is_whole = |facts: &Metadata| facts.is_file() && (facts.len() > 0 || is_hash_of_nothing(&object));
        if facts(&entry).is_ok_and(|facts| is_whole(&facts)) {
            records.push(Record::of(&object));
        }
    }
    records.sort_unstable();
    Ok(records)
}

/// Returns the facts of a directory entry. The kernel resolves only its name, not the whole path, which takes a large part of the
/// time of a check with hundreds of thousands of objects. Only a link is followed by its path.
fn facts(entry: &DirEntry) -> io::Result<Metadata> {
    let facts = entry.metadata()?;
    if facts.is_symlink() { std::fs::metadata(entry.path()) } else { Ok(facts) }
}

/// Returns true if an object without any byte has this name.
pub(super) fn is_hash_of_nothing(name: &ObjectName) -> bool {
    esker_format::hash::ContentHash::of(name.hash.algorithm(), b"") == name.hash
}
