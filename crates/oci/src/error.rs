//! Why an image can't be read.

use std::io;

use esker_archive::ArchiveError;

/// Why an image can't be read.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// Reading or writing failed.
    #[error("can't {what}")]
    Io {
        /// What was tried, on which object.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A layer, or the archive that the image is in, is damaged or says what can't be.
    #[error("{what}")]
    Archive {
        /// The layer or archive.
        what: String,
        /// Why it can't be read.
        source: ArchiveError,
    },
    /// It is not what its digest says.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// What was read.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// It is not in the form that it should have, or tries something it must not.
    #[error("{what}: {reason}")]
    Refused {
        /// The image, layer or path.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody asked for the end.
    #[error("interrupted")]
    Interrupted,
}

impl OciError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| OciError::Io { what, source }
    }

    /// Returns the error of an archive: of reading, or of what it says.
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
