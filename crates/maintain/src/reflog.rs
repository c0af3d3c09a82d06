//! Reads the reflog, or rebuilds it from the reachable revisions.

use std::collections::HashSet;

use esker_format::hash::ContentHash;
use esker_format::history::History;
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::reflog::ReflogDraft;
use esker_repository::{DATABASE_MAX, HISTORY_MAX, RepositoryError, signed::read_object};
use esker_store::Sink;

use crate::hash_lists::HashLists;

/// Maximum number of root objects of a rebuilt reflog: two revisions a minute for 30 years.
const ROOTS_MAX: usize = 1 << 25;

/// The reflog of a repository.
pub(crate) struct KnownReflog {
    pub(crate) reflog: Reflog,
    /// Hash of the stored file; none if it is missing or damaged.
    pub(crate) stored: Option<ContentHash>,
}

impl KnownReflog {
    /// Reads the reflog, or rebuilds it if it is missing or damaged.
    pub(crate) fn read(
        sink: &dyn Sink,
        lists: &HashLists<'_>,
        name: &RepositoryName,
        head: &Manifest,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        if let Some(bytes) = sink.read(reflog::PATH, DATABASE_MAX)?
            && let Ok(reflog) = Reflog::parse(&bytes)
        {
            let stored = ContentHash::of(head.root_catalog.algorithm(), &bytes);
            return Ok(Self { reflog, stored: Some(stored) });
        }
        let reflog = Reflog::parse(&rebuild(sink, lists, name, head, now)?.finish());
        Ok(Self { reflog: reflog.map_err(RepositoryError::Reflog)?, stored: None })
    }
}

/// Returns the objects that a head names and its reflog has to list, but does not.
pub(crate) fn unlisted(reflog: &Reflog, head: &Manifest) -> impl Iterator<Item = ObjectName> {
    let named = head.objects().filter(|name| name.kind != ObjectKind::Micro);
    named.filter(|name| reflog.references().iter().all(|listed| listed.object != *name))
}

/// Returns a reflog of everything that the head leads to: the revisions before it, the histories before its history,
/// and the revisions that these ever named. A missing object ends its branch.
pub(crate) fn rebuild(
    sink: &dyn Sink,
    lists: &HashLists<'_>,
    name: &RepositoryName,
    head: &Manifest,
    now: UnixTime,
) -> Result<ReflogDraft, RepositoryError> {
    let mut found: HashSet<ObjectName> = HashSet::new();
    let certificate = head.certificate.map(|hash| ObjectName::new(hash, ObjectKind::Certificate));
    let metainfo = head.metainfo.map(|hash| ObjectName::new(hash, ObjectKind::Metainfo));
    found.extend(certificate.into_iter().chain(metainfo));
    let mut roots = vec![head.root_catalog];
    let mut history = head.history.map(|hash| ObjectName::new(hash, ObjectKind::History));
    while let Some(object) = history.filter(|object| found.len() < ROOTS_MAX && !found.contains(object)) {
        let parsed = read_object(sink, &object, None, HISTORY_MAX, "the history")
            .ok()
            .and_then(|bytes| History::parse(&bytes).ok());
        let Some(parsed) = parsed else { break };
        found.insert(object);
        roots.extend(parsed.tags().iter().map(|tag| tag.root_catalog));
        history = parsed.previous();
    }
    for root in roots {
        let mut next = Some(root);
        while let Some(root) = next {
            let object = ObjectName::new(root, ObjectKind::Catalog);
            let is_there = || sink.read(&object.path(), DATABASE_MAX).is_ok_and(|bytes| bytes.is_some());
            if found.len() >= ROOTS_MAX || found.contains(&object) || !is_there() {
                break;
            }
            // A damaged catalog is a root all the same.
            found.insert(object);
            next = lists.get(&root).ok().flatten().and_then(|list| list.previous);
        }
    }
    let mut draft = ReflogDraft::new(name.clone());
    let mut found: Vec<ObjectName> = found.into_iter().collect();
    found.sort_unstable();
    found.into_iter().for_each(|object| draft.add(object, now));
    Ok(draft)
}
