//! Caches verified objects on disk.
//!
//! ```text
//!   <cache>/lock             flock of the one writer; holds its process number
//!   <cache>/index            list of all objects; exists only after a clean shutdown   (cache/index.rs)
//!   <cache>/objects/ab/cd…   one file an object: plain bytes, then a trailer           (cache/trailer.rs)
//!   <cache>/txn/17           being written where the file system has no unnamed files; removed at the next start
//!   <cache>/heads/….head     last accepted heads, never evicted                        (head/saved.rs)
//!   <cache>/pins             objects that are never evicted                            (cache/pins.rs)
//!   <cache>/trails/…         sequences of reads by programs, kept by views
//! ```
//!
//! Crash rule: an object is written to an unnamed file, or in `txn/`, and gets its name when complete, without a sync; so
//! after a crash a file may have any content under any of the names. Index and heads are made durable by `disk::persist`,
//! the only function that does so.
//!
//! Check rule: disks rot, too. The writer compares each object that it didn't write itself with the digest in its trailer
//! when it first opens it, and again when it opens it a day after the last comparison (`cache/open.rs`).
//!
//! Locking rule: one process holds `lock` and writes. Others get read-only descriptors from it. Files never change once
//! they have their name, they are only removed, so a reader needs no lock. Lock order inside the process: the list of open
//! entries, then an entry's state, then a shard of the table or the account of bytes; none is held while a callback runs.

pub(crate) mod admin;
pub(crate) mod block_cache;
mod descriptors;
pub(crate) mod disk;
mod disk_failures;
mod drafts;
mod entry;
pub(crate) mod evict;
mod index;
mod layout;
pub(crate) mod lower;
mod occupation;
mod open;
mod options;
mod passthrough;
pub(crate) mod pins;
mod space;
mod start;
mod state;
pub(crate) mod status;
mod trailer;
mod uncached;
pub(crate) mod verify_plain;
mod write;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::engine::Engine;
use crate::error::StoreError;
use crate::objects::object_store::Holder;
use crate::objects::single_flight::SingleFlight;
use lower::LowerTiers;
use state::LowerCache;
use status::CacheStatus;

pub(crate) use drafts::is_draft;
pub use entry::DESCRIPTOR_LIFETIME;
pub(crate) use entry::{Entry, EntryUse, Pin};
pub(crate) use layout::Layout;
pub(crate) use open::OpenOutcome;
pub use options::CacheOptions;
pub(crate) use passthrough::{FileRoom, SealedMemory};
pub(crate) use space::Reservation;
pub(crate) use start::{ours, private};
pub(crate) use state::CacheState;
pub(crate) use uncached::UncachedShare;
pub(crate) use write::Writing;

/// Open cache folder of which this process is the writer. Cheap to clone. Dropping the last clone shuts it down
/// cleanly, perhaps a moment later on a thread that finishes a request; [`Cache::close`] shuts it down at once.
#[derive(Clone)]
pub struct Cache {
    pub(crate) state: Arc<CacheState>,
    /// Fetches in progress. One per cache, so that requests of several repositories for one object meet.
    pub(crate) single_flight: Arc<SingleFlight>,
    pub(crate) lower: Option<Arc<LowerTiers>>,
}

impl Cache {
    /// Opens a cache folder, making it if need be, and becomes its writer.
    pub fn open(engine: &Engine, folder: &Path, options: CacheOptions) -> Result<Self, StoreError> {
        let failed = |cause| StoreError::new("the cache", cause);
        let lower = LowerTiers::open(&options.lower).map_err(failed)?;
        let tiers = lower.clone().map(|lower| lower as Arc<dyn LowerCache>);
        let state = CacheState::open(engine, folder, options, tiers).map_err(failed)?;
        Ok(Self { state, single_flight: Arc::default(), lower })
    }

    /// Returns the cache folder.
    pub fn folder(&self) -> &Path {
        &self.state.layout.root
    }

    /// Returns the folder of saved heads.
    pub fn heads(&self) -> PathBuf {
        self.state.layout.heads.clone()
    }

    /// Adds a holder, which is asked before objects are evicted. An object is held if any holder holds it; dropped
    /// holders are forgotten.
    pub fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.state.add_holder(holder);
    }

    /// Waits until no eviction is in progress or due.
    pub fn settle(&self) {
        self.state.space.settle();
    }

    /// Shuts the cache down: makes everything durable and writes the index. Open handles stay readable; later objects
    /// are not cached.
    pub fn close(&self) -> Result<(), StoreError> {
        self.state.close().map_err(|cause| StoreError::new("the cache", cause))
    }

    /// Returns counters and states.
    pub fn status(&self) -> CacheStatus {
        self.state.status()
    }

    /// Returns whether the folder was removed or replaced since it was opened. Blocks on the disk.
    pub fn is_lost(&self) -> bool {
        self.state.is_lost()
    }
}
