//! Runs commands in namespaces whose root directory is made of mounted trees.
//!
//! The kernel requires that `/dev/fuse` is opened by a process of the user namespace that owns the mount, and a user
//! namespace can only be entered by a process with one thread. So two processes share the work:
//!
//! ```text
//!  parent (serves the trees, many threads)            child (one thread)
//!     │ spawn ──────────────────────────────────────────►│ new user and mount namespace
//!     │                                                  │ a root that has the mount points
//!     │ ◄─────────────── descriptor of /dev/fuse ─────── │ open /dev/fuse, mount, once for each tree
//!     │ start a session on it                            │
//!     │ ─────────────── go ─────────────────────────────►│ becomes the command (exec)
//!     │ pass signals on, wait                            │
//!     │ ◄─────────────── exit code or signal ─────────── ┘
//! ```
//!
//! The namespace dies with its last process, and the mounts with it: nothing is left to clean up.
#![deny(unsafe_code)]

mod beside;
mod channel;
mod child;
pub mod container;
mod exec;
mod explain;
pub mod hooks;
pub mod launch;
mod namespaces;
mod parent;
mod processes;
mod root;
mod service_manager;
pub mod shared_mount;
mod signals;
mod subordinate;
mod sys;

pub use beside::run_beside;
pub use child::{ChildArguments, Point, Writable, become_command, namespaces_blocked};
pub use explain::{Blocked, Step, device_blocked};
pub use namespaces::{Identity, close_to_others, has_ids, join};
pub use parent::{Ending, Forwarding, Parent, RunError};
pub use processes::{Orphans, enter_process_namespace};
pub use service_manager::{Manager, inherited_listeners};
pub use signals::{Received, die_by, give_signals_back, take_signals, take_terminal};
pub use subordinate::missing_ids;
