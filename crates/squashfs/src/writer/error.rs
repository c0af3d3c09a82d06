//! How writing an image fails.

use std::io;

/// Why no image was made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Something of the input can't be read.
    #[error("{doing} {path} failed")]
    Input {
        /// What was done.
        doing: &'static str,
        /// With what.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An image can't hold this entry.
    #[error("{path} can't be in an image: {reason}")]
    Refused {
        /// The entry.
        path: String,
        /// Why.
        reason: String,
    },
    /// The image can't be written.
    #[error("{doing} the image failed")]
    Image {
        /// What was done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A codec refused to work.
    #[error("compressing with {codec} failed: {reason}")]
    Codec {
        /// Its name.
        codec: &'static str,
        /// What it said.
        reason: String,
    },
    /// The input has more of something than the format can count.
    #[error("the image would have too many {0}")]
    TooMany(&'static str),
    /// Somebody asked for the end.
    #[error("interrupted")]
    Interrupted,
}

/// A path, for messages.
pub(super) fn shown(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    if path.starts_with('/') { path.into_owned() } else { format!("/{path}") }
}
