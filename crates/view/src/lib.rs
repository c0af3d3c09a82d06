//! Presents one revision of a repository as a tree, and follows new revisions.
#![forbid(unsafe_code)]

mod catalogs;
mod content;
mod core;
mod difference;
mod directories;
mod evict;
mod failure;
mod follow;
mod head;
mod held;
mod hint;
mod identity;
mod listing;
mod lookup;
mod magic;
mod mounted;
mod objects;
mod observe;
mod options;
mod order;
mod paths;
mod payload;
mod prefetch;
mod published;
mod requester;
mod revision;
mod show;
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
pub use prefetch::{Arrival, Foreseen, Foresight};
pub use published::Published;
pub use status::{FAILURES_MAX, Failure, FailureCause, Offline, ViewCounters, ViewStatus, chain};
pub use view::View;

/// Most catalogs mounted at once, unless the options say otherwise. Each is a mapping of its file, Linux allows
/// a process 65,530 mappings, and those unmounted last take theirs a little longer.
pub const ATTACHED_MAX: usize = 4096;
