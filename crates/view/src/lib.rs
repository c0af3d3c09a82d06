//! One revision of a repository as a tree, following new revisions.
//!
//! The face will be:
//!
//! ```text
//! View::open(store: Arc<dyn ObjectStore>, head: HeadKeeper, options: ViewOptions)
//!     -> Result<Arc<View>, OpenError>          blocks until the root catalog is there
//! impl esker_vfs::Tree for View
//! View::status(&self) -> ViewStatus
//! View::refresh(&self) -> Result<Refreshed, TreeError>   look for a new head now, wait for the outcome
//! View::find(&self, path) / list / read_at / …  by path, without a mount
//! View::close(&self)                            stops following
//! ```
#![forbid(unsafe_code)]

mod options;
mod order;
mod status;

pub use options::{Ownership, Pin, ViewOptions};
pub use status::{FAILURES_MAX, Failure, Offline, ViewCounters, ViewStatus};

/// Most catalogs attached at once, unless the options say otherwise.
pub const ATTACHED_MAX: usize = 4096;
