//! Comparison of two revisions, bounded in paths, bytes and time.

use esker_format::hash::ContentHash;
use esker_repository::{RepositoryError, TreeDiff};

use super::changed_paths::{ChangedPath, Counts};
use super::objects::Objects;

/// Number of changed paths that are listed.
const LISTED: usize = 2000;
/// Number of changed paths after which counting ends.
const COUNTED: u64 = 200_000;

/// The differences between two revisions.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) counts: Counts,
    /// The first paths, sorted.
    pub(crate) paths: Vec<ChangedPath>,
    pub(crate) end: Ended,
}

/// Reason for the end of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything is compared.
    Whole,
    /// There are more differences than are counted.
    Count,
    /// The budget of the request is spent.
    Budget,
    /// An object of one revision is not there any more.
    Missing(String),
}

impl Comparison {
    /// Compares two revisions.
    pub(crate) fn read(
        objects: &Objects<'_>,
        old: ContentHash,
        new: ContentHash,
    ) -> Result<Self, RepositoryError> {
        let (mut counts, mut paths) = (Counts::default(), Vec::new());
        let diff = TreeDiff { objects, old, new, within: Vec::new(), ignore_times: false };
        let compared = diff.run(&mut |found| {
            let changed = ChangedPath::of(found);
            counts.add(&changed);
            if paths.len() < LISTED {
                paths.push(changed);
            }
            let is_enough = counts.paths() >= COUNTED || objects.budget().is_spent();
            if is_enough { Err(RepositoryError::Interrupted) } else { Ok(()) }
        });
        let end = match compared {
            Ok(_) => Ended::Whole,
            Err(RepositoryError::Interrupted) if counts.paths() >= COUNTED => Ended::Count,
            Err(RepositoryError::Interrupted) => Ended::Budget,
            Err(RepositoryError::Missing { object, .. }) => Ended::Missing(object),
            Err(error) => return Err(error),
        };
        Ok(Self { counts, paths, end })
    }

    /// Returns true if all differences are counted.
    pub(crate) fn is_whole(&self) -> bool {
        self.end == Ended::Whole
    }

    /// Returns true if another comparison would have the same result.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.end, Ended::Whole | Ended::Count)
    }
}
