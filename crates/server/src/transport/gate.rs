//! The side of a connection that hyper reads and writes.
//!
//! hyper accepts some requests that servers and proxies understand differently. So a head is checked here before hyper
//! sees it, and hyper gets one head at a time. When it wants the next one and none has arrived, it reads the end of the
//! connection, flushes, and gives the socket back.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::ReadBufCursor;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::exchange::Exchange;
use super::request::{self, Checked, PREFACE, PlainGet, Refusal};
use super::wire::Wire;

/// Maximum number of bytes in one receive. A request usually has a few hundred.
const RECEIVE_MAX: usize = 2048;
/// The same of the body of a request.
const BODY_RECEIVE_MAX: usize = 16 * 1024;
/// Maximum number of bytes read and dropped before closing, so that the client still receives the response.
const LINGER_BYTES_MAX: u64 = 256 * 1024;
/// Time limit for reading these bytes.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Next input of a client.
#[derive(Debug)]
pub(crate) enum Next {
    /// A complete request head of HTTP/1, which hyper reads next.
    Head,
    /// The beginning of an HTTP/2 connection.
    Preface,
    Refused(Refusal),
    /// The client has disconnected, or the server expects no more requests.
    End,
}

/// The socket of a client, and what it sent beyond the current request.
pub(crate) struct Gate {
    wire: Wire,
    /// Received bytes that hyper has not read.
    received: Vec<u8>,
    /// Number of these bytes that hyper may read.
    passes: usize,
    /// Number of bytes of the request's body that hyper has not read.
    body: u64,
    /// True once the connection speaks HTTP/2: hyper reads everything.
    is_open: bool,
    exchange: Arc<Exchange>,
    /// True if everything that hyper wrote is flushed.
    is_flushed: bool,
    /// Woken by the next flush.
    unflushed: Option<Waker>,
    /// Deadline for the client to take bytes, while it takes none.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Deadline for a client of HTTP/2 to close too, and the number of bytes that are still read from it.
    parting: Option<(Pin<Box<Sleep>>, u64)>,
}

impl Gate {
    pub(crate) fn new(wire: Wire, exchange: Arc<Exchange>) -> Self {
        Self {
            wire,
            received: Vec::new(),
            passes: 0,
            body: 0,
            is_open: false,
            exchange,
            is_flushed: true,
            unflushed: None,
            stalled: None,
            parting: None,
        }
    }

    /// Waits for the next request: long for its first byte, not so long for the rest. `has_slot` tells whether the
    /// connection may be evicted while it is idle.
    pub(crate) async fn next(&mut self, has_slot: bool) -> Next {
        let transport = self.exchange.transport.clone();
        if self.received.is_empty() {
            // An idle client costs a descriptor but no memory.
            self.received = Vec::new();
            let received = tokio::select! {
                // A client with a request is no longer idle.
                biased;
                received = timeout(transport.limits.idle, self.receive()) => received.unwrap_or(Ok(0)),
                () = transport.unwanted(has_slot) => Ok(0),
            };
            if !matches!(received, Ok(1..)) {
                return Next::End;
            }
        }
        timeout(transport.limits.head, self.head()).await.unwrap_or(Next::End)
    }

    async fn head(&mut self) -> Next {
        loop {
            if let Some(next) = self.check() {
                return next;
            }
            if !matches!(self.receive().await, Ok(1..)) {
                return Next::End;
            }
        }
    }

    /// Returns what the received bytes begin with; `None` if that is incomplete.
    fn check(&mut self) -> Option<Next> {
        match request::check(&self.received, self.exchange.transport.handler.body_max()) {
            Checked::Partial => None,
            Checked::Whole(len, body) => {
                (self.passes, self.body) = (len, body);
                Some(Next::Head)
            }
            Checked::Preface => {
                self.passes = PREFACE.len();
                self.is_open = true;
                Some(Next::Preface)
            }
            Checked::Refused(refusal) => Some(Next::Refused(refusal)),
        }
    }

    async fn receive(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [0; RECEIVE_MAX];
        let mut buffer = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.wire).poll_read(cx, &mut buffer))?;
        self.received.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Returns the request that hyper would read next if it is plain.
    pub(crate) fn plain(&self) -> Option<PlainGet<'_>> {
        request::plain(self.received.get(..self.passes)?)
    }

    /// Removes the request that hyper would read next, because it is answered without hyper.
    pub(crate) fn consume(&mut self) {
        self.received.drain(..self.passes);
        self.passes = 0;
    }

    /// Writes a part of a response without hyper, with the same deadlines.
    pub(crate) async fn write(&mut self, mut head: &[u8], mut body: &[u8]) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            while !head.is_empty() || !body.is_empty() {
                let parts = [IoSlice::new(head), IoSlice::new(body)];
                let gate = Pin::new(&mut *self);
                let written = ready!(hyper::rt::Write::poll_write_vectored(gate, cx, &parts))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                let of_head = written.min(head.len());
                head = head.get(of_head..).unwrap_or_default();
                body = body.get(written - of_head..).unwrap_or_default();
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Returns true if the kernel can send files to the client.
    pub(crate) fn takes_files(&self) -> bool {
        matches!(self.wire, Wire::Plain(_))
    }

    /// Writes the head of a response whose body follows at once, so that both leave together.
    pub(crate) async fn write_head(&mut self, head: &[u8]) -> io::Result<()> {
        let sent = match &self.wire {
            Wire::Plain(stream) => {
                let send = || rustix::net::send(stream, head, SendFlags::MORE).map_err(io::Error::from);
                match stream.try_io(Interest::WRITABLE, send) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    sent => sent?,
                }
            }
            Wire::Secure(_) => 0,
        };
        self.write(head.get(sent..).unwrap_or_default(), &[]).await
    }

    /// Has the kernel send a part of a file, with the same deadlines as other parts of a response.
    pub(crate) async fn send_file(&mut self, file: &File, part: &Range<u64>) -> io::Result<()> {
        let mut at = part.start;
        std::future::poll_fn(|cx| {
            while at < part.end {
                let Wire::Plain(stream) = &self.wire else {
                    return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
                };
                let count = usize::try_from(part.end - at).unwrap_or(usize::MAX);
                let sent = match stream.poll_write_ready(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => {
                        let send = || {
                            rustix::fs::sendfile(stream, file, Some(&mut at), count).map_err(io::Error::from)
                        };
                        match stream.try_io(Interest::WRITABLE, send) {
                            // It is asked for again, and then it is pending.
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                            sent => Poll::Ready(sent),
                        }
                    }
                };
                if ready!(self.pace(cx, sent))? == 0 {
                    // The length was sent already.
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Returns true if a part of the request was not read; the next one begins somewhere behind it.
    pub(crate) fn has_body(&self) -> bool {
        self.body > 0
    }

    /// Hands hyper the next bytes of the request's body.
    fn read_body(&mut self, cx: &mut Context<'_>, mut buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let room = usize::try_from(self.body).unwrap_or(usize::MAX).min(buffer.remaining());
        if !self.received.is_empty() {
            self.passes = self.received.len().min(room);
            self.body -= self.passes as u64;
            self.hand_over(buffer);
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [0; BODY_RECEIVE_MAX];
        let mut received = ReadBuf::new(bytes.get_mut(..room.min(BODY_RECEIVE_MAX)).unwrap_or_default());
        ready!(Pin::new(&mut self.wire).poll_read(cx, &mut received))?;
        self.body -= received.filled().len() as u64;
        buffer.put_slice(received.filled());
        Poll::Ready(Ok(()))
    }

    /// Sends what TLS still holds.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| hyper::rt::Write::poll_flush(Pin::new(&mut *self), cx)).await
    }

    /// Sends a whole response without hyper; fails if the client takes nothing for too long.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sending = async {
            self.wire.write_all(bytes).await?;
            self.wire.flush().await
        };
        timeout(self.exchange.transport.limits.stall, sending).await?
    }

    /// Closes the connection. Closing it with bytes unread would make the kernel reset it, and the client might
    /// lose the last response.
    pub(crate) async fn part(mut self) {
        let parting = async {
            self.wire.shutdown().await?;
            let mut rest = self.wire.take(LINGER_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
        };
        // The client is gone.
        let _ = timeout(LINGER_MAX, parting).await;
    }

    /// Hands hyper at most `buffer` of the bytes that it may read.
    fn hand_over(&mut self, mut buffer: ReadBufCursor<'_>) {
        let count = self.passes.min(buffer.remaining());
        buffer.put_slice(self.received.get(..count).unwrap_or_default());
        self.received.drain(..count);
        self.passes -= count;
    }

    /// Fails if the client has taken no byte for too long, or the whole response takes too long.
    fn pace<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.stalled.take().is_some() && self.exchange.due().is_some_and(|due| due <= Instant::now()) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            return written;
        }
        let exchange = &self.exchange;
        let stalled = self.stalled.get_or_insert_with(|| {
            let stall = Instant::now() + exchange.transport.limits.stall;
            Box::pin(sleep_until(exchange.due().map_or(stall, |due| due.min(stall))))
        });
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Fails if the client of a stream without an end has sent something or closed: that is the end of the stream.
    fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut bytes = [0; 1];
        match Pin::new(&mut self.wire).poll_read(cx, &mut ReadBuf::new(&mut bytes)) {
            Poll::Ready(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl hyper::rt::Read for Gate {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.passes > 0 {
            this.hand_over(buffer);
            return Poll::Ready(Ok(()));
        }
        if this.is_open {
            if !this.received.is_empty() {
                this.passes = this.received.len();
                this.hand_over(buffer);
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; RECEIVE_MAX];
            let room = buffer.remaining().min(RECEIVE_MAX);
            let mut received = ReadBuf::new(bytes.get_mut(..room).unwrap_or_default());
            ready!(Pin::new(&mut this.wire).poll_read(cx, &mut received))?;
            buffer.put_slice(received.filled());
            return Poll::Ready(Ok(()));
        }
        if this.body > 0 {
            return this.read_body(cx, buffer);
        }
        // The next request of a client that doesn't wait for responses.
        if !this.exchange.is_last() && matches!(this.check(), Some(Next::Head)) {
            this.hand_over(buffer);
            return Poll::Ready(Ok(()));
        }
        if !this.is_flushed {
            this.unflushed = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Gate {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed = false;
        let written = Pin::new(&mut this.wire).poll_write(cx, bytes);
        this.pace(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed = false;
        let written = Pin::new(&mut this.wire).poll_write_vectored(cx, bytes);
        this.pace(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.wire).poll_flush(cx);
        ready!(this.pace(cx, flushed))?;
        this.is_flushed = true;
        if let Some(waker) = this.unflushed.take() {
            waker.wake();
        }
        if this.exchange.streams() && !this.is_open {
            this.watch(cx)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Closes a connection of HTTP/2. The client may still confirm what it received; see [`Gate::part`].
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.parting.is_none() {
            ready!(Pin::new(&mut this.wire).poll_shutdown(cx))?;
        }
        let (deadline, left) = this
            .parting
            .get_or_insert_with(|| (Box::pin(sleep_until(Instant::now() + LINGER_MAX)), LINGER_BYTES_MAX));
        let mut bytes = [0; RECEIVE_MAX];
        while *left > 0 && deadline.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut this.wire).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len() as u64);
                }
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
