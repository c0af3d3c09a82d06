//! Restricts a daemon once it has opened what it needs: its system calls with a seccomp filter, its paths with Landlock.
//!
//! ```text
//!   Role ──► groups of system calls ──► filter of this thread and those that it starts
//!   Policy (role and paths) ──► opened paths ──► Landlock rules ──► same threads
//! ```
//!
//! Restrictions belong to a thread, and a thread inherits those of its starter. So a daemon calls
//! [`Prepared::enforce`] before it starts threads. A refused call returns `EPERM`; `clone3` returns `ENOSYS`, whose
//! callers then use `clone`, whose flags a filter can check.
#![deny(unsafe_code)]

mod calls;
mod filter;
mod paths;
mod policy;
mod role;
mod table;

pub use policy::{Confinement, Policy, Prepared, probe};
pub use role::Role;
pub use table::table;
