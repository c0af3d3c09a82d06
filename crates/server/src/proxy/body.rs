//! Bodies of the proxy's responses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::objects::Object;

/// Number of bytes read from a file at once, by the thread that sends them: they are mostly in the page cache.
const PIECE: u64 = 256 << 10;

/// Body of a response.
#[derive(Debug)]
pub(crate) enum ProxyBody {
    Bytes(Bytes),
    File { file: Arc<File>, at: u64, end: u64 },
    /// Events, until either side closes.
    Stream(mpsc::Receiver<Bytes>),
}

impl ProxyBody {
    pub(crate) fn empty() -> Self {
        Self::Bytes(Bytes::new())
    }

    /// Returns the bytes from `start` to `end` of an object.
    pub(crate) fn part(object: Object, start: u64, end: u64) -> Self {
        match object {
            Object::Bytes(bytes) => {
                let at = |offset: u64| usize::try_from(offset).map_or(bytes.len(), |at| at.min(bytes.len()));
                Self::Bytes(bytes.slice(at(start)..at(end)))
            }
            Object::File(file, len) => Self::File { file, at: start.min(len), end: end.min(len) },
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::File { at, end, .. } if at == end => Poll::Ready(None),
            Self::File { file, at, end } => {
                let len = PIECE.min(*end - *at);
                let mut piece = vec![0; usize::try_from(len).unwrap_or(0)];
                // A file that became shorter breaks the connection, which shows the client that bytes are missing.
                let read = file.read_exact_at(&mut piece, *at);
                *at += len;
                Poll::Ready(Some(read.map(|()| Frame::data(piece.into()))))
            }
            Self::Stream(events) => events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::File { at, end, .. } => at == end,
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::File { at, end, .. } => SizeHint::with_exact(end - at),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
