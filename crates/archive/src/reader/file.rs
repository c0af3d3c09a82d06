//! Input of archive files, which skips unread content by seeking.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::Reader;
use crate::content::bounded;

/// Number of bytes of one read.
const BUFFER_LEN: usize = 64 << 10;

/// An uncompressed archive file.
#[derive(Debug)]
pub struct FileInput {
    file: Arc<File>,
    /// Length of the file when it was opened; content is skipped up to there.
    len: u64,
    buffer: Vec<u8>,
    /// Position of the next byte in the buffer.
    at: usize,
    /// File offset of the first byte after the buffer.
    offset: u64,
}

impl FileInput {
    /// Returns an input that reads the file from its start, regardless of its current offset.
    pub fn new(file: Arc<File>) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len, buffer: Vec::new(), at: 0, offset: 0 })
    }

    fn skip(&mut self, len: u64) -> io::Result<u64> {
        let buffered = (self.buffer.len() - self.at) as u64;
        if len <= buffered {
            self.at += usize::try_from(len).unwrap_or_default();
            return Ok(len);
        }
        self.at = self.buffer.len();
        let left = (len - buffered).min(self.len.saturating_sub(self.offset));
        self.offset += left;
        Ok(buffered + left)
    }
}

impl Read for FileInput {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() {
            if room.len() >= BUFFER_LEN {
                let len = self.file.read_at(room, self.offset)?;
                self.offset += len as u64;
                return Ok(len);
            }
            self.buffer.resize(BUFFER_LEN, 0);
            let read = self.file.read_at(&mut self.buffer, self.offset);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            self.at = 0;
            self.offset += read? as u64;
        }
        let left = self.buffer.get(self.at..).unwrap_or_default();
        let room = bounded(room, left.len() as u64);
        room.copy_from_slice(left.get(..room.len()).unwrap_or_default());
        self.at += room.len();
        Ok(room.len())
    }
}

impl Reader<FileInput> {
    /// Returns a reader of an uncompressed archive file.
    pub fn of_file(file: Arc<File>) -> io::Result<Self> {
        Ok(Self::with_skip(FileInput::new(file)?, FileInput::skip))
    }
}
