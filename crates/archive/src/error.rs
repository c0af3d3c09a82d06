//! Why an archive can't be read.

use std::io;

/// Why an archive can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Reading the archive failed.
    #[error("reading at byte {offset} of the archive failed")]
    Io {
        /// Where in the archive, without its compression.
        offset: u64,
        /// Why it failed.
        source: io::Error,
    },
    /// The archive ends too early.
    #[error("the archive ends at byte {offset}, within {within}")]
    Cut {
        /// Where it ends, without its compression.
        offset: u64,
        /// What is not complete.
        within: String,
    },
    /// The file is no tar archive.
    #[error("it is no tar archive{what}")]
    NoArchive {
        /// What it is in its place, as the end of the sentence; empty if unknown.
        what: String,
    },
    /// A header is damaged, or asks for something that is not supported.
    #[error("{entry}: {reason} (header at byte {offset} of the archive)")]
    Refused {
        /// Where the header is, in the archive without its compression.
        offset: u64,
        /// Name of the entry, or kind of the header.
        entry: String,
        /// What is wrong.
        reason: String,
    },
}

impl ArchiveError {
    pub(crate) fn refused(offset: u64, entry: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Refused { offset, entry: entry.into(), reason: reason.into() }
    }

    /// Returns the error as one of reading; errors of the system stay what they are.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io { source, .. } => source,
            Self::Cut { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, self),
            refused => io::Error::new(io::ErrorKind::InvalidData, refused),
        }
    }

    /// Returns whether reading failed or the archive was cut, and not what the archive says is at fault.
    pub fn is_of_reading(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Cut { .. })
    }
}

/// Returns a name for messages: control characters and bytes that are no text are escaped.
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
