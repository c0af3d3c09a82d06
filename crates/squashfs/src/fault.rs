//! Errors of images: each names the image, the position in it, and the fault.

use std::fmt;
use std::io;
use std::sync::Arc;

use esker_vfs::{ErrorKind, TreeError};

/// Error of an image: damage, or a failed read. Cheap to clone, because every waiter of a block gets it.
#[derive(Clone, Debug)]
pub struct Fault(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    image: Arc<str>,
    offset: u64,
    what: String,
    io: Option<io::Error>,
}

impl Fault {
    pub(crate) fn damaged(image: &Arc<str>, offset: u64, what: impl fmt::Display) -> Self {
        Self(Arc::new(Inner { image: Arc::clone(image), offset, what: what.to_string(), io: None }))
    }

    pub(crate) fn read(image: &Arc<str>, offset: u64, len: usize, error: io::Error) -> Self {
        let what = format!("{len} bytes can't be read");
        Self(Arc::new(Inner { image: Arc::clone(image), offset, what, io: Some(error) }))
    }

    /// Returns true if the bytes could be read, but are wrong.
    pub fn is_damage(&self) -> bool {
        self.0.io.is_none()
    }

    /// Returns the offset of the fault in the image, in bytes.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, byte {}: {}", self.0.image, self.0.offset, self.0.what)?;
        match &self.0.io {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for TreeError {
    fn from(fault: Fault) -> Self {
        let kind = match &fault.0.io {
            None => ErrorKind::Damaged,
            Some(error) if error.kind() == io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            Some(_) => ErrorKind::Unavailable,
        };
        TreeError::on(kind, fault.0.image.to_string()).because(fault)
    }
}
