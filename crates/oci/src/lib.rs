//! Container images in registries and archives, as layers.
//!
//! [`Image`] opens a layout of OCI, an archive of Docker or an image in a [`Registry`], [`Image::merge`] unpacks its layers, checks them against their
//! digests, and gives one tree ([`Merged`]). What comes out names nothing outside of itself, whatever a layer says; nothing here
//! writes anywhere but into files without a name.
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
pub use image::{Image, Limits, Told, Unpacking};
pub use merge::{Entry, Kind, Merged};
pub use registry::{Challenge, HUB, Reference, Registry, TokenServer, escaped, registry_of_key, token};
