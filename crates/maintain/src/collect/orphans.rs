//! Finds objects that no revision names, such as those of an interrupted publish.

use std::time::{Duration, SystemTime};

use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_repository::RepositoryError;

use super::marks::{Kept, Marker};
use crate::hash_lists::{Record, SortedSet, Tagged, minus};

/// Returns the objects in the storage that are older than `age` seconds and that are not kept.
pub(crate) fn find(
    marker: &Marker<'_>,
    kept: &Kept,
    age: i64,
    now: UnixTime,
) -> Result<Vec<Record>, RepositoryError> {
    let limit = u64::try_from(now.0.saturating_sub(age)).unwrap_or(0);
    let limit = SystemTime::UNIX_EPOCH + Duration::from_secs(limit);
    if !marker.storage.is_folder() {
        let stored = list_shared(marker, limit)?;
        let left = minus(stored.iter(), kept.objects.iter());
        return left.map(|tagged| Ok(tagged?.record)).collect();
    }
    let folders: Vec<u8> = (0..=u8::MAX).collect();
    let listed = marker.each(&folders, |folder| list(marker, *folder, limit))?;
    let stored = listed.into_iter().flatten().map(|record| Ok(Tagged::shared(record)));
    minus(stored, kept.objects.iter())
        .map(|tagged: Result<Tagged, RepositoryError>| Ok(tagged?.record))
        .collect()
}

/// Returns the objects in object storage that were last written before `limit`, by its clock.
fn list_shared(marker: &Marker<'_>, limit: SystemTime) -> Result<SortedSet, RepositoryError> {
    let mut sorter = marker.sorter();
    sorter.extend_listed(&**marker.storage.sink(), |listed| listed.modified < limit)?;
    sorter.finish()
}

/// Returns the objects of a folder that were last written before `limit`, sorted.
fn list(marker: &Marker<'_>, folder: u8, limit: SystemTime) -> Result<Vec<Record>, RepositoryError> {
    let digits = format!("{folder:02x}");
    let path = marker.storage.place().join("data").join(&digits);
    let names = match marker.served.list(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(RepositoryError::file("listing", &path))?,
    };
    let mut records = Vec::new();
    for name in names {
        let object = name.to_str().and_then(|rest| ObjectName::parse(&format!("{digits}{rest}")));
        let Some(object) = object else { continue };
        let facts = match marker.served.facts(&path.join(&name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            other => other.map_err(RepositoryError::file("looking for", &path))?,
        };
        if facts.regular && facts.modified < limit {
            records.push(Record::of(&object));
        }
    }
    records.sort_unstable();
    Ok(records)
}
