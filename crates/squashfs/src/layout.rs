//! On-disk format of squashfs 4.0.
//!
//! An image is: superblock, perhaps options of the codec, blocks of data and fragments, then tables. Most tables are
//! *metadata*: a stream cut into blocks of [`METADATA_BLOCK`] bytes, each stored with a two-byte header
//! ([`MetaHeader`]) and usually compressed. [`MetaRef`] is a position in such a stream. All numbers are little-endian.
//!
//! Decoders take exactly the bytes of their structure and check everything that these bytes alone determine; the
//! reader checks positions in the image.

mod block;
mod directory;
mod fields;
mod inode;
mod options;
mod superblock;
mod xattr;

pub use block::{
    BlockWord, FRAGMENT_LEN, Fragment, METADATA_BLOCK, MetaHeader, MetaRef, NO_FRAGMENT, table_blocks,
};
pub use directory::{
    DIRECTORY_EXTRA, ENTRY_LEN, Entry, INDEX_LEN, IndexEntry, NAME_MAX, RUN_LEN, RUN_MAX, Run,
};
pub(crate) use fields::Fields;
pub use inode::{
    Body, DirectoryBody, FileBody, HEADER_LEN, InodeHeader, InodeType, NO_XATTRS, decode_device,
    encode_device,
};
pub use options::CodecOptions;
pub use superblock::{CodecId, Flags, NO_TABLE, SUPERBLOCK_LEN, Superblock};
pub use xattr::{
    Prefix, XATTR_ENTRY_LEN, XATTR_ID_LEN, XATTR_LIST_MAX, XATTR_TABLE_LEN, XATTR_VALUE_MAX, XattrEntry,
    XattrId, XattrTable,
};

/// Reasons why bytes can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The bytes are fewer than the structure has.
    #[error("{what} is cut short")]
    Short {
        /// Name of the structure.
        what: &'static str,
    },
    /// A field has a value that is not allowed.
    #[error("{field} is {value:#x}, which is invalid")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// The bytes are no squashfs image.
    #[error("no squashfs image starts here")]
    Magic,
    /// The image has a version or codec that is not supported.
    #[error("{what} is not supported")]
    Unsupported {
        /// The version or codec.
        what: String,
    },
}

pub(crate) fn wrong(field: &'static str, value: impl Into<u64>) -> LayoutError {
    LayoutError::Field { field, value: value.into() }
}
