//! Runs the mounts of a node: daemons, registry, control socket, layered mounts, replay, logs and telemetry.
//!
//! ```text
//!  esker mount ──► daemon ── control socket ◄── esker status, esker umount
//!                    │
//!                    ├── View ◄── Session ◄── kernel
//!                    └── SharedCache: the writer itself, or a client of the process that is
//! ```
//!
//! The runtime directory of a user holds one registry entry, one control socket and one log for each mount,
//! and nothing once the last mount is gone.
#![deny(unsafe_code)]

mod attributes;
pub mod control;
pub mod daemon;
pub mod helper_process;
mod layered_mount;
pub mod metrics;
mod mount_error;
pub mod mount_spec;
pub mod mounted;
pub mod mountpoint;
pub mod mounts;
pub mod packets;
pub mod push;
pub mod registry;
pub mod replay;
pub mod repository;
mod repository_status;
pub mod revisions;
pub mod runtime;
pub mod status;
pub mod supervised;
pub mod supervisor;
mod sys;
pub mod syslog;
mod takeover;
pub mod talk;
mod talk_socket;
pub mod telemetry;
pub mod terminal;
pub mod trace;
mod usage;
