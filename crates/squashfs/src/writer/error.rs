//! Errors of writing an image.

use std::io;

/// Reasons why no image was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// An entry of the input can't be read.
    #[error("{doing} {path} failed")]
    Input {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the entry.
        path: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The format can't represent an entry.
    #[error("{path} can't be in an image: {reason}")]
    Refused {
        /// Path of the entry.
        path: String,
        /// Reason of the rejection.
        reason: String,
    },
    /// The image can't be written.
    #[error("{doing} the image failed")]
    Image {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// A codec failed.
    #[error("compressing with {codec} failed: {reason}")]
    Codec {
        /// Name of the codec.
        codec: &'static str,
        /// Error text of the codec.
        reason: String,
    },
    /// The input has more items of a kind than the format can count.
    #[error("the image would have too many {0}")]
    TooMany(&'static str),
    /// The caller stopped the build.
    #[error("interrupted")]
    Interrupted,
}

/// Returns a path for messages.
pub(super) fn shown(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    if path.starts_with('/') { path.into_owned() } else { format!("/{path}") }
}
