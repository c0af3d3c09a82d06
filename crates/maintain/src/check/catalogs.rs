//! All catalogs of the checked revisions, and how they fit together.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use esker_format::catalog::{Catalog, Counters, Flags, Row};
use esker_format::hash::ContentHash;
use esker_format::history::Tag;
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{DATABASE_MAX, RepositoryError, parallel, path, signed::read_object};
use esker_store::{Disk, LargeBytes, StoredFiles};
use parking_lot::Mutex;

use super::catalog::{CatalogCheck, CatalogFacts, Edge};
use super::counters;
use super::error::CheckError;
use super::finding::{Finding, FindingKind, Findings};
use super::options::{Check, CheckProgress};
use crate::hash_lists::list::HashList;
use crate::hash_lists::{HashLists, Record, SortedSet, Sorter, Tagged};
use crate::replicate::is_selected;

/// Maximum number of revisions that a finding lists.
const REVISIONS_NAMED: usize = 8;

/// Maximum number of unknown parts of catalogs that are listed.
const NOTES_MAX: usize = 20;

/// A revision that is checked.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) hash: ContentHash,
    revision: u64,
    tags: Vec<String>,
    size: Option<u64>,
    is_head: bool,
}

/// A catalog, or what took its place.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// None if it is missing or damaged.
    pub(super) facts: Option<CatalogFacts>,
    parents: BTreeSet<ContentHash>,
}

/// The catalogs of the checked revisions.
#[derive(Debug, Default)]
pub(super) struct Catalogs {
    pub(super) roots: Vec<Root>,
    pub(super) known: HashMap<ContentHash, Node>,
    pub(super) entries: u64,
}

impl Catalogs {
    /// Checks all catalogs of the head and of the tags.
    pub(super) fn check(
        check: &Check<'_>,
        files: &dyn StoredFiles,
        lists: &HashLists<'_>,
        (head, tags): (&Manifest, &[Tag]),
        findings: &mut Findings,
    ) -> Result<Self, CheckError> {
        let mut catalogs = Self { roots: roots(check, head, tags)?, ..Self::default() };
        let mut level: Vec<(ContentHash, Vec<u8>)> =
            catalogs.roots.iter().map(|root| (root.hash, Vec::new())).collect();
        while !level.is_empty() {
            level.retain(|(hash, _)| !catalogs.known.contains_key(hash));
            level.sort_unstable();
            level.dedup_by_key(|(hash, _)| *hash);
            (check.progress)(CheckProgress::Catalogs { done: catalogs.known.len() as u64 });
            let read = parallel::map(check.threads, &check.stop, &level, |(hash, at)| {
                Ok(read(check, files, lists, *hash, at))
            })?;
            let mut next = Vec::new();
            for ((hash, _), (facts, found)) in level.into_iter().zip(read) {
                found.into_iter().for_each(|finding| findings.add(finding));
                let edges = facts.iter().flat_map(|facts: &CatalogFacts| &facts.nested);
                let here = edges.filter(|edge| is_selected(&edge.path, &check.selected));
                let near = here.filter(|edge| check.is_near(&edge.path));
                next.extend(near.map(|edge| (edge.hash, edge.path.clone())));
                catalogs.entries += facts.as_ref().map_or(0, |facts| facts.entries);
                catalogs.known.insert(hash, Node { facts, parents: BTreeSet::new() });
            }
            level = next;
        }
        catalogs.link();
        for root in &catalogs.roots {
            catalogs.check_root(root, findings);
        }
        catalogs.check_edges(check, findings);
        Ok(catalogs)
    }

    /// Notes for each catalog which others lead to it.
    fn link(&mut self) {
        let links: Vec<(ContentHash, ContentHash)> =
            self.known.iter().flat_map(|(hash, node)| node.edges().map(|edge| (edge.hash, *hash))).collect();
        for (child, parent) in links {
            if let Some(node) = self.known.get_mut(&child) {
                node.parents.insert(parent);
            }
        }
    }

    fn check_root(&self, root: &Root, findings: &mut Findings) {
        let name = ObjectName::new(root.hash, ObjectKind::Catalog);
        let facts = self.known.get(&root.hash).and_then(|node| node.facts.as_ref());
        let Some(facts) = facts else {
            if !root.is_head {
                let detail = format!("the root catalog of tag `{}` can't be read", root.tags.join("`, `"));
                findings.add(Finding::new(FindingKind::TagCatalog, detail).object(name).catalog(root.hash));
            }
            return;
        };
        let mut fault = |kind, detail: String| {
            findings.add(Finding::new(kind, detail).object(name).catalog(root.hash));
        };
        if !facts.prefix.is_empty() {
            let detail = format!("the root catalog is for {}", path::shown(&facts.prefix));
            fault(FindingKind::CatalogPrefix, detail);
        }
        if facts.revision != root.revision {
            let (kind, what) = match root.is_head {
                true => (FindingKind::CatalogRevision, "the manifest"),
                false => (FindingKind::TagRevision, "its tag"),
            };
            fault(
                kind,
                format!("the root catalog has revision {}, {what} says {}", facts.revision, root.revision),
            );
        }
        if let Some(size) = root.size.filter(|size| *size != facts.size) {
            let (kind, what) = match root.is_head {
                true => (FindingKind::CatalogSize, "the manifest"),
                false => (FindingKind::TagSize, "its tag"),
            };
            fault(kind, format!("the root catalog has {} bytes, {what} says {size}", facts.size));
        }
    }

    /// Compares each catalog with what its parents say of it.
    fn check_edges(&self, check: &Check<'_>, findings: &mut Findings) {
        let mut totals = HashMap::new();
        for (hash, node) in &self.known {
            let Some(facts) = &node.facts else { continue };
            for edge in &facts.nested {
                let child = self.known.get(&edge.hash).and_then(|child| child.facts.as_ref());
                if let Some(child) = child {
                    check_edge(*hash, edge, child, findings);
                }
            }
            if check.path.is_some() || facts.schema.version < 2.05 || facts.stored.faulty {
                continue;
            }
            if let Some(subtree) = self.subtree(facts, &mut totals, 0) {
                let revision = facts.schema.revision;
                for detail in counters::differences(&facts.stored.subtree, &subtree, revision) {
                    let detail = format!("counter subtree_{detail}");
                    let finding = Finding::new(FindingKind::CountersSubtree, detail);
                    findings.add(finding.path(&facts.prefix).catalog(*hash));
                }
            }
        }
    }

    /// Describes what the catalogs hold that this version doesn't understand, which is no fault.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut facts: Vec<&CatalogFacts> =
            self.known.values().filter_map(|node| node.facts.as_ref()).collect();
        facts.sort_by(|a, b| (&a.prefix, a.revision).cmp(&(&b.prefix, b.revision)));
        let lists: Vec<&(u64, Vec<u8>)> =
            facts.iter().filter_map(|facts| facts.not_understood.xattrs.as_ref()).collect();
        let mut notes = Vec::new();
        if let Some((_, first)) = lists.first() {
            notes.push(format!(
                "{} lists of extended attributes, the first of {}, are in a form that this version doesn't know; clients \
                 show none of their attributes, and publishing keeps the lists as they are",
                lists.iter().map(|(count, _)| count).sum::<u64>(),
                path::shown(first)
            ));
        }
        let unknown: BTreeSet<(String, &str)> = facts
            .iter()
            .flat_map(|facts| {
                let parts = facts.not_understood.parts.iter();
                parts.map(|part| (path::shown(&facts.prefix), part.as_str()))
            })
            .collect();
        notes.extend(unknown.iter().take(NOTES_MAX).map(|(prefix, part)| {
            format!("the catalog of {prefix} has what this version doesn't know: {part}")
        }));
        if let Some(more @ 1..) = unknown.len().checked_sub(NOTES_MAX) {
            notes.push(format!("{more} more such parts of catalogs"));
        }
        notes
    }

    /// Adds up the counters of all catalogs below one; none if one of them can't be read.
    fn subtree(
        &self,
        facts: &CatalogFacts,
        totals: &mut HashMap<ContentHash, Option<Counters>>,
        depth: usize,
    ) -> Option<Counters> {
        /// Maximum nesting of catalogs; deeper ones lead to themselves, because paths are shorter.
        const DEPTH_MAX: usize = 2048;
        let mut sum = Counters::default();
        for edge in &facts.nested {
            let total = match totals.get(&edge.hash) {
                Some(total) => *total,
                None => {
                    let child = self.known.get(&edge.hash).and_then(|child| child.facts.as_ref());
                    let below = child
                        .filter(|_| depth < DEPTH_MAX)
                        .and_then(|child| Some((child.own, self.subtree(child, totals, depth + 1)?)));
                    let total = below.map(|(mut own, below)| {
                        own.add(&below);
                        own
                    });
                    totals.insert(edge.hash, total);
                    total
                }
            };
            sum.add(&total?);
        }
        Some(sum)
    }

    /// Returns the names of all objects of the checked revisions.
    pub(super) fn objects(
        &self,
        check: &Check<'_>,
        files: &dyn StoredFiles,
        lists: &HashLists<'_>,
        (disk, scratch): (Arc<dyn Disk>, &Path),
    ) -> Result<SortedSet, RepositoryError> {
        let sorter = Mutex::new(Sorter::new(disk, scratch, check.buffer));
        let catalogs: Vec<&ContentHash> =
            self.known.iter().filter(|(_, node)| node.facts.is_some()).map(|(hash, _)| hash).collect();
        parallel::map(check.threads, &check.stop, &catalogs, |hash| {
            let objects = match &check.path {
                None => lists.get(hash),
                Some(_) => Ok(None),
            };
            let objects = match objects {
                Ok(Some(list)) => list.objects,
                // Some rows can't be read, or are not asked for.
                _ => readable_objects(check, files, hash),
            };
            let tagged = objects.into_iter().map(Tagged::shared);
            sorter.lock().extend(tagged)
        })?;
        sorter.into_inner().finish()
    }

    /// Returns the revisions that lead to catalogs, the first few by name.
    pub(super) fn revisions(&self, catalogs: &[ContentHash]) -> Vec<String> {
        let mut visited: HashSet<ContentHash> = catalogs.iter().copied().collect();
        let mut waiting = catalogs.to_vec();
        while let Some(hash) = waiting.pop() {
            for parent in self.known.get(&hash).iter().flat_map(|node| &node.parents) {
                if visited.insert(*parent) {
                    waiting.push(*parent);
                }
            }
        }
        let concerned: Vec<&Root> = self.roots.iter().filter(|root| visited.contains(&root.hash)).collect();
        let mut names: Vec<String> = concerned.iter().take(REVISIONS_NAMED).map(|root| root.name()).collect();
        if concerned.len() > REVISIONS_NAMED {
            names.push(format!("and {} more", concerned.len() - REVISIONS_NAMED));
        }
        names
    }
}

impl Node {
    fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.facts.iter().flat_map(|facts| &facts.nested)
    }
}

impl Root {
    fn name(&self) -> String {
        let head = if self.is_head { ", the head" } else { "" };
        match self.tags.is_empty() {
            true => format!("{}{head}", self.revision),
            false => format!("{} ({}{head})", self.revision, self.tags.join(", ")),
        }
    }
}

/// Returns the revisions to check, the head first.
fn roots(check: &Check<'_>, head: &Manifest, tags: &[Tag]) -> Result<Vec<Root>, CheckError> {
    let mut roots = vec![Root {
        hash: head.root_catalog,
        revision: head.revision,
        tags: Vec::new(),
        size: Some(head.root_catalog_size).filter(|size| *size > 0),
        is_head: true,
    }];
    let mut known: HashMap<ContentHash, usize> = HashMap::from([(head.root_catalog, 0)]);
    let wanted = |tag: &&Tag| check.tag.as_ref().is_none_or(|wanted| tag.name == *wanted);
    for tag in tags.iter().filter(wanted) {
        let number = *known.entry(tag.root_catalog).or_insert(roots.len());
        match roots.get_mut(number) {
            Some(root) => root.tags.push(tag.name.clone()),
            None => roots.push(Root {
                hash: tag.root_catalog,
                revision: tag.revision,
                tags: vec![tag.name.clone()],
                size: tag.size,
                is_head: false,
            }),
        }
    }
    if let Some(wanted) = &check.tag {
        roots.retain(|root| root.tags.contains(wanted));
        if roots.is_empty() {
            return Err(CheckError::NoTag(wanted.clone()));
        }
    }
    Ok(roots)
}

/// Reads and checks one catalog.
fn read(
    check: &Check<'_>,
    files: &dyn StoredFiles,
    lists: &HashLists<'_>,
    hash: ContentHash,
    at: &[u8],
) -> (Option<CatalogFacts>, Vec<Finding>) {
    let name = ObjectName::new(hash, ObjectKind::Catalog);
    let failed = |kind, error: &dyn std::error::Error| {
        let detail = error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        (None, vec![Finding::new(kind, detail).object(name).path(at).catalog(hash)])
    };
    let bytes = match read_object(files, &name, None, DATABASE_MAX, "the catalog") {
        Ok(bytes) => bytes,
        Err(error @ RepositoryError::Missing { .. }) => return failed(FindingKind::CatalogMissing, &error),
        Err(error @ RepositoryError::Compressed { .. }) => {
            return failed(FindingKind::CatalogUnreadable, &error);
        }
        Err(error) => return failed(FindingKind::CatalogDamaged, &error),
    };
    let catalog = match Catalog::open(bytes) {
        Ok(catalog) => catalog,
        Err(error) => return failed(FindingKind::CatalogUnreadable, &error),
    };
    if check.path.is_none()
        && !lists.has(&hash)
        && let Ok(list) = HashList::of(&catalog)
    {
        lists.keep(&hash, &list);
    }
    let (facts, mut findings) = CatalogCheck::new(&catalog, hash, at).run();
    findings.retain(|finding| finding.path.as_ref().is_none_or(|path| check.is_near(path.as_bytes())));
    (Some(facts), findings)
}

fn check_edge(parent: ContentHash, edge: &Edge, child: &CatalogFacts, findings: &mut Findings) {
    let mut fault = |kind, detail: String| {
        findings.add(Finding::new(kind, detail).path(&edge.path).catalog(parent));
    };
    if let Some(size) = edge.size.filter(|size| *size != child.size) {
        let detail = format!("its catalog has {} bytes, the parent says {size}", child.size);
        fault(FindingKind::CatalogSize, detail);
    }
    if child.prefix != edge.path {
        let detail = format!("the catalog mounted at it is for {}", path::shown(&child.prefix));
        fault(FindingKind::CatalogPrefix, detail);
    }
    if let (Some(transition), Some(root)) = (&edge.transition, &child.root) {
        let different = transition.differences(root);
        if !different.is_empty() {
            let detail = format!("its entries in parent and child differ: {}", different.join(", "));
            fault(FindingKind::RootDiffers, detail);
        }
    }
}

/// Returns the objects of the readable, requested rows.
fn readable_objects(check: &Check<'_>, files: &dyn StoredFiles, hash: &ContentHash) -> Vec<Record> {
    let name = ObjectName::new(*hash, ObjectKind::Catalog);
    let read = read_object(files, &name, None, DATABASE_MAX, "the catalog").ok();
    let Some(catalog) = read.and_then(|bytes| Catalog::open(bytes).ok()) else { return Vec::new() };
    let Ok(scan) = catalog.scan() else { return Vec::new() };
    let mut records = Vec::new();
    for row in scan.filter_map(Result::ok) {
        let is_wanted =
            || catalog.path_of(&row).is_ok_and(|path| path.is_some_and(|path| check.is_within(&path)));
        if check.path.is_none() || is_wanted() {
            records.extend(objects_of(&catalog, &row).iter().map(Record::of));
        }
    }
    records.sort_unstable();
    records.dedup();
    records
}

/// Returns the objects that an entry names.
pub(super) fn objects_of(catalog: &Catalog<LargeBytes>, row: &Row<'_>) -> Vec<ObjectName> {
    if row.flags().has(Flags::EXTERNAL) {
        return Vec::new();
    }
    let kind = match row.kind() {
        esker_format::catalog::EntryKind::Directory => ObjectKind::Micro,
        _ => ObjectKind::File,
    };
    let whole = row.hash().map(|hash| ObjectName::new(hash, kind));
    let chunks = match row.flags().has(Flags::CHUNKED) {
        true => catalog.chunks(row).unwrap_or_default(),
        false => Vec::new(),
    };
    let chunks = chunks.into_iter().map(|chunk| ObjectName::new(chunk.hash, ObjectKind::Chunk));
    whole.into_iter().chain(chunks).collect()
}
