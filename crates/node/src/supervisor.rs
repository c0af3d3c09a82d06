//! Keeps a mount while its daemon is replaced: after a crash, or for another version of the program.
//!
//! ```text
//!  esker mount ──► supervisor ──► daemon        the supervisor is the parent of the daemon, and has no threads
//!                      ▲   ▲         │
//!  esker upgrade ──────┘   └─────────┘ descriptors: FUSE, memory files, registry lock, sockets
//! ```
//!
//! The daemon hands copies of all descriptors that a successor needs to the supervisor, so the kernel sees no end of the
//! connection when the daemon dies. The supervisor starts a new daemon and hands them on, with the resolved options of the
//! mount ([`crate::mount_spec`]); its arguments are those of the mount, for programs that don't know these options yet. It does
//! nothing else: it opens no file, uses no network and reads no data.

mod link;
mod messages;
mod options;
mod origin;
mod process;
mod program;
mod upgrade;

pub use link::{Inherited, Supervision};
pub(crate) use options::sealed;
pub use process::{DaemonCommand, run};
pub(crate) use process::{REGISTRATION, SPEC, UPGRADES};
pub use upgrade::{Replacement, UpgradeError, options, request};
