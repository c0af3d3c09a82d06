//! Opens repositories, and mounts them for a command.

pub(crate) mod changes;
pub(crate) mod config_repository;
pub(crate) mod failures;
pub(crate) mod first_reads;
pub(crate) mod held;
pub(crate) mod mount_helper;
pub(crate) mod open;
pub(crate) mod recorder;
pub(crate) mod run_mounted;
pub(crate) mod supervised;
