//! Builds an image from a tree.
//!
//! [`build`] takes an [`Input`] (a [`Folder`], an [`Archive`], a [`Subtree`]), sends contents to a pipeline
//! that compresses them on all cores while they are read, and writes the tables once all positions are known.
//! The same input and [`Options`] always produce the same bytes.

mod archive;
mod budget;
mod builder;
mod encoder;
mod entry;
mod error;
mod folder;
mod image;
mod inodes;
mod listing;
mod metadata;
mod options;
mod pipeline;
mod subtree;
mod tree;
mod xattrs;

use std::sync::atomic::Ordering;
use std::time::Duration;

pub use archive::Archive;
pub use builder::{BuildControl, TreeBuilder};
pub use encoder::Compression;
pub use entry::{Device, Head, Input, Kind, Open, Plain, Reading, WithHoles};
pub use error::WriteError;
pub use folder::Folder;
pub use image::{ImageFile, Target};
pub use options::{IdRange, Options, Owners};
pub use subtree::Subtree;

use crate::layout::{FRAGMENT_LEN, Flags, MetaHeader, NO_TABLE, SUPERBLOCK_LEN, Superblock};
use builder::Collected;
use encoder::Encoder;
use image::Image;
use metadata::put_table;
use pipeline::{Counters, Stored};

/// Progress of a build.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Number of entries found.
    pub entries: u64,
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Time since the build began.
    pub elapsed: Duration,
}

/// Statistics of a finished build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of inodes.
    pub inodes: u32,
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of files with the same content as an earlier file.
    pub duplicates: u64,
    /// Bytes of these duplicate files.
    pub duplicate_bytes: u64,
    /// Number of data blocks, fragment blocks included.
    pub blocks: u64,
    /// Number of these blocks stored uncompressed because compression saved nothing.
    pub blocks_plain: u64,
    /// Number of these blocks that are holes.
    pub blocks_hole: u64,
    /// Number of fragment blocks.
    pub fragments: u32,
    /// Stored bytes of blocks, fragments and codec options.
    pub data_bytes: u64,
    /// Stored bytes of all tables.
    pub table_bytes: u64,
    /// Length of the image in bytes, with the padding of its last page.
    pub image_bytes: u64,
    /// Number of files that became shorter while they were read.
    pub changed: u64,
    /// Number of extended attributes that the format can't represent.
    pub xattrs_left_out: u64,
    /// Number of archive entries of unknown type, which became regular files.
    pub unknown_types: u64,
}

/// Alignment of an image's length in bytes, as of mksquashfs: loop devices need it.
const PADDING: u64 = 4096;

/// Builds an image of `input`.
pub fn build(
    input: &mut dyn Input,
    options: &Options,
    watch: &mut BuildControl<'_>,
    target: &mut dyn Target,
) -> Result<Report, WriteError> {
    let mut image = Image::new(target, SUPERBLOCK_LEN as u64);
    let codec_options = options.compression.options();
    if let Some(codec_options) = &codec_options {
        let bytes = codec_options.encode();
        let len = u16::try_from(bytes.len()).expect("options are a few numbers");
        image.append(&MetaHeader { len, compressed: false }.encode())?;
        image.append(&bytes)?;
    }
    let counters = Counters::default();
    let fed = pipeline::run(options, &counters, watch.stop, &mut image, |feed| {
        let mut builder = TreeBuilder::new(options, watch, &counters, feed);
        input.feed(&mut builder)?;
        builder.finish()
    });
    let (collected, stored) = fed?;
    let data_end = image.end();
    let mut superblock = put_tables(&collected, &stored, options, &mut image)?;
    if codec_options.is_some() {
        superblock.flags.0 |= Flags::OPTIONS;
    }
    let bytes_used = image.end();
    let image_bytes = image.finish(&superblock.encode(), PADDING)?;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Report {
        inodes: superblock.inodes,
        files: load(&counters.files),
        bytes: load(&counters.bytes),
        duplicates: load(&counters.duplicates),
        duplicate_bytes: load(&counters.duplicate_bytes),
        blocks: load(&counters.blocks),
        blocks_plain: load(&counters.blocks_plain),
        blocks_hole: load(&counters.blocks_hole),
        fragments: superblock.fragments,
        data_bytes: data_end,
        table_bytes: bytes_used - data_end,
        image_bytes,
        changed: load(&counters.changed),
        xattrs_left_out: collected.xattrs.left_out,
        unknown_types: collected.unknown_types,
    })
}

/// Appends all tables in the order that readers expect, and returns their positions.
fn put_tables(
    collected: &Collected,
    stored: &Stored,
    options: &Options,
    image: &mut Image<'_>,
) -> Result<Superblock, WriteError> {
    let mut encoder = Encoder::new(options.compression, options.block_size)?;
    let located = |file: usize| {
        let number = collected.files.get(file).copied().flatten();
        number.and_then(|number| stored.files.get(number)).cloned().unwrap_or_default()
    };
    let tables = inodes::build(&collected.tree, &located, &mut encoder)?;
    let inode_table = image.end();
    image.append(&tables.inodes)?;
    let directory_table = image.end();
    image.append(&tables.directories)?;
    let mut fragments = Vec::with_capacity(stored.fragments.len() * FRAGMENT_LEN);
    stored.fragments.iter().for_each(|fragment| fragment.encode(&mut fragments));
    let fragment_table = match fragments.is_empty() {
        true => NO_TABLE,
        false => put_table(image, &mut encoder, &fragments)?,
    };
    let export_table = match options.exportable {
        true => {
            let places: Vec<u8> = tables.places.iter().flat_map(|place| place.0.to_le_bytes()).collect();
            put_table(image, &mut encoder, &places)?
        }
        false => NO_TABLE,
    };
    let ids: Vec<u8> = tables.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let id_table = put_table(image, &mut encoder, &ids)?;
    let xattr_table = collected.xattrs.put(image, &mut encoder)?;
    let flags = [
        (Flags::NO_FRAGMENTS, !options.fragments),
        (Flags::ALWAYS_FRAGMENTS, options.fragments && options.tail_ends),
        (Flags::DUPLICATES, options.duplicates),
        (Flags::EXPORTABLE, options.exportable),
        (Flags::NO_XATTRS, xattr_table == NO_TABLE),
    ];
    let flags = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum();
    Ok(Superblock {
        inodes: u32::try_from(tables.places.len()).map_err(|_| WriteError::TooMany("inodes"))?,
        modified: options.image_time.unwrap_or(tables.newest),
        block_size: options.block_size,
        fragments: u32::try_from(stored.fragments.len()).map_err(|_| WriteError::TooMany("fragments"))?,
        codec: options.compression.codec(),
        flags: Flags(flags),
        ids: u16::try_from(tables.ids.len()).map_err(|_| WriteError::TooMany("owners and groups"))?,
        root: tables.root,
        bytes_used: image.end(),
        id_table,
        xattr_table,
        inode_table,
        directory_table,
        fragment_table,
        export_table,
    })
}
