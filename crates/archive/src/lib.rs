//! Reads the sources of trees: tar archives, whose compression it removes, and folders.
//!
//! [`decompressed`] removes the compression; [`Reader`] returns the entries with their contents, in order.
//! [`folder`] has the steps of reading a folder. Names, owners and targets of an archive's entry are always valid on Linux; an archive with invalid ones is rejected
//! with an [`ArchiveError`].
#![forbid(unsafe_code)]

// The included body of the fuzz target refers to the crate by its name.
#[cfg(test)]
extern crate self as esker_archive;

mod compression;
mod content;
mod entry;
mod error;
pub mod folder;
mod header;
mod image;
mod number;
mod other_formats;
mod pax;
mod reader;
mod sparse;

pub use compression::{Compression, Decompressed, MAGIC_LEN, decompressed};
pub use content::{Content, FileContent, Holes};
pub use entry::{Device, Entry, Kind, NAME_MAX, PATH_MAX, TARGET_MAX, Time, normalised};
pub use error::ArchiveError;
pub use image::{ContainerImage, ContainerImageNames};
pub use reader::{FileInput, Reader};
pub use sparse::{Data, Region};
