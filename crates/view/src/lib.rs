//! Presents one revision of a repository as a tree, and follows new revisions.
#![forbid(unsafe_code)]

mod attributes;
mod catalogs;
mod content;
mod core;
mod diff;
mod dir_order;
mod directories;
mod evict;
mod failure;
mod follow;
mod head;
mod identity;
mod listing;
mod lookup;
mod magic;
mod memory;
mod nested;
mod objects;
mod observe;
mod open_files;
mod options;
mod paths;
mod payload;
mod prefetch;
mod published;
mod records;
mod requester;
mod revision;
mod revision_hint;
mod start;
mod status;
mod tree;
mod view;
mod xattrs;

pub use follow::Refreshed;
pub use magic::{About, Protected, Visibility, is_magic};
pub use observe::Observer;
pub use options::{IdMap, Ownership, Pin, ViewOptions};
pub use paths::LastLink;
pub use prefetch::{Arrival, PrefetchEvent, PrefetchListener};
pub use published::Published;
pub use status::{FAILURES_MAX, Failure, FailureCause, Offline, ViewCounters, ViewStatus, chain};
pub use view::View;

/// Maximum number of mounted catalogs, unless the options set another.
///
/// Each is a mapping of its file, Linux allows a process 65,530 mappings, and recently unmounted catalogs keep theirs
/// for a while.
pub const ATTACHED_MAX: usize = 4096;
