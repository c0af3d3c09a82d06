//! Report of a publish, as text and as JSON.

use std::collections::BTreeSet;
use std::error::Error as _;

use serde::Serialize;

use crate::error::AdminError;
use crate::path_changes::PathChange;
use crate::plan::Differences;

/// Report of a finished or planned publish.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The revision that readers see now.
    pub revision: u64,
    /// Its root catalog.
    pub root: String,
    /// Whether there is a new revision; none is made if nothing differs.
    pub published: bool,
    /// The tag that the revision got, be it new or not.
    pub tag: Option<String>,
    /// Differences from the previous revision.
    pub differences: Differences,
    /// In a dry run, each path that would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<PathChange>>,
    /// Files that had to be read.
    pub files_read: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Objects that were stored.
    pub objects_stored: u64,
    /// Their bytes, compressed.
    pub object_bytes_stored: u64,
    /// Files and chunks whose content was stored already.
    pub objects_present: u64,
    /// Their plain bytes.
    pub object_bytes_present: u64,
    /// Bundles that come from profiles.
    pub bundles: BundleCounts,
    /// Catalogs that were written.
    pub catalogs_written: u64,
    /// Their bytes, compressed.
    pub catalog_bytes: u64,
    /// Problems that did not affect the revision.
    pub warnings: Vec<String>,
    /// Seconds for each phase.
    pub seconds: Seconds,
}

impl Report {
    /// Adds the result of writing bundles.
    pub(crate) fn add_bundles(&mut self, added: &mut AddedBundles) {
        self.bundles = added.counts;
        self.warnings.append(&mut added.warnings);
    }

    /// Notes whether something was written that only saves time, next time. The revision is public by then, so a
    /// failure is none of the publish.
    pub(crate) fn remembered(&mut self, outcome: Result<(), AdminError>) {
        if let Err(error) = outcome {
            let cause = error.source().map_or_else(String::new, |source| format!(": {source}"));
            self.warnings.push(format!("the next publish will take longer: {error}{cause}"));
        }
    }
}

/// The bundles of a revision that come from profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BundleCounts {
    /// How many there are.
    pub bundles: u64,
    /// How many files they list.
    pub files: u64,
    /// How many files of profiles are not in the revision.
    pub files_missing: u64,
}

/// Result of adding the bundles to a revision.
#[derive(Debug, Default)]
pub(crate) struct AddedBundles {
    pub(crate) counts: BundleCounts,
    pub(crate) warnings: Vec<String>,
    /// The triggers that have a bundle of ours now.
    pub(crate) triggers: BTreeSet<String>,
    /// The triggers that may have had one before, too.
    pub(crate) all_triggers: BTreeSet<String>,
}

/// Seconds for each phase of a publish.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Seconds {
    /// Walking over the source and comparing.
    pub scan: f64,
    /// Reading, compressing and storing files.
    pub store: f64,
    /// Writing catalogs.
    pub catalogs: f64,
    /// Making everything durable, and signing.
    pub commit: f64,
    /// Part of it in which no other publisher could commit.
    pub locked: f64,
    /// All of it.
    pub total: f64,
}
