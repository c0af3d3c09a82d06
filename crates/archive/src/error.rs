//! Errors of reading archives.

use std::io;

/// Reasons why an archive can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Reading the archive failed.
    #[error("reading at byte {offset} of the archive failed")]
    Io {
        /// Offset in the decompressed archive, in bytes.
        offset: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The archive ends too early.
    #[error("the archive ends at byte {offset}, within {within}")]
    Cut {
        /// Offset of the end in the decompressed archive, in bytes.
        offset: u64,
        /// Name of the incomplete part.
        within: String,
    },
    /// The file is no tar archive.
    #[error("it is no tar archive{what}")]
    NoArchive {
        /// Predicate of the sentence that describes the file; empty if the format is unknown.
        what: String,
    },
    /// A header is damaged, or asks for something that is not supported.
    #[error("{entry}: {reason} (header at byte {offset} of the archive)")]
    Refused {
        /// Offset of the header in the decompressed archive, in bytes.
        offset: u64,
        /// Name of the entry, or kind of the header.
        entry: String,
        /// Reason of the rejection.
        reason: String,
    },
}

impl ArchiveError {
    pub(crate) fn refused(offset: u64, entry: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Refused { offset, entry: entry.into(), reason: reason.into() }
    }

    /// Returns the error as an I/O error; errors of the system keep their kind.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io { source, .. } => source,
            Self::Cut { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, self),
            refused => io::Error::new(io::ErrorKind::InvalidData, refused),
        }
    }

    /// Returns true if reading failed or the archive is truncated, rather than invalid.
    pub fn is_of_reading(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Cut { .. })
    }
}

/// Returns a name for messages: control characters and invalid UTF-8 are escaped.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().fold(String::new(), |mut text, char| {
        if char.is_control() {
            text.extend(char.escape_default());
        } else {
            text.push(char);
        }
        text
    })
}
