//! Reads pieces of files for bodies, within a bound of memory.
//!
//! A piece in the page cache is read at once by the worker that sends it. If the disk has to be read, a blocking
//! thread does it, so a slow disk holds no worker.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};

/// Maximum number of bytes read at once.
pub(crate) const CHUNK_MAX: u64 = 256 * 1024;
/// Maximum number of bytes read at once while much memory is in use.
const CHUNK_SCARCE: u64 = 16 * 1024;
/// Number of responses in progress of a connection of HTTP/2 from which on further requests are refused while much memory is in
/// use.
pub(crate) const SCARCE_STREAMS: usize = 4;
/// Number of bytes in chunks from which on memory is scarce.
const PLENTY: usize = 64 << 20;

/// Number of bytes in chunks of this process that are not sent yet.
///
/// It is at most [`PLENTY`] plus [`CHUNK_MAX`] for each worker, plus [`CHUNK_SCARCE`] for each response in progress: one of a
/// connection, or [`SCARCE_STREAMS`] of one of HTTP/2.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Returns the largest size of the next chunk.
pub(crate) fn len_max() -> u64 {
    if is_scarce() { CHUNK_SCARCE } else { CHUNK_MAX }
}

/// Returns the number of bytes in chunks that are not sent yet.
pub(crate) fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Returns true while much memory is in use.
pub(crate) fn is_scarce() -> bool {
    held() >= PLENTY
}

/// Returns bytes that count as a chunk until the last response with them is sent.
pub(crate) fn hold(bytes: Vec<u8>) -> Bytes {
    HELD.fetch_add(bytes.len(), Ordering::Relaxed);
    Bytes::from_owner(Chunk(bytes))
}

/// A chunk, which counts until it is sent.
struct Chunk(Vec<u8>);

impl Chunk {
    fn new(len: usize) -> Self {
        HELD.fetch_add(len, Ordering::Relaxed);
        Self(vec![0; len])
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// A chunk that was read, or the part of a read that needs the disk.
pub(crate) enum Reading {
    Done(Bytes),
    Blocking(Blocked),
}

/// A read that would wait for the disk.
pub(crate) struct Blocked {
    chunk: Chunk,
    filled: usize,
    offset: u64,
}

/// Reads `len` bytes as far as they are in the page cache.
pub(crate) fn read(file: &File, offset: u64, len: usize) -> io::Result<Reading> {
    let mut chunk = Chunk::new(len);
    let mut filled = 0;
    while filled < len {
        let rest = chunk.0.get_mut(filled..).unwrap_or_default();
        let at = offset + filled as u64;
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(rest)], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return Err(shorter()),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Reading::Blocking(Blocked { chunk, filled, offset })),
            // The file system can't tell. There are more workers than cores, because some of them wait here.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return Blocked { chunk, filled, offset }.finish(file).map(Reading::Done);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Reading::Done(Bytes::from_owner(chunk)))
}

/// Returns whether a part of a file is probably in the page cache: its first and last bytes are.
pub(crate) fn is_at_hand(file: &File, part: &Range<u64>) -> bool {
    let is_read = |at: u64| {
        let byte = &mut [0];
        let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(byte)], at, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count > 0)
    };
    part.start < part.end && is_read(part.end - 1) && is_read(part.start)
}

impl Blocked {
    /// Reads the rest; it may wait for the disk.
    pub(crate) fn finish(mut self, file: &File) -> io::Result<Bytes> {
        while self.filled < self.chunk.0.len() {
            let rest = self.chunk.0.get_mut(self.filled..).unwrap_or_default();
            match rustix::io::pread(file, rest, self.offset + self.filled as u64) {
                Ok(0) => return Err(shorter()),
                Ok(count) => self.filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Bytes::from_owner(self.chunk))
    }
}

/// The length was sent already; only closing the connection shows that it isn't met.
fn shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")
}
