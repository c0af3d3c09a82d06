//! Resolves the settings of a command: the environment, configuration files above it, options above both.

pub(crate) mod address;
pub(crate) mod args;
pub(crate) mod cache;
pub(crate) mod configuration;
mod configured;
pub(crate) mod environment;
mod folders;
mod missing;
pub(crate) mod missing_colon;
pub(crate) mod public_keys;
pub(crate) mod repository;
pub(crate) mod servers;
mod setting;
mod sources;
pub(crate) mod tiers;

pub(crate) use folders::{BROKER_SOCKET, MEMORY, Settings};
pub(crate) use sources::SourceSettings;
