//! Reads pieces of files for bodies, within a bound of memory.
//!
//! A piece in the page cache is read at once by the worker that sends it. If the disk has to be read, a blocking
//! thread does it, so a slow disk holds no worker.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of bytes read at once.
pub(crate) const CHUNK_MAX: u64 = 256 * 1024;
/// Maximum number of bytes read at once while much memory is in use.
const CHUNK_SCARCE: u64 = 16 * 1024;
/// Number of chunks of a connection of HTTP/2, which has many responses in progress, while much memory is in use.
pub(crate) const SCARCE_CHUNKS: usize = 4;
/// Number of bytes in chunks from which on memory is scarce.
const PLENTY: usize = 64 << 20;

/// Number of bytes in chunks of this process that are not sent yet.
///
/// It is at most [`PLENTY`] plus [`CHUNK_MAX`] for each worker, plus [`CHUNK_SCARCE`] for each connection, or
/// [`SCARCE_CHUNKS`] times that for one of HTTP/2.
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
    Bytes::from_owner(Chunk::new(bytes, None))
}

/// A chunk, which counts until it is sent.
struct Chunk {
    bytes: Vec<u8>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Chunk {
    fn new(bytes: Vec<u8>, turn: Option<OwnedSemaphorePermit>) -> Self {
        HELD.fetch_add(bytes.len(), Ordering::Relaxed);
        Self { bytes, _turn: turn }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Turns of a response whose connection has others in progress: while memory is scarce, few of them have a chunk.
#[derive(Default)]
pub(crate) struct Turns {
    permits: Option<Arc<Semaphore>>,
    waiting: Option<Waiting>,
}

type Waiting = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

impl Turns {
    /// Returns the turns of a response of a connection with these permits.
    pub(crate) fn of(permits: &Arc<Semaphore>) -> Self {
        Self { permits: Some(permits.clone()), waiting: None }
    }

    /// Waits for the turn of the next chunk, which holds the permit; there is none while there is enough memory.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<OwnedSemaphorePermit>> {
        let Some(permits) = &self.permits else { return Poll::Ready(None) };
        if self.waiting.is_none() && !is_scarce() {
            return Poll::Ready(None);
        }
        let wait = || -> Waiting {
            let permits = permits.clone();
            // It is never closed.
            Box::pin(async move { permits.acquire_owned().await.ok() })
        };
        let turn = ready!(self.waiting.get_or_insert_with(wait).as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(turn)
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
pub(crate) fn read(
    file: &File,
    offset: u64,
    len: usize,
    turn: Option<OwnedSemaphorePermit>,
) -> io::Result<Reading> {
    let mut chunk = Chunk::new(vec![0; len], turn);
    let mut filled = 0;
    while filled < len {
        let rest = chunk.bytes.get_mut(filled..).unwrap_or_default();
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
        while self.filled < self.chunk.bytes.len() {
            let rest = self.chunk.bytes.get_mut(self.filled..).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Its clients may open all windows at once, and read nothing.
    #[test]
    fn responses_of_one_connection_take_turns_while_memory_is_scarce() {
        let mut cx = Context::from_waker(Waker::noop());
        let connection = || Arc::new(Semaphore::new(SCARCE_CHUNKS));
        let (one, other) = (connection(), connection());
        let mut turns: Vec<_> = (0..100).map(|_| Turns::of(&one)).collect();
        let held = hold(vec![0; PLENTY]);
        let mut taken: Vec<_> = turns
            .iter_mut()
            .filter_map(|turns| match turns.poll(&mut cx) {
                Poll::Ready(turn) => Some(Chunk::new(vec![0; 1], Some(turn.expect("a permit")))),
                Poll::Pending => None,
            })
            .collect();
        assert_eq!(taken.len(), SCARCE_CHUNKS);
        assert!(matches!(Turns::of(&other).poll(&mut cx), Poll::Ready(Some(_))), "others don't wait");
        taken.pop();
        let next = turns.iter_mut().filter(|turns| turns.waiting.is_some());
        let ready = next.filter_map(|turns| match turns.poll(&mut cx) {
            Poll::Ready(turn) => turn,
            Poll::Pending => None,
        });
        assert_eq!(ready.take(2).collect::<Vec<_>>().len(), 1, "a chunk that is sent makes room for one");
        drop(held);
    }
}
