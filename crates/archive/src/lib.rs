//! Archives: the one reader of tar, and of what tar archives are compressed with.
//!
//! [`unpacked`] removes the compression, [`Reader`] gives one [`Entry`] after the other with its content. Names, owners and targets of an
//! entry are valid for Linux, whatever the archive says; an archive that says anything else is refused with an [`ArchiveError`].
#![forbid(unsafe_code)]

// The body of the fuzz target, which a test includes, names the crate as others do.
#[cfg(test)]
extern crate self as esker_archive;

mod compression;
mod content;
mod entry;
mod error;
mod foreign;
mod header;
mod image;
mod number;
mod pax;
mod reader;
mod sparse;

pub use compression::{MAGIC_LEN, Packed, Unpacked, unpacked};
pub use content::{FileContent, Holes};
pub use entry::{Device, Entry, Kind, NAME_MAX, PATH_MAX, TARGET_MAX, Time, normalised};
pub use error::ArchiveError;
pub use image::{ContainerImage, ContainerImageNames};
pub use reader::{Content, FileInput, Reader};
pub use sparse::{Data, Region};
