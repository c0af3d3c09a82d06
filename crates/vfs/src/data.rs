//! The answer to a read.

use std::fmt::Debug;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

/// An open local file whose content is verified. Its owner learns when the last holder lets go of it,
/// which is how a cache keeps the number of its descriptors bounded; so hold the `Arc`, don't duplicate
/// the descriptor.
pub trait LocalFile: AsFd + Debug + Send + Sync {}

impl<T: AsFd + Debug + Send + Sync> LocalFile for T {}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Segment {
    /// `len` bytes at `offset` of a local file whose content is verified.
    File {
        /// The file; the tree's cache bounds how many are open at once.
        file: Arc<dyn LocalFile>,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// Bytes in memory, from `start` for `len`.
    Bytes {
        /// The buffer.
        bytes: Arc<[u8]>,
        /// First byte.
        start: usize,
        /// How many bytes.
        len: usize,
    },
    /// A hole.
    Zeros(usize),
}

impl Segment {
    /// Number of bytes this piece stands for.
    pub fn len(&self) -> usize {
        match self {
            Segment::File { len, .. } | Segment::Bytes { len, .. } | Segment::Zeros(len) => *len,
        }
    }

    /// Whether it stands for no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of one read, in order. Shorter than asked only at the end of the file.
#[derive(Clone, Debug, Default)]
pub struct Data(pub Vec<Segment>);

impl Data {
    /// Number of bytes in all.
    pub fn len(&self) -> usize {
        self.0.iter().map(Segment::len).sum()
    }

    /// Whether there is no byte (a read at or past the end).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies everything into one vector; for tests and tools, not for the hot path.
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
