//! Revisions of a repository with their changes, newest first.

use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_repository::RepositoryError;

use super::comparison::Comparison;
use super::objects::Objects;
use super::size_history::Point;
use super::tags::{self, TagList};

/// Number of revisions on a page.
const LISTED: usize = 20;
/// Number of root catalogs that are read to find a revision by its number.
const WALKED: usize = 1000;
/// Minimum length of a hash as text.
const HASH_LEN: usize = 40;

/// Revisions of a repository.
#[derive(Debug, Default)]
pub(crate) struct RevisionList {
    pub(crate) rows: Vec<RevisionRow>,
    /// Root catalog of the next older revision.
    pub(crate) older: Option<ContentHash>,
    /// Root catalog that is not there any more, where the list ends.
    pub(crate) missing: Option<ContentHash>,
    /// True if the budget ended the list.
    pub(crate) is_cut: bool,
}

/// A revision.
#[derive(Debug)]
pub(crate) struct RevisionRow {
    pub(crate) point: Point,
    pub(crate) tags: Vec<String>,
    /// Difference from the revision before; none if there is none or it was not compared.
    pub(crate) changes: Option<Arc<Comparison>>,
}

/// Makes the comparison of two root catalogs.
type Compare<'c> = dyn FnMut(ContentHash, ContentHash) -> Result<Arc<Comparison>, RepositoryError> + 'c;

/// Lists revisions from a root catalog backwards.
pub(crate) fn list(
    objects: &Objects<'_>,
    from: ContentHash,
    tags: &TagList,
    compare: &mut Compare<'_>,
) -> Result<RevisionList, RepositoryError> {
    let tags = tags.by_root();
    let mut list = RevisionList::default();
    let mut next = Some(from);
    let mut points: Vec<Point> = Vec::new();
    while let Some(root) = next.filter(|_| points.len() < LISTED) {
        match point(objects, root) {
            // Numbers fall, so that a chain that leads back to itself ends.
            Ok(found) if points.last().is_some_and(|last| found.revision >= last.revision) => next = None,
            Ok(found) => {
                next = found.previous;
                points.push(found);
            }
            Err(RepositoryError::Missing { .. }) if !points.is_empty() => {
                list.missing = Some(root);
                next = None;
            }
            Err(RepositoryError::Interrupted) if !points.is_empty() => {
                list.is_cut = true;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    list.older = next;
    for found in points {
        let changes = found.previous.and_then(|previous| compare(previous, found.root).ok());
        let names = tags.get(&found.root).into_iter().flatten().map(|tag| tag.name.clone());
        list.rows.push(RevisionRow { tags: names.collect(), changes, point: found });
    }
    Ok(list)
}

fn point(objects: &Objects<'_>, root: ContentHash) -> Result<Point, RepositoryError> {
    let opened = objects.catalog(b"", root)?;
    let catalog = &opened.catalog;
    if !catalog.properties().root_prefix.is_empty() {
        let reason = "it is the hash of a nested catalog, and not of a root catalog".to_owned();
        return Err(RepositoryError::NoRevision { name: root.to_string(), reason });
    }
    let statistics = catalog.statistics().map_err(opened.failed())?;
    Ok(Point::of(root, catalog.properties(), &statistics))
}

/// Finds the root catalog of a revision by tag, number, or hash.
pub(crate) fn resolve(
    objects: &Objects<'_>,
    manifest: &Manifest,
    name: &str,
) -> Result<ContentHash, RepositoryError> {
    if name.is_empty() {
        return Ok(manifest.root_catalog);
    }
    // A hash may consist of decimal digits only, but is longer than any number.
    if let Ok(hash) = ContentHash::parse(name) {
        return Ok(hash);
    }
    let tags = tags::list(objects, manifest)?.tags;
    if let Some(tag) = tags.iter().find(|tag| tag.name == name) {
        return Ok(tag.root_catalog);
    }
    let unknown =
        |reason: &str| RepositoryError::NoRevision { name: name.to_owned(), reason: reason.to_owned() };
    let Some(number) = name.parse::<u64>().ok().filter(|_| name.len() < HASH_LEN) else {
        return Err(unknown("no tag has this name, and it is neither the number nor the hash of a revision"));
    };
    let nearest = tags.iter().filter(|tag| tag.revision >= number).min_by_key(|tag| tag.revision);
    let mut next = Some(nearest.map_or(manifest.root_catalog, |tag| tag.root_catalog));
    for _ in 0..WALKED {
        let Some(root) = next else { break };
        let found = if root == manifest.root_catalog {
            Point { revision: manifest.revision, ..point(objects, root)? }
        } else {
            point(objects, root)?
        };
        match found.revision.cmp(&number) {
            std::cmp::Ordering::Equal => return Ok(root),
            std::cmp::Ordering::Less => break,
            std::cmp::Ordering::Greater => next = found.previous,
        }
    }
    Err(unknown("no tag names it, and the revisions after it don't lead to it"))
}
