//! Reads squashfs images as trees, and writes trees as squashfs images.
//!
//! Bytes come through the `Image` trait (length, read at offset); `cli` implements it for a file, HTTP or a
//! repository object.
//!
//! * [`layout`]: the format of squashfs 4.0, each structure with its decoder and encoder;
//! * [`Image`]: source of an image's bytes; [`FileImage`] is a file, or a part of one that [`find`] finds;
//! * [`ImageTree`]: an image opened as a [`esker_vfs::Tree`];
//! * [`writer`]: writer of images from any tree;
//! * [`extract()`]: extraction of any tree into a folder;
//! * [`digest`]: the digests of an image's blocks;
//! * [`trailer`]: data that Esker appends to an image in its file.
//!
//! ```no_run
//! # use std::{path::Path, sync::Arc};
//! # use esker_squashfs::{FileImage, ImageTree, Options};
//! let image = FileImage::open(Path::new("stack.sqfs"), 0)?;
//! let tree = ImageTree::open(Arc::new(image), &Options::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Decoders accept untrusted bytes: none panics, allocates by an unchecked length or loops
//! without a bound.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod block_image;
mod blocks;
mod cache;
mod codec;
pub mod digest;
mod extract;
mod fault;
mod find;
mod image;
pub mod layout;
mod loading_cache;
mod read_cache;
mod readahead;
mod reader;
pub mod trailer;
mod tree;
mod tree_file;
pub mod writer;

use std::sync::Arc;
use std::time::SystemTime;

pub use block_image::{BlockImage, BlockProgress, ReadBlock};
pub use codec::CodecError;
pub use extract::{Extract, ExtractError, Extracted, extract};
pub use fault::Fault;
pub use find::find;
pub use image::{FileImage, Image};
pub use tree::ImageTree;
pub use tree_file::TreeFile;

/// Options of reading an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size limit of the cache of decompressed blocks, in bytes.
    pub block_bytes: usize,
    /// Size limit of each of the caches of metadata, listings and stored ranges, in bytes.
    pub metadata_bytes: usize,
    /// Number of threads that read and decompress; 0 for the number of cores, at least 4 and at most 32.
    pub threads: usize,
    /// User and group that own all files, in place of the owners in the image.
    pub owner: Option<(u32, u32)>,
    /// Numbers of the user and the group that the image's numbers 0 stand for; the numbers above follow.
    pub first_ids: (u32, u32),
}

impl Default for Options {
    fn default() -> Self {
        Self { block_bytes: 64 << 20, metadata_bytes: 32 << 20, threads: 0, owner: None, first_ids: (0, 0) }
    }
}

/// Counters of an open image.
#[derive(Clone, Debug)]
pub struct Status {
    /// Name of the image.
    pub image: String,
    /// Number of blocks read and decompressed.
    pub blocks: u64,
    /// Stored bytes of these blocks.
    pub stored_bytes: u64,
    /// Number of these blocks that were prefetched, without a waiting request.
    pub ahead: u64,
    /// Bytes of blocks and metadata in the caches.
    pub kept_bytes: u64,
    /// Latest failures, oldest first: time, description, process id of the caller.
    pub failures: Vec<(SystemTime, String, Option<u32>)>,
}

/// Reasons why an image can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is no squashfs image.
    #[error("{0} is no squashfs image")]
    NoImage(Arc<str>),
    /// The image has a version or codec that is not supported.
    #[error("{0}: {1} is not supported")]
    Unsupported(Arc<str>, String),
    /// The image is damaged, or can't be read.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The root directory is damaged, or can't be read.
    #[error("{0}")]
    Root(String),
    /// The system can't start a thread.
    #[error("no thread can be started")]
    Thread(#[source] std::io::Error),
}
