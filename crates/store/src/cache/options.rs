//! Options of a cache.

use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, RealDisk};
use super::lower::Lower;

/// Options of a cache.
#[derive(Clone)]
pub struct CacheOptions {
    /// Disk of the cache.
    pub disk: Arc<dyn Disk>,
    /// Quota in bytes on disk, counted in blocks of the file system.
    pub quota: u64,
    /// Limit in bytes up to which objects in use may exceed the quota. Objects beyond it are not cached.
    pub hard_limit: u64,
    /// Maximum size in bytes of files that are served uncached because the hard limit is reached.
    pub unkept_limit: u64,
    /// Maximum number of open objects; by default from the process's limit on open files.
    pub descriptors: Option<usize>,
    /// Pause after an eviction that found everything in use.
    pub patience: Duration,
    /// Lower tiers in the order of use.
    pub lower: Vec<Lower>,
    /// True if file content is served uncached, and only other objects are cached.
    pub streaming: bool,
}

impl CacheOptions {
    /// Returns the options for a quota in bytes, with a quarter more as hard limit and another quarter for uncached
    /// files.
    pub fn with_quota(quota: u64) -> Self {
        Self {
            disk: Arc::new(RealDisk::PRIVATE),
            quota,
            hard_limit: quota.saturating_add(quota / 4),
            unkept_limit: (quota / 4).max(64 << 20),
            descriptors: None,
            patience: Duration::from_secs(2),
            lower: Vec::new(),
            streaming: false,
        }
    }
}
