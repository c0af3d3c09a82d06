//! Serves any tree as a Linux mount, through its own transport over `/dev/fuse`.
//!
//! [`Mount`] obtains a mounted connection (as root, through `fusermount3`, or from a process inside a user
//! namespace), [`Session`] serves a [`esker_vfs::Tree`] on it. The kernel is asked to cache everything and is
//! told what changed; a program that reads what it read before costs no message at all.
#![deny(unsafe_code)]

mod abi;
mod arena;
mod attendance;
mod behind;
mod caller;
mod channel;
mod connection;
mod counters;
mod crew;
mod data;
mod errands;
mod kernel;
mod listing;
pub mod mount;
mod names;
mod nodes;
mod notify;
mod options;
mod patience;
mod serve;
mod session;
mod sys;
mod trusted;
mod waiting;
mod wire;

pub use counters::{Counters, OpcodeCounters};
pub use kernel::KernelMask;
pub use mount::{Mount, MountError, MountOptions, Unmount};
pub use options::{Deadlines, Log, SessionOptions, Severity, XattrGuard};
pub use session::{Session, SessionError};
