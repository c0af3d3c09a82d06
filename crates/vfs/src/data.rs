//! Data of a read reply.

use std::fmt::Debug;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

/// An open local file with verified content.
///
/// The owner is notified when the last reference is dropped, which lets a cache bound its open descriptors.
/// So keep the `Arc` rather than duplicate the descriptor.
pub trait LocalFile: AsFd + Debug + Send + Sync {}

impl<T: AsFd + Debug + Send + Sync> LocalFile for T {}

/// A piece of a reply.
#[derive(Clone, Debug)]
pub enum Segment {
    /// `len` bytes at `offset` of a local file whose content is verified.
    File {
        /// Open file; the tree's cache limits the number of open files.
        file: Arc<dyn LocalFile>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// `len` bytes in memory, from `start`.
    Bytes {
        /// Buffer with the bytes.
        bytes: Arc<[u8]>,
        /// Index of the first byte in the buffer.
        start: usize,
        /// Number of bytes.
        len: usize,
    },
    /// This many zero bytes (a hole).
    Zeros(usize),
}

impl Segment {
    /// Returns the number of bytes of this piece.
    pub fn len(&self) -> usize {
        match self {
            Segment::File { len, .. } | Segment::Bytes { len, .. } | Segment::Zeros(len) => *len,
        }
    }

    /// Returns true if the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of one read, in order. Shorter than requested only at the end of the file.
#[derive(Clone, Debug, Default)]
pub struct Data(pub Vec<Segment>);

impl Data {
    /// Returns the total number of bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Segment::len).sum()
    }

    /// Returns true if there are no bytes, because the read was at or past the end.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if bytes are in a file.
    pub fn has_file(&self) -> bool {
        self.0.iter().any(|segment| matches!(segment, Segment::File { .. }))
    }

    /// Copies all pieces into one vector; for tools and tests, too slow for mounts.
    pub fn to_vec(&self) -> std::io::Result<Vec<u8>> {
        use std::os::unix::fs::FileExt;
        let mut out = Vec::with_capacity(self.len());
        for segment in &self.0 {
            match segment {
                Segment::File { file, offset, len } => {
                    let at = out.len();
                    out.resize(at + len, 0);
                    let file = File::from(file.as_fd().try_clone_to_owned()?);
                    file.read_exact_at(&mut out[at..], *offset)?;
                }
                Segment::Bytes { bytes, start, len } => {
                    out.extend_from_slice(&bytes[*start..*start + *len]);
                }
                Segment::Zeros(len) => out.resize(out.len() + len, 0),
            }
        }
        Ok(out)
    }
}
