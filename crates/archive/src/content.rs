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

/// Content of a file in an uncompressed archive file; can be read at any time.
#[derive(Debug)]
pub struct FileContent {
    file: Arc<File>,
    data: Data,
    position: u64,
}

impl FileContent {
    /// Returns the content at the positions `data` of an archive.
    pub fn new(file: Arc<File>, data: Data) -> Self {
        Self { file, data, position: 0 }
    }
}

impl Read for FileContent {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Some(span) = self.data.at(self.position) else { return Ok(0) };
        let len = match span {
            Span::Hole(len) => {
                let room = bounded(room, len);
                room.fill(0);
                room.len()
            }
            Span::Stored { at, len } => match self.file.read_at(bounded(room, len), at)? {
                0 if !room.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => len,
            },
        };
        self.position += len as u64;
        Ok(len)
    }
}

impl Holes for FileContent {
    fn skip_hole(&mut self, len: u64) -> io::Result<bool> {
        let is_hole = is_hole(&self.data, self.position, len);
        self.position += if is_hole { len } else { 0 };
        Ok(is_hole)
    }
}

pub(crate) fn is_hole(data: &Data, position: u64, len: u64) -> bool {
    matches!(data.at(position), Some(Span::Hole(hole)) if hole >= len)
}

/// Returns the first `len` bytes of the buffer, or all of it.
pub(crate) fn bounded(room: &mut [u8], len: u64) -> &mut [u8] {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(room.len());
    room.get_mut(..len).unwrap_or_default()
}
