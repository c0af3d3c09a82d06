//! Serves any tree as a Linux mount, through its own transport over `/dev/fuse`.
//!
//! `esker_kernel_mount::Mount` obtains a mounted connection (as root, through `fusermount3`, or from a process inside a user
//! namespace), [`Session`] serves a [`esker_vfs::Tree`] on it. The kernel caches everything and is notified of
//! changes; a repeated read sends no request at all.
#![deny(unsafe_code)]

mod abi;
mod caller_state;
mod channel;
mod connection;
mod counters;
mod data;
mod deadlines;
mod dispatch;
mod inflight;
mod kernel;
mod known_dentries;
mod listing;
mod nodes;
mod notify;
mod options;
mod process_files;
mod resume;
mod session;
mod shared_deadline;
mod shared_memory;
mod sys;
mod trace;
mod trusted;
mod wire;
mod worker_count;
mod workers;

pub use caller_state::{Reader, reader};
pub use counters::{Counters, LATENCY_CLASSES, OpcodeCounters};
pub use kernel::KernelMask;
pub use options::{Deadlines, MountHelper, SessionOptions, XattrGuard};
pub use session::{Session, SessionDescriptors, SessionError};
pub use shared_memory::VERSION as MEMORY_VERSION;
pub use trace::{Call, CallKind, PendingCall, Tracer};
