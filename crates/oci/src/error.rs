//! Errors of reading container images.

use std::io;

use esker_archive::ArchiveError;

/// Reasons why an image can't be read.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// Reading or writing failed.
    #[error("can't {what}")]
    Io {
        /// Operation that failed, with its object.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A layer, or the archive of the image, is damaged or invalid.
    #[error("{what}")]
    Archive {
        /// Name of the layer or archive.
        what: String,
        /// Error of the archive.
        source: ArchiveError,
    },
    /// The content doesn't match its digest.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// Name of the content.
        what: String,
        /// Digest that the manifest or configuration names.
        expected: String,
        /// Digest of the content read.
        found: String,
    },
    /// The image is malformed, or tries a forbidden operation.
    #[error("{what}: {reason}")]
    Refused {
        /// The image, layer or path.
        what: String,
        /// Reason of the rejection.
        reason: String,
    },
    /// The caller stopped the operation.
    #[error("interrupted")]
    Interrupted,
}

impl OciError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| OciError::Io { what, source }
    }

    /// Returns the error of an archive: a failed read, or invalid data.
    pub(crate) fn archive(what: impl Into<String>) -> impl FnOnce(ArchiveError) -> Self {
        let what = what.into();
        move |error| match error {
            error if error.is_of_reading() => {
                Self::Io { what: format!("read {what}"), source: error.into_io() }
            }
            source => Self::Archive { what, source },
        }
    }

    pub(crate) fn refused(what: impl Into<String>, reason: impl Into<String>) -> Self {
        OciError::Refused { what: what.into(), reason: reason.into() }
    }
}
