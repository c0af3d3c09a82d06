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
#![allow(unexpected_cfgs, reason = "a flag of the crate getrandom, which only static builds set")]

mod calls;
mod exchange;
mod filter;
mod paths;
mod policy;
mod role;
mod table;

// A static binary has no symbols that could be looked up at run time. The crate `getrandom` would then take random numbers
// from a device, after a look at another one, and panic in a process that may open neither.
#[cfg(all(target_feature = "crt-static", target_env = "gnu", not(getrandom_backend = "linux_getrandom")))]
compile_error!(
    "a static build needs the flag --cfg getrandom_backend=\"linux_getrandom\", as scripts/release.sh has it"
);

pub use policy::{Confinement, Policy, Prepared, probe};
pub use role::Role;
pub use table::table;
