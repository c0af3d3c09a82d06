//! Sends bytes to a client: files go from the page cache to the socket without passing through us.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Duration;

use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::answer::{Answer, Piece};

/// Maximum number of bytes passed to the kernel at once, which a worker thread may have to read from a slow
/// disk. Reading them from a slow disk holds a worker thread, so not too many.
const SPAN_MAX: u64 = 256 * 1024;

/// Limits for slow clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Longest time without any progress.
    pub(crate) stall: Duration,
    /// Minimum rate over the whole response, in bytes a second, beyond the time of one stall.
    pub(crate) slowest: u64,
}

/// Sends head and body; gives the bytes sent of the body.
pub(crate) async fn send(stream: &TcpStream, head: &[u8], answer: &Answer, pace: Pace) -> io::Result<u64> {
    let len = answer.len();
    let whole = pace.stall.saturating_add(Duration::from_secs(len / pace.slowest.max(1)));
    let sending = async {
        bytes(stream, head, len > 0, pace.stall).await?;
        for (at, piece) in answer.body.iter().enumerate() {
            let more = at + 1 < answer.body.len();
            match (piece, &answer.file) {
                (Piece::Bytes(piece), _) => bytes(stream, piece, more, pace.stall).await?,
                (Piece::Span(span), Some(file)) => self::span(stream, file, span.clone(), pace).await?,
                (Piece::Span(_), None) => unreachable!("spans are made together with their file"),
            }
        }
        Ok(len)
    };
    timeout(whole, sending).await?
}

/// Sends bytes; fails if none can be sent for `stall`.
pub(crate) async fn bytes(
    stream: &TcpStream,
    mut rest: &[u8],
    more: bool,
    stall: Duration,
) -> io::Result<()> {
    // With more to come, the kernel waits to fill the packet.
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !rest.is_empty() {
        let sending = stream.async_io(Interest::WRITABLE, || Ok(rustix::net::send(stream, rest, flags)?));
        let sent = timeout(stall, sending).await??;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

async fn span(stream: &TcpStream, file: &File, span: Range<u64>, pace: Pace) -> io::Result<()> {
    let mut offset = span.start;
    while offset < span.end {
        let count = usize::try_from((span.end - offset).min(SPAN_MAX)).unwrap_or(usize::MAX);
        let mut next = offset;
        let sending = stream
            .async_io(Interest::WRITABLE, || Ok(rustix::fs::sendfile(stream, file, Some(&mut next), count)?));
        if timeout(pace.stall, sending).await?? == 0 {
            // The length was sent already; only closing the connection shows that it isn't met.
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        offset = next;
    }
    Ok(())
}
