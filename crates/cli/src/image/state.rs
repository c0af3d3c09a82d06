//! Status of a mounted image for `esker status`.

use std::time::SystemTime;

use esker_node::status::{Failure as Failed, Image, seconds};
use esker_squashfs::ImageTree;

use super::Trust;

/// Returns the state of an image now, and its failures.
pub(super) fn of(tree: &ImageTree, trust: Trust) -> (Image, Vec<Failed>) {
    let (superblock, status) = (tree.superblock(), tree.status());
    let image = Image {
        codec: superblock.codec.name().to_owned(),
        block_bytes: superblock.block_size.into(),
        bytes: superblock.bytes_used,
        blocks: status.blocks,
        read_bytes: status.stored_bytes,
        read_ahead: status.ahead,
        kept_bytes: status.kept_bytes,
        authenticated: trust.word().to_owned(),
    };
    let failed = |(time, cause, caller): (SystemTime, String, Option<u32>)| Failed {
        time: seconds(time),
        object: status.image.clone(),
        cause,
        caller,
    };
    (image, status.failures.iter().cloned().map(failed).collect())
}

impl Trust {
    /// Returns the name of the authentication. The names are an interface.
    fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Digest => "digest",
            Self::Repository => "repository",
            Self::None => "no",
        }
    }
}
