//! Asks a server for each object, or reads each of them, by a bounded number of requests at once.

use esker_format::object::ObjectName;
use esker_repository::{RepositoryError, parallel};

use super::finding::FindingKind;
use super::mirror::{Mirror, Verdict};
use super::options::{Check, CheckProgress};
use super::reading::Folder;
use super::storage::BadObjects;
use super::target::Target;
use crate::hash_lists::sorter::SetIter;
use crate::hash_lists::{Record, SortedSet, Tagged};
use crate::pace::Pace;

/// Number of concurrent requests.
const REQUESTS: usize = 16;
/// Names that are taken from the list at once.
const BATCH: usize = 4096;

/// Returns the named objects that the server does not have.
pub(super) fn missing(
    check: &Check<'_>,
    mirror: &dyn Mirror,
    named: &SortedSet,
) -> Result<BadObjects, RepositoryError> {
    (check.progress)(CheckProgress::Presence { objects: named.len() });
    let mut bad = BadObjects::new();
    let mut left = named.iter();
    loop {
        let batch = names(left.by_ref().take(BATCH))?;
        if batch.is_empty() {
            return Ok(bad);
        }
        let found = parallel::map(REQUESTS, &check.stop, &batch, |(_, name)| mirror.presence(&name.path()))?;
        for ((record, _), verdict) in batch.iter().zip(found) {
            bad.extend(fault(verdict).map(|fault| (*record, fault)));
        }
    }
}

fn names(
    tagged: impl Iterator<Item = Result<Tagged, RepositoryError>>,
) -> Result<Vec<(Record, ObjectName)>, RepositoryError> {
    let mut names = Vec::new();
    for tagged in tagged {
        let record = tagged?.record;
        names.extend(record.name().map(|name| (record, name)));
    }
    Ok(names)
}

/// Returns the fault of an object that a server does not have.
pub(super) fn missing_object() -> (FindingKind, String) {
    (FindingKind::ObjectMissing, "the server does not have the object".to_owned())
}

fn fault(verdict: Verdict) -> Option<(FindingKind, String)> {
    match verdict {
        Verdict::Good(_) => None,
        Verdict::Missing => Some(missing_object()),
        Verdict::Bad(detail) => Some((FindingKind::ObjectDamaged, detail)),
    }
}

/// Reads the named objects, in the order of their folders.
pub(super) struct Reader<'r> {
    check: &'r Check<'r>,
    target: &'r Target<'r>,
    left: std::iter::Peekable<SetIter<'r>>,
    pace: Pace,
}

impl<'r> Reader<'r> {
    pub(super) fn new(
        check: &'r Check<'r>,
        target: &'r Target<'r>,
        named: &'r SortedSet,
        rate: Option<u64>,
    ) -> Self {
        Self { check, target, left: named.iter().peekable(), pace: Pace::new(rate, check.stop.clone()) }
    }

    /// Reads the objects of a folder; those of earlier folders are left out.
    pub(super) fn folder(&mut self, folder: usize) -> Result<Folder, RepositoryError> {
        let mut found = Folder::default();
        let is_before = |tagged: &Result<Tagged, RepositoryError>| {
            tagged.as_ref().is_ok_and(|tagged| usize::from(tagged.record.folder()) < folder)
        };
        while self.left.next_if(is_before).is_some() {}
        loop {
            let mut batch = Vec::new();
            let is_next = |tagged: &Result<Tagged, RepositoryError>| {
                tagged.as_ref().map_or(true, |tagged| usize::from(tagged.record.folder()) <= folder)
            };
            while batch.len() < BATCH
                && let Some(tagged) = self.left.next_if(is_next)
            {
                batch.push(tagged);
            }
            let batch = names(batch.into_iter())?;
            if batch.is_empty() {
                return Ok(found);
            }
            let read = parallel::map(REQUESTS, &self.check.stop, &batch, |(_, name)| {
                let verdict = self.target.verify(name)?;
                if let Verdict::Good(bytes) = verdict {
                    self.pace.wait(bytes);
                }
                Ok(verdict)
            })?;
            for ((_, name), verdict) in batch.iter().zip(read) {
                found.objects += 1;
                match verdict {
                    Verdict::Good(bytes) => found.bytes = found.bytes.saturating_add(bytes),
                    Verdict::Missing => found.missing.push(name.to_string()),
                    Verdict::Bad(detail) => found.damaged.push((name.to_string(), detail)),
                }
            }
        }
    }
}
