//! Reads container images from registries and archives, and merges their layers.
//!
//! [`Image`] opens an OCI layout, a Docker archive or an image in a [`Registry`]; [`Image::merge`] unpacks
//! its layers, verifies their digests, and returns one tree ([`Merged`]). The tree refers to nothing outside
//! of itself, whatever a layer contains; this crate writes only to unnamed files.
#![forbid(unsafe_code)]

mod config;
mod digest;
mod error;
mod files;
mod image;
mod manifest;
mod merge;
mod registry;

pub use config::Config;
pub use error::OciError;
pub use esker_archive::{Data, FileContent};
pub use image::{Image, Limits, ProgressFn, Unpacking};
pub use merge::{Entry, Kind, Merged};
pub use registry::{Challenge, HUB, Reference, Registry, TokenServer, escaped, registry_of_key, token};
