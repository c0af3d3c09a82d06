//! Resolves the settings of a command: the environment, configuration files above it, arguments above both.

pub(crate) mod args;
pub(crate) mod cache_folder;
pub(crate) mod configuration;
mod folders;
pub(crate) mod resolve;
pub(crate) mod tiers;

pub(crate) use folders::{BROKER_SOCKET, MEMORY, Settings, default_quota, in_memory};
