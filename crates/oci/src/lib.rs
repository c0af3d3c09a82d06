//! Container images in registries and archives, as layers.
#![forbid(unsafe_code)]

mod config;

pub use config::Config;
