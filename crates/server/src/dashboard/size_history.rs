//! Sizes of the newest revisions of a repository, read one root catalog after the other.

use esker_format::catalog::{Catalog, Properties, Statistics};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;

use super::budget::Budget;
use super::objects;
use crate::file::Folder;

/// Number of revisions whose sizes are kept.
const POINTS: usize = 24;

/// A revision and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) root: ContentHash,
    pub(crate) revision: u64,
    pub(crate) published: Option<UnixTime>,
    pub(crate) previous: Option<ContentHash>,
    /// Number of entries, those of nested catalogs included.
    pub(crate) entries: u64,
    /// Bytes of all files.
    pub(crate) bytes: u64,
}

impl Point {
    /// Returns the size that the counters of a root catalog state.
    pub(crate) fn of(root: ContentHash, properties: &Properties, statistics: &Statistics) -> Self {
        let (own, below) = (&statistics.own, &statistics.subtree);
        // The directory at the top of a nested catalog is counted there and in the catalog above.
        let twice = own.nested.saturating_add(below.nested);
        Self {
            root,
            revision: properties.revision,
            published: properties.last_modified,
            previous: properties.previous_revision.filter(|hash| !hash.is_null()),
            entries: own.entries().saturating_add(below.entries()).saturating_sub(twice),
            bytes: own.file_size.saturating_add(below.file_size),
        }
    }
}

/// Sizes of the head and of the revisions before it.
#[derive(Debug, Default)]
pub(crate) struct SizeHistory {
    /// Points that were read, newest first.
    points: Vec<Point>,
    /// The head that can't be read, and why.
    failed: Option<(ContentHash, String)>,
    /// The next older root catalog.
    next: Option<ContentHash>,
}

impl SizeHistory {
    /// Reads the root catalog of the head if it is a new one.
    pub(crate) fn read_head(&mut self, folder: &Folder, head: ContentHash, revision: u64, budget: &Budget) {
        let is_known = self.points.first().is_some_and(|point| point.root == head)
            || self.failed.as_ref().is_some_and(|(failed, _)| *failed == head);
        if is_known || budget.is_spent() {
            return;
        }
        match read(folder, head, budget) {
            Ok(point) => {
                self.failed = None;
                // The manifest has the last word about the number.
                let point = Point { revision, ..point };
                if point.previous.is_none() || self.points.first().map(|newest| newest.root) != point.previous
                {
                    self.points.clear();
                    self.next = point.previous;
                }
                self.points.insert(0, point);
                self.points.truncate(POINTS);
            }
            Err(reason) => {
                self.points.clear();
                self.next = None;
                self.failed = Some((head, reason));
            }
        }
    }

    /// Reads older root catalogs until the budget is spent.
    pub(crate) fn read_older(&mut self, folder: &Folder, budget: &Budget) {
        while let Some(next) = self.next.filter(|_| self.points.len() < POINTS && !budget.is_spent()) {
            // A collected revision ends the chain, and numbers fall, so that a chain that leads back to itself ends.
            let oldest = self.points.last().map_or(u64::MAX, |point| point.revision);
            let point = read(folder, next, budget).ok().filter(|point| point.revision < oldest);
            self.next = point.as_ref().and_then(|point| point.previous);
            self.points.extend(point);
        }
    }

    /// Returns the points for this head, oldest first; none if they are not read yet.
    pub(crate) fn points(&self, head: ContentHash) -> Option<Result<Vec<Point>, String>> {
        match &self.failed {
            Some((failed, reason)) if *failed == head => Some(Err(reason.clone())),
            _ => {
                let is_current = self.points.first().is_some_and(|point| point.root == head);
                is_current.then(|| Ok(self.points.iter().rev().cloned().collect()))
            }
        }
    }

    /// Returns true if older root catalogs are still to be read.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.next.is_some() && self.points.len() < POINTS
    }
}

fn read(folder: &Folder, root: ContentHash, budget: &Budget) -> Result<Point, String> {
    let failed = |reason: &dyn std::error::Error| format!("its root catalog can't be read: {reason}");
    let name = ObjectName::new(root, ObjectKind::Catalog);
    let bytes = objects::read(folder, &name, "the root catalog").map_err(|error| failed(&error))?;
    budget.spend(bytes.len() as u64);
    let catalog = Catalog::open(bytes).map_err(|error| failed(&error))?;
    let statistics = catalog.statistics().map_err(|error| failed(&error))?;
    Ok(Point::of(root, catalog.properties(), &statistics))
}
