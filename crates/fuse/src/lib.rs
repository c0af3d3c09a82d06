//! Any tree as a Linux mount: our own transport over `/dev/fuse`.
//!
//! [`Mount`] obtains a mounted connection (as root, through `fusermount3`, or from a process inside a user
//! namespace), [`Session`] serves a [`esker_vfs::Tree`] on it. The kernel is asked to cache everything and is
//! told what changed; a program that reads what it read before costs no message at all.

mod counters;
mod kernel;
pub mod mount;
mod options;
mod session;

pub use counters::{Counters, OpcodeCounters};
pub use kernel::KernelMask;
pub use mount::{Mount, MountError, MountOptions, Unmount};
pub use options::{Deadlines, Log, SessionOptions, Severity};
pub use session::{Session, SessionError};
