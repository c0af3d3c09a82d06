//! Tagged revisions of the history.

use std::collections::BTreeMap;

use esker_format::hash::ContentHash;
use esker_format::history::History;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::trust::VerifiedHead;
use esker_repository::{HISTORY_MAX, RepositoryError, signed::decoded_object};
use esker_store::LargeBytes;

use super::options::{Replicate, RevisionLimit};
use super::origin::Origin;
use super::replica::Replica;

/// A tagged revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tagged {
    pub(super) root: ContentHash,
    pub(super) revision: u64,
    pub(super) size: Option<u64>,
    pub(super) tags: Vec<String>,
}

/// The history of a head.
#[derive(Default)]
pub(super) struct CopiedHistory {
    /// The object with its stored bytes; none if the head names none.
    pub(super) object: Option<(ObjectName, LargeBytes)>,
    /// Selected revisions besides the head, newest first.
    pub(super) revisions: Vec<Tagged>,
}

impl CopiedHistory {
    /// Fetches the history.
    pub(super) fn fetch(
        options: &Replicate<'_>,
        origin: &Origin,
        replica: &Replica,
        head: &VerifiedHead,
    ) -> Result<Self, RepositoryError> {
        let Some(object) = head.history() else { return Ok(Self::default()) };
        let stored = match replica.stored(&object, HISTORY_MAX)? {
            Some(here) => Some(here),
            None => origin.object(&object, head.path(object), HISTORY_MAX)?,
        };
        let missing = || RepositoryError::Missing {
            what: format!("the history of the head on {}", origin.source.describe()),
            object: object.to_string(),
        };
        let stored = stored.ok_or_else(missing)?;
        let plain = decoded_object(&stored, &object, None, (HISTORY_MAX, &origin.spool), "the history")?;
        let parsed = History::parse(&plain).map_err(RepositoryError::History)?;
        let revisions = select(&parsed, head, options.revisions);
        Ok(Self { object: Some((object, stored)), revisions })
    }
}

/// Returns the revisions of the tags besides the head, newest first.
fn select(history: &History, head: &VerifiedHead, limit: RevisionLimit) -> Vec<Tagged> {
    let mut known: BTreeMap<ContentHash, Tagged> = BTreeMap::new();
    for tag in history.tags() {
        if tag.root_catalog == head.root_catalog().hash {
            continue;
        }
        let revision = known.entry(tag.root_catalog).or_insert_with(|| Tagged {
            root: tag.root_catalog,
            revision: tag.revision,
            size: tag.size.filter(|size| *size > 0),
            tags: Vec::new(),
        });
        revision.tags.push(tag.name.clone());
    }
    let mut revisions: Vec<Tagged> = known.into_values().collect();
    revisions.sort_by_key(|tagged| (std::cmp::Reverse(tagged.revision), tagged.root));
    if let RevisionLimit::Newest(number) = limit {
        revisions.truncate(usize::try_from(number).unwrap_or(usize::MAX));
    }
    revisions
}

/// Returns the objects that a head names besides its root catalog, certificate and history.
pub(super) fn described(head: &VerifiedHead) -> Vec<ObjectName> {
    let micro = head.manifest().micro_catalog.map(|hash| ObjectName::new(hash, ObjectKind::Micro));
    head.metainfo().into_iter().chain(micro).collect()
}
