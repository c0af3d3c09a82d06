//! Report of a publish, as text and as JSON.

use std::collections::BTreeSet;
use std::error::Error as _;

use esker_repository::RepositoryError;
use serde::Serialize;

use crate::choices::Resolved;
use crate::limits::OverLimits;
use crate::over_limit::OverLimit;
use crate::path_changes::PathChange;
use crate::plan::Differences;
use crate::remarks::{self, Remark, Remarks};

/// Report of a finished or planned publish.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Number of the newest revision of the branch, which readers see if it is the default branch.
    pub revision: u64,
    /// Hash of the root catalog of that revision.
    pub root: String,
    /// True if a new revision was published.
    pub published: bool,
    /// Tag of that revision, whether it is new or not.
    pub tag: Option<String>,
    /// Branch of that revision; none for the default one, whose newest revision readers see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Differences from the previous revision.
    pub differences: Differences,
    /// In a dry run, each path that would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<PathChange>>,
    /// Number of files read.
    pub files_read: u64,
    /// Bytes read from files.
    pub bytes_read: u64,
    /// Number of new objects.
    pub objects_stored: u64,
    /// Stored size of new objects in bytes.
    pub object_bytes_stored: u64,
    /// Files and chunks whose content was stored already.
    pub objects_present: u64,
    /// Plain size of content that was stored already, in bytes.
    pub object_bytes_present: u64,
    /// Counts of bundles from profiles.
    pub bundles: BundleCounts,
    /// Number of catalogs written.
    pub catalogs_written: u64,
    /// Stored size of catalogs written, in bytes.
    pub catalog_bytes: u64,
    /// Files and catalogs of the revision that exceed limits; the first ones, if there are many.
    pub over_limits: Vec<OverLimit>,
    /// Entries that readers see otherwise than their source shows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Remark>,
    /// Conflicts with a later revision that the publisher has decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resolved: Vec<Resolved>,
    /// Problems that did not affect the revision.
    pub warnings: Vec<String>,
    /// Seconds for each phase.
    pub seconds: Seconds,
}

impl Report {
    /// Adds files and catalogs that exceed limits, and a warning for each.
    pub(crate) fn add_over_limits(&mut self, found: OverLimits) {
        self.warnings.extend(found.warnings());
        self.over_limits = found.named;
    }

    /// Adds remarks, and a warning for each kind.
    pub(crate) fn add_remarks(&mut self, remarks: Remarks) {
        self.remarks = remarks.finish();
        self.warnings.extend(remarks::warnings(&self.remarks, &mut self.differences));
    }

    /// Adds the result of writing bundles.
    pub(crate) fn add_bundles(&mut self, added: &mut AddedBundles) {
        self.bundles = added.counts;
        self.warnings.append(&mut added.warnings);
    }

    /// Records the failure to write a file that only saves time for later publishes, as a warning. The revision
    /// is public by then, so a failure is none of the publish.
    pub(crate) fn remembered(&mut self, outcome: Result<(), RepositoryError>) {
        if let Err(error) = outcome {
            let cause = error.source().map_or_else(String::new, |source| format!(": {source}"));
            self.warnings.push(format!("the next publish will take longer: {error}{cause}"));
        }
    }
}

/// Counts of bundles from profiles in a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BundleCounts {
    /// Number of bundles.
    pub bundles: u64,
    /// Number of files in the bundles.
    pub files: u64,
    /// Number of files that profiles name and the revision lacks.
    pub files_missing: u64,
}

/// Result of adding the bundles to a revision.
#[derive(Debug, Default)]
pub(crate) struct AddedBundles {
    pub(crate) counts: BundleCounts,
    pub(crate) warnings: Vec<String>,
    /// Triggers that have a bundle from a profile now.
    pub(crate) triggers: BTreeSet<String>,
    /// Triggers that have such a bundle now or may have had one.
    pub(crate) all_triggers: BTreeSet<String>,
}

/// Seconds for each phase of a publish.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Seconds {
    /// Seconds for reading and comparing the source.
    pub scan: f64,
    /// Reading, compressing and storing files.
    pub store: f64,
    /// Seconds for writing catalogs.
    pub catalogs: f64,
    /// Seconds for durable writes and signing.
    pub commit: f64,
    /// Part of it in which no other publisher could commit.
    pub locked: f64,
    /// Seconds in total.
    pub total: f64,
}
