//! Decides which revisions are kept and which are dropped.

use std::collections::{BTreeMap, HashMap, HashSet};

use esker_format::hash::ContentHash;
use esker_format::history::Tag;
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{Reference, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::history::is_automatic;
use esker_repository::{OpenWork, RepositoryError};

use super::{DroppedRevision, Keep};
use crate::hash_lists::HashLists;

/// Revisions by what happens to them.
#[derive(Debug, Default)]
pub(crate) struct Revisions {
    /// Root catalogs that are kept, the head first.
    pub(crate) kept: Vec<KeptRoot>,
    /// Root catalogs that the reflog lists and that are not kept, oldest first.
    pub(crate) dropped: Vec<DroppedRevision>,
    /// Certificates, histories and descriptions that go.
    pub(crate) auxiliary: Vec<ObjectName>,
}

/// A root catalog that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptRoot {
    pub(crate) root: ContentHash,
    pub(crate) revision: u64,
    /// The tags of the revision.
    pub(crate) tags: Vec<String>,
    /// True for the head and tagged revisions, which have to be complete.
    pub(crate) required: bool,
}

impl Revisions {
    /// Decides for a repository with this head, these tags and this reflog.
    pub(crate) fn of(
        lists: &HashLists<'_>,
        has: &dyn Fn(&ObjectName) -> Result<bool, RepositoryError>,
        (head, tags, reflog): (&Manifest, &[Tag], &Reflog),
        open: &[OpenWork],
        keep: Keep,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        let added: HashMap<ContentHash, UnixTime> = reflog
            .references()
            .iter()
            .map(|reference| (reference.object.hash, reference.timestamp))
            .collect();
        let mut revisions = Self::default();
        let oldest = revisions.follow(lists, has, head.root_catalog, &added, keep, now)?;
        revisions.add_tags(tags);
        revisions.add_open(lists, open)?;
        let kept: HashSet<ContentHash> = revisions.kept.iter().map(|kept| kept.root).collect();
        let in_head = [head.certificate, head.history, head.metainfo];
        for Reference { object, timestamp } in reflog.references() {
            if object.kind != ObjectKind::Catalog {
                let is_old = *timestamp < oldest && !in_head.contains(&Some(object.hash));
                revisions.auxiliary.extend(is_old.then_some(*object));
            } else if !kept.contains(&object.hash) {
                let revision = lists.get(&object.hash)?.map(|list| list.revision);
                revisions.dropped.push(DroppedRevision { revision, time: timestamp.0, root: object.hash });
            }
        }
        revisions.dropped.sort_unstable();
        Ok(revisions)
    }

    /// Follows the revisions from the head back, and returns the time of the oldest one that is kept.
    fn follow(
        &mut self,
        lists: &HashLists<'_>,
        has: &dyn Fn(&ObjectName) -> Result<bool, RepositoryError>,
        head: ContentHash,
        added: &HashMap<ContentHash, UnixTime>,
        keep: Keep,
        now: UnixTime,
    ) -> Result<UnixTime, RepositoryError> {
        let mut visited = HashSet::new();
        let mut next = Some(head);
        let mut oldest = UnixTime(i64::MAX);
        while let Some(root) = next.filter(|root| visited.insert(*root)) {
            let depth = self.kept.len() as u64;
            // What an earlier collect removed ends the walk, also if its list is still there.
            let is_there = depth == 0 || has(&ObjectName::new(root, ObjectKind::Catalog))?;
            let Some(list) = lists.get(&root)?.filter(|_| is_there) else { break };
            let time = added.get(&root).copied().or(list.modified).unwrap_or(UnixTime(0));
            oldest = oldest.min(time);
            let required = depth == 0;
            self.kept.push(KeptRoot { root, revision: list.revision, tags: Vec::new(), required });
            // The first revision that is too old is kept all the same: it was the head until the one after it.
            let is_last = match keep {
                Keep::Age(seconds) => time.0 < now.0.saturating_sub(seconds),
                Keep::Last(count) => depth >= count,
                Keep::Tags => true,
            };
            next = if is_last { None } else { list.previous };
        }
        if self.kept.is_empty() {
            let what = "the root catalog of the head".to_owned();
            return Err(RepositoryError::Missing { what, object: head.to_string() });
        }
        Ok(oldest)
    }

    fn add_tags(&mut self, tags: &[Tag]) {
        let mut known: BTreeMap<ContentHash, usize> =
            self.kept.iter().enumerate().map(|(number, kept)| (kept.root, number)).collect();
        for tag in tags {
            let number = *known.entry(tag.root_catalog).or_insert(self.kept.len());
            if number == self.kept.len() {
                let (root, revision) = (tag.root_catalog, tag.revision);
                self.kept.push(KeptRoot { root, revision, tags: Vec::new(), required: true });
            }
            if let Some(kept) = self.kept.get_mut(number) {
                kept.required = true;
                kept.tags.push(tag.name.clone());
            }
        }
    }

    /// Adds the bases of open work. What is missing of one is no reason not to collect.
    fn add_open(&mut self, lists: &HashLists<'_>, open: &[OpenWork]) -> Result<(), RepositoryError> {
        for root in open.iter().flat_map(OpenWork::root_hashes) {
            if !self.kept.iter().any(|kept| kept.root == root)
                && let Some(list) = lists.get(&root)?
            {
                let (revision, tags) = (list.revision, Vec::new());
                self.kept.push(KeptRoot { root, revision, tags, required: false });
            }
        }
        Ok(())
    }

    /// Returns the root catalogs that are kept.
    pub(crate) fn kept_roots(&self) -> Vec<ContentHash> {
        self.kept.iter().map(|kept| kept.root).collect()
    }

    /// Returns the objects that the reflog no longer lists.
    pub(crate) fn unlisted(&self) -> HashSet<ObjectName> {
        let roots = self.dropped.iter().map(|dropped| ObjectName::new(dropped.root, ObjectKind::Catalog));
        roots.chain(self.auxiliary.iter().copied()).collect()
    }
}

/// Returns the automatic tags that are older than their age, oldest first.
pub(crate) fn expired_tags(tags: &[Tag], age: Option<i64>, now: UnixTime) -> Vec<&Tag> {
    let Some(age) = age else { return Vec::new() };
    let mut expired: Vec<&Tag> = tags
        .iter()
        .filter(|tag| is_automatic(&tag.name) && tag.timestamp.0 < now.0.saturating_sub(age))
        .collect();
    expired.sort_by_key(|tag| (tag.timestamp, tag.revision));
    expired
}
