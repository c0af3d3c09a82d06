//! Does for a confined mount daemon what its restrictions forbid: operations on its own mount.
//!
//! ```text
//!  daemon, confined ── an operation, without arguments that lead anywhere ──► helper, which knows the mount's options
//!                   ◄── an answer, and a descriptor ──                         since its start
//! ```
//!
//! The daemon starts its helper before it reads a byte of a server. The helper reads nothing but [`request::Request`]s, each
//! with the connection for its answer, and works on the one mount whose options it was given. It ends with its daemon.

mod client;
mod operations;
mod process;
mod request;

pub use client::Helper;
pub use process::run;
