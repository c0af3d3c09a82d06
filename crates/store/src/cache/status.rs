//! Status of a cache.

/// The state of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// The byte quota.
    pub quota: u64,
    /// Up to where it may be exceeded by objects in use.
    pub hard_limit: u64,
    /// Bytes that objects take, including reservations of writes in progress.
    pub used: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of them that are pinned, and therefore never evicted.
    pub pinned: u64,
    /// Number of pinned objects that are here.
    pub pinned_objects: u64,
    /// Descriptors open now.
    pub descriptors: u64,
    /// The most that were ever open at once.
    pub descriptors_peak: u64,
    /// The most that may be open.
    pub descriptors_limit: u64,
    /// Objects evicted.
    pub evicted: u64,
    /// Objects spared by eviction because they were in use.
    pub spared: u64,
    /// Evictions that ended above the quota because all remaining objects were in use.
    pub over_quota: u64,
    /// Objects served uncached, because they had no room or the disk failed.
    pub unkept: u64,
    /// Local file operations that failed.
    pub disk_errors: u64,
    /// Time in seconds since 1970 and text of the last of them.
    pub disk_failure: Option<(u64, String)>,
    /// Entries that were found damaged on disk and dropped.
    pub damaged: u64,
    /// Entries that will be checked before their first use.
    pub unchecked: u64,
    /// Whether the last writer did not shut down cleanly.
    pub opened_unclean: bool,
    /// Unfinished files of that writer that were removed.
    pub leftovers: u64,
    /// Counters of the lower tiers.
    pub lower: LowerStatus,
}

/// Quota and use of a cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The quota.
    pub quota: u64,
    /// Bytes that objects take.
    pub used: u64,
}

/// Counters of requests to the lower tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerStatus {
    /// Objects found there.
    pub found: u64,
    /// Plain bytes of them.
    pub found_bytes: u64,
    /// Files that were there but could not be believed or read.
    pub refused: u64,
    /// Requests that were withdrawn because they made no progress.
    pub late: u64,
    /// Objects put there for others.
    pub given: u64,
}
