//! Sizes of objects, and the kept revisions that alone hold the most.

use std::collections::BTreeMap;

use esker_repository::RepositoryError;

use super::KeptRevision;
use super::marks::{Kept, Marker};
use super::revisions::KeptRoot;
use crate::hash_lists::{Owner, Tagged};

/// Number of objects whose sizes are requested at once.
const BATCH: usize = 4096;
/// Revisions that are named.
const NAMED: usize = 10;

/// Number and bytes of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Extent {
    fn add(&mut self, size: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(size);
    }
}

/// Returns the extent of the objects that the storage has, for each owner.
fn extents(
    marker: &Marker<'_>,
    records: impl Iterator<Item = Result<Tagged, RepositoryError>>,
) -> Result<BTreeMap<Owner, Extent>, RepositoryError> {
    let mut extents: BTreeMap<Owner, Extent> = BTreeMap::new();
    let mut records = records.peekable();
    while records.peek().is_some() {
        let batch: Vec<Tagged> = records.by_ref().take(BATCH).collect::<Result<_, _>>()?;
        let sizes = marker.each(&batch, |tagged| match tagged.record.name() {
            Some(name) => marker.size(&name),
            None => Ok(None),
        })?;
        for (tagged, size) in batch.iter().zip(sizes) {
            if let Some(size) = size {
                extents.entry(tagged.owner).or_default().add(size);
            }
        }
    }
    Ok(extents)
}

/// Returns the extent of objects that the storage has.
pub(crate) fn extent(
    marker: &Marker<'_>,
    records: impl Iterator<Item = Result<Tagged, RepositoryError>>,
) -> Result<Extent, RepositoryError> {
    let mut total = Extent::default();
    for extent in extents(marker, records)?.into_values() {
        total.objects += extent.objects;
        total.bytes = total.bytes.saturating_add(extent.bytes);
    }
    Ok(total)
}

/// Returns the revisions besides the head that alone hold the most bytes.
pub(crate) fn largest(
    marker: &Marker<'_>,
    kept: &Kept,
    roots: &[KeptRoot],
) -> Result<Vec<KeptRevision>, RepositoryError> {
    let head = Owner::of(0);
    let own = kept.objects.iter().filter(|record| {
        record.as_ref().map_or(true, |tagged| tagged.owner != Owner::SHARED && tagged.owner != head)
    });
    let extents = extents(marker, own)?;
    let named = extents.iter().filter_map(|(owner, extent)| {
        let root = roots.get(usize::try_from(owner.0).ok()?)?;
        Some(KeptRevision {
            revision: root.revision,
            root: root.root,
            tags: root.tags.clone(),
            objects: extent.objects,
            bytes: extent.bytes,
        })
    });
    let mut named: Vec<KeptRevision> = named.collect();
    named.sort_by_key(|kept| (std::cmp::Reverse(kept.bytes), kept.revision));
    named.truncate(NAMED);
    Ok(named)
}
