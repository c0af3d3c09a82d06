//! The bytes of squashfs 4.0.
//!
//! An image is: superblock, perhaps options of the codec, blocks of data and fragments, then tables. Most tables are
//! *metadata*: a stream cut into blocks of [`METADATA_BLOCK`] bytes, each stored with a two-byte header
//! ([`MetaHeader`]) and usually compressed. A place in such a stream is a [`MetaRef`]. All numbers are little-endian.
//!
//! Decoders take exactly the bytes of their structure and check what can be known from these bytes alone; where
//! something lies in the image is for the reader to check.

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

/// Bytes that can't be what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There are fewer bytes than the structure has.
    #[error("{what} is cut short")]
    Short {
        /// The structure.
        what: &'static str,
    },
    /// A field has a value that is not allowed.
    #[error("{field} is {value:#x}, which can't be")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// It is no squashfs image at all.
    #[error("no squashfs image starts here")]
    Magic,
    /// It is an image of a version or codec that can't be read.
    #[error("{what} is not supported")]
    Unsupported {
        /// What is not.
        what: String,
    },
}

pub(crate) fn wrong(field: &'static str, value: impl Into<u64>) -> LayoutError {
    LayoutError::Field { field, value: value.into() }
}
