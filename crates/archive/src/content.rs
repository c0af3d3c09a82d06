//! Content of files, with their holes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::sparse::{Data, Span};

/// Content of a file that may be sparse.
pub trait Holes: Read {
    /// Skips the next `len` bytes if all of them are in a hole; returns true if they are.
    fn skip_hole(&mut self, len: u64) -> io::Result<bool>;
}

/// Bytes of an archive by their position.
pub trait Stored {
    /// Reads some of the bytes at a position that is not before those read earlier; fails where the archive ends.
    fn read_stored(&mut self, room: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Stored for Arc<File> {
    fn read_stored(&mut self, room: &mut [u8], at: u64) -> io::Result<usize> {
        match self.read_at(room, at)? {
            0 if !room.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            len => Ok(len),
        }
    }
}

/// Content of an entry of an archive, with its holes.
#[derive(Debug)]
pub struct Content<S> {
    stored: S,
    data: Data,
    position: u64,
}

/// Content of a file in an uncompressed archive file; can be read at any time.
pub type FileContent = Content<Arc<File>>;

impl<S> Content<S> {
    /// Returns the content at the positions `data` of an archive.
    pub fn new(stored: S, data: Data) -> Self {
        Self { stored, data, position: 0 }
    }
}

impl<S: Stored> Read for Content<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Some(span) = self.data.at(self.position) else { return Ok(0) };
        let len = match span {
            Span::Hole(len) => {
                let room = bounded(room, len);
                room.fill(0);
                room.len()
            }
            Span::Stored { at, len } => self.stored.read_stored(bounded(room, len), at)?,
        };
        self.position += len as u64;
        Ok(len)
    }
}

impl<S: Stored> Holes for Content<S> {
    fn skip_hole(&mut self, len: u64) -> io::Result<bool> {
        let is_hole = matches!(self.data.at(self.position), Some(Span::Hole(hole)) if hole >= len);
        self.position += if is_hole { len } else { 0 };
        Ok(is_hole)
    }
}

/// Returns the first `len` bytes of the buffer, or all of it.
pub(crate) fn bounded(room: &mut [u8], len: u64) -> &mut [u8] {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(room.len());
    room.get_mut(..len).unwrap_or_default()
}
