//! An image as a tree, and a tree as an image. Reads through its own `Image` trait (length, read at); `cli` plugs in a
//! file, HTTP or a repository object.
//!
//! * [`layout`]: the bytes of squashfs 4.0, each structure with its decoder beside its encoder;
//! * [`Image`]: where the bytes come from; [`FileImage`] is a file, or a part of one that [`find`] finds;
//! * [`ImageTree`]: an image opened as a [`esker_vfs::Tree`];
//! * [`writer`]: any tree made an image;
//! * [`extract()`]: any tree made a folder;
//! * [`digest`]: the digests of an image's blocks;
//! * [`appendix`]: what may follow an image in its file.
//!
//! ```no_run
//! # use std::{path::Path, sync::Arc};
//! # use esker_squashfs::{FileImage, ImageTree, Options};
//! let image = FileImage::open(Path::new("stack.sqfs"), 0)?;
//! let tree = ImageTree::open(Arc::new(image), &Options::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every decoder takes bytes that anybody may have written: none panics, allocates by an unchecked length or loops
//! without a bound.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod ahead;
pub mod appendix;
mod blocks;
mod cache;
mod codec;
pub mod digest;
mod extract;
mod fault;
mod find;
mod flights;
mod image;
pub mod layout;
mod pieces;
mod pool;
mod reader;
mod tree;
pub mod writer;

use std::sync::Arc;
use std::time::SystemTime;

pub use codec::CodecError;
pub use extract::{Extract, ExtractError, Extracted, extract};
pub use fault::Fault;
pub use find::find;
pub use image::{FileImage, Image};
pub use tree::ImageTree;

/// How an image is read.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of decompressed blocks that are kept.
    pub block_bytes: usize,
    /// Bytes of metadata, listings and stored pieces that are kept, each.
    pub metadata_bytes: usize,
    /// Threads that read and decompress; 0 for as many as the machine has cores, at least 4 and at most 32.
    pub threads: usize,
    /// User and group that everything is shown to belong to, whatever the image says.
    pub owner: Option<(u32, u32)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { block_bytes: 64 << 20, metadata_bytes: 32 << 20, threads: 0, owner: None }
    }
}

/// What was done with an image so far.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its name.
    pub image: String,
    /// Blocks that were read and decompressed.
    pub blocks: u64,
    /// How long they were, as stored.
    pub stored_bytes: u64,
    /// Of the blocks, those that nobody had asked for when they were queued.
    pub ahead: u64,
    /// Bytes of blocks and metadata that are kept now.
    pub kept_bytes: u64,
    /// The last failures, oldest first: when, what and who asked.
    pub failures: Vec<(SystemTime, String, Option<u32>)>,
}

/// An image can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no image.
    #[error("{0} is no squashfs image")]
    NoImage(Arc<str>),
    /// It is of a kind that can't be read.
    #[error("{0}: {1} is not supported")]
    Unsupported(Arc<str>, String),
    /// It is damaged, or can't be read.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Its root is damaged, or can't be read.
    #[error("{0}")]
    Root(String),
    /// The system gives no threads.
    #[error("no thread can be started")]
    Thread(#[source] std::io::Error),
}
