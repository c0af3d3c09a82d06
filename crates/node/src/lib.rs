//! Runs the mounts of a node: daemons, cache writer, broker, control socket, telemetry and configuration.
//!
//! ```text
//!  esker mount ──► daemon ── control socket ◄── esker status, esker umount
//!                    │
//!                    ├── View ◄── Session ◄── kernel
//!                    └── cache: the writer itself, or a client of the process that is
//! ```
//!
//! The runtime directory of a user holds one registry entry, one control socket and one log for each mount,
//! and nothing once the last mount is gone.
#![deny(unsafe_code)]

mod attributes;
pub mod broker;
pub mod cache_admin;
pub mod cache_location;
pub mod cache_share;
pub mod check;
pub mod control;
pub mod daemon;
mod layered_mount;
pub mod memory;
pub mod mounted;
pub mod mounts;
pub mod parameters;
mod path_json;
mod peer;
pub mod push;
pub mod registry;
pub mod replay;
pub mod repository;
mod resolve;
pub mod revisions;
pub mod runtime;
pub mod status;
mod sys;
pub mod syslog;
pub mod talk;
pub mod telemetry;
pub mod watchdog;

/// Failed file operation: the operation and the file.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} {path}")]
pub struct FileError {
    /// Operation that failed.
    pub action: &'static str,
    /// File or directory of the operation.
    pub path: std::path::PathBuf,
    /// Cause.
    pub source: std::io::Error,
}

impl FileError {
    pub(crate) fn on(
        action: &'static str,
        path: impl Into<std::path::PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }
}
