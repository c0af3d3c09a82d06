//! Status of a cache.

use serde::{Deserialize, Serialize};

/// The state of a cache. Serialized names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Quota in bytes.
    pub quota: u64,
    /// Limit in bytes up to which objects in use may exceed the quota.
    pub hard_limit: u64,
    /// Bytes in use by objects, including reservations of writes in progress.
    #[serde(rename = "bytes")]
    pub used: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of pinned objects, which are never evicted.
    #[serde(rename = "pinned_bytes")]
    pub pinned: u64,
    /// Number of pinned objects that are here.
    pub pinned_objects: u64,
    /// Number of open descriptors.
    pub descriptors: u64,
    /// Maximum number of descriptors that were ever open.
    pub descriptors_peak: u64,
    /// Limit of open descriptors.
    pub descriptors_limit: u64,
    /// Number of evicted objects.
    pub evicted: u64,
    /// Objects spared by eviction because they were in use.
    pub spared: u64,
    /// Number of evictions that ended above the quota because all remaining objects were in use.
    pub over_quota: u64,
    /// Objects served uncached, because they had no room or the disk failed.
    pub unkept: u64,
    /// Number of failed local file operations.
    pub disk_errors: u64,
    /// Time in seconds since 1970 and text of the last of them.
    pub disk_failure: Option<(u64, String)>,
    /// Number of entries found damaged on disk and dropped.
    pub damaged: u64,
    /// Number of entries that this writer has not compared with their digests yet.
    pub unchecked: u64,
    /// Number of entries that evictions, checks and listings visited.
    pub walked: u64,
    /// True if the last writer did not shut down cleanly.
    pub opened_unclean: bool,
    /// Number of removed unfinished files of the last writer.
    pub leftovers: u64,
    /// Counters of the lower tiers.
    pub lower: LowerStatus,
}

/// Quota and use of a cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Quota in bytes.
    pub quota: u64,
    /// Bytes in use by objects.
    pub used: u64,
}

/// Counters of requests to the lower tiers. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LowerStatus {
    /// Number of objects found in the lower cache.
    pub found: u64,
    /// Plain size of these objects in bytes.
    pub found_bytes: u64,
    /// Number of files that were unreadable or failed verification.
    pub refused: u64,
    /// Number of requests that were withdrawn because they made no progress.
    pub late: u64,
    /// Number of objects written for other nodes.
    pub given: u64,
}
