//! Bodies of responses: pieces of memory and of a file, streams without an end, and pages.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use esker_store::RelayPart;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::chunk::{self, Reading, Turns};
use super::exchange::{Exchange, OpenStream};
use super::shares::Share;
use crate::access_log::Line;
use crate::dashboard::Answered;
use crate::metrics::Kind;

/// Error of a body: it ends the connection, because the length was sent already.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response.
pub(crate) struct Body {
    content: Content,
    /// Receives the end of the response.
    report: Option<Box<Reported>>,
}

enum Content {
    Empty,
    Pieces(Pieces),
    Stream(Option<Step>),
    Relayed(Relayed),
    Page(axum::body::Body),
}

/// Bytes that arrive while they are sent, the last ones only after they are verified.
pub(crate) struct Relayed {
    pub(crate) parts: mpsc::Receiver<RelayPart>,
    /// Number of bytes that are not sent yet, if the length is known.
    pub(crate) left: Option<u64>,
    pub(crate) is_whole: bool,
    /// Permit for the response, held until it is sent.
    pub(crate) _permit: (OwnedSemaphorePermit, Share),
}

/// The next part of a stream, and the step after it; `None` at the end.
pub(crate) struct Step(pub(crate) NextPart);

/// Future of the next part of a stream.
pub(crate) type NextPart = Pin<Box<dyn Future<Output = Option<(Bytes, Step)>> + Send>>;

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    Span(Range<u64>),
}

impl Piece {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Span(span) => span.end - span.start,
        }
    }
}

/// Bytes in memory and in a file.
pub(crate) struct Pieces {
    pub(crate) pieces: VecDeque<Piece>,
    pub(crate) file: Option<Arc<File>>,
    /// Permit for the memory of the response, held until it is sent.
    pub(crate) permit: Option<(OwnedSemaphorePermit, Share)>,
    /// A read that waits for the disk.
    pub(crate) reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Turns of this response among those of its connection.
    pub(crate) turns: Turns,
    /// Number of bytes that are not sent yet.
    pub(crate) left: u64,
}

/// A response in progress, to be counted at its end.
pub(crate) struct Report {
    exchange: Arc<Exchange>,
    stream: Option<OpenStream>,
    begun: Instant,
    line: Option<Box<Line>>,
    kind: Kind,
    /// Path of the request; none for a response that the dashboard doesn't count.
    path: Option<String>,
}

/// A response in progress, counted when this is dropped.
pub(crate) struct Reported {
    report: Option<Report>,
    status: u16,
    sent: u64,
    is_whole: bool,
}

impl Reported {
    pub(crate) fn new(report: Report, status: u16) -> Self {
        Self { report: Some(report), status, sent: 0, is_whole: false }
    }

    /// Counts bytes of the body that were sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Records that all of the response was sent.
    pub(crate) fn finish(mut self) {
        self.is_whole = true;
    }
}

impl Report {
    pub(crate) fn new(exchange: Arc<Exchange>, stream: Option<OpenStream>, line: Option<Box<Line>>) -> Self {
        Self { exchange, stream, begun: Instant::now(), line, kind: Kind::Refused, path: None }
    }

    /// Sets the kind of the response.
    pub(crate) fn of(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// Sets the path of the request.
    pub(crate) fn path(&mut self, path: String) {
        self.path = Some(path);
    }

    /// Counts the response.
    pub(crate) fn done(self, status: u16, sent: u64, is_whole: bool) {
        let took = self.begun.elapsed();
        self.exchange.transport.counters.answered(self.kind, status, is_whole.then_some(sent), took);
        if let Some(path) = &self.path {
            let answered = Answered { path, status, bytes: sent, took };
            self.exchange.transport.counters.traffic.record(&answered);
        }
        if let Some(line) = self.line {
            self.exchange.transport.counters.log(&line, status, sent, is_whole, took);
        }
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report.done(self.status, self.sent, self.is_whole);
        }
    }
}

impl Body {
    pub(crate) fn empty() -> Self {
        Content::Empty.into()
    }

    pub(crate) fn pieces(pieces: Pieces) -> Self {
        Content::Pieces(pieces).into()
    }

    pub(crate) fn stream(first: Step) -> Self {
        Content::Stream(Some(first)).into()
    }

    pub(crate) fn relayed(relayed: Relayed) -> Self {
        Content::Relayed(relayed).into()
    }

    pub(crate) fn page(body: axum::body::Body) -> Self {
        Content::Page(body).into()
    }

    /// Returns the same body, which holds this permit until it is dropped.
    pub(crate) fn holding(mut self, permit: (OwnedSemaphorePermit, Share)) -> Self {
        if let Content::Pieces(pieces) = &mut self.content {
            pieces.permit = Some(permit);
        }
        self
    }

    /// Returns the same body, whose end is counted.
    pub(crate) fn reported(mut self, mut report: Report, status: u16) -> Self {
        let is_whole = hyper::body::Body::is_end_stream(&self);
        let is_endless = matches!(self.content, Content::Stream(_));
        // The duration of a stream says nothing about the server.
        report.path = report.path.filter(|_| !is_endless);
        if let (Some(_), Content::Pieces(pieces)) = (&report.stream, &mut self.content) {
            pieces.turns = Turns::of(&report.exchange.chunks);
        }
        if let Some(stream) = &report.stream {
            stream.progress((!is_endless).then_some(chunk::CHUNK_MAX));
        }
        self.report = Some(Box::new(Reported { report: Some(report), status, sent: 0, is_whole }));
        self
    }
}

impl From<Content> for Body {
    fn from(content: Content) -> Self {
        Self { content, report: None }
    }
}

impl Relayed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            return Poll::Ready(match ready!(self.parts.poll_recv(cx)) {
                Some(RelayPart::Begin(_)) => continue,
                Some(RelayPart::Bytes(bytes)) => {
                    self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
                    Some(Ok(bytes))
                }
                Some(RelayPart::End) => {
                    self.is_whole = true;
                    None
                }
                None if self.is_whole => None,
                // The client sees that the connection ends before the last bytes.
                None => Some(Err("the servers did not deliver the rest".into())),
            });
        }
    }
}

impl Pieces {
    /// Returns the next part of the file, if that is what comes next, and not more than a chunk of it.
    pub(crate) fn next_part(&self) -> Option<(Arc<File>, Range<u64>)> {
        match (self.pieces.front(), &self.file, &self.reading) {
            (Some(Piece::Span(span)), Some(file), None) => {
                let end = span.end.min(span.start.saturating_add(chunk::CHUNK_MAX));
                Some((file.clone(), span.start..end))
            }
            _ => None,
        }
    }

    /// Leaves out this many bytes of the next part, because they were sent in another way.
    pub(crate) fn skip(&mut self, bytes: u64) {
        if let Some(Piece::Span(span)) = self.pieces.front_mut() {
            span.start = span.end.min(span.start.saturating_add(bytes));
            if span.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Returns the next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(reading) = &mut self.reading {
            let read = ready!(Pin::new(reading).poll(cx));
            self.reading = None;
            return Poll::Ready(Some(read.map_err(Into::into).and_then(|read| read.map_err(Into::into))));
        }
        let turn;
        let (offset, len) = match self.pieces.front_mut() {
            None => return Poll::Ready(None),
            Some(Piece::Bytes(bytes)) => {
                let bytes = std::mem::take(bytes);
                self.pieces.pop_front();
                return Poll::Ready(Some(Ok(bytes)));
            }
            Some(Piece::Span(span)) => {
                turn = ready!(self.turns.poll(cx));
                let limit = chunk::len_max();
                let (offset, len) = (span.start, (span.end - span.start).min(limit));
                span.start += len;
                if span.is_empty() {
                    self.pieces.pop_front();
                }
                (offset, usize::try_from(len).unwrap_or(usize::MAX))
            }
        };
        let Some(file) = &self.file else { unreachable!("spans are made together with their file") };
        match chunk::read(file, offset, len, turn) {
            Ok(Reading::Done(bytes)) => Poll::Ready(Some(Ok(bytes))),
            Ok(Reading::Blocking(blocked)) => {
                let file = file.clone();
                self.reading = Some(tokio::task::spawn_blocking(move || blocked.finish(&file)));
                self.poll(cx)
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = match &mut this.content {
            Content::Empty => None,
            Content::Pieces(pieces) => {
                let bytes = ready!(pieces.poll(cx));
                if let Some(Ok(bytes)) = &bytes {
                    pieces.left = pieces.left.saturating_sub(bytes.len() as u64);
                }
                bytes.map(|bytes| bytes.map(Frame::data))
            }
            Content::Stream(step) => match step {
                None => None,
                Some(Step(next)) => match ready!(next.as_mut().poll(cx)) {
                    None => {
                        *step = None;
                        None
                    }
                    Some((bytes, after)) => {
                        *step = Some(after);
                        Some(Ok(Frame::data(bytes)))
                    }
                },
            },
            Content::Relayed(relayed) => ready!(relayed.poll(cx)).map(|bytes| bytes.map(Frame::data)),
            Content::Page(page) => {
                ready!(Pin::new(page).poll_frame(cx)).map(|frame| frame.map_err(Into::into))
            }
        };
        let is_end = this.is_end_stream();
        if let Some(reported) = &mut this.report {
            if let Some(Ok(frame)) = &polled {
                let len = frame.data_ref().map_or(0, Bytes::len) as u64;
                reported.sent += len;
                if let Some(stream) = reported.report.as_ref().and_then(|report| report.stream.as_ref()) {
                    let is_endless = matches!(this.content, Content::Stream(_));
                    stream.progress((!is_endless).then_some(len));
                }
            }
            reported.is_whole = is_end || polled.is_none();
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Empty | Content::Stream(None) => true,
            Content::Pieces(pieces) => pieces.left == 0,
            Content::Stream(Some(_)) => false,
            Content::Relayed(relayed) => relayed.is_whole || relayed.left == Some(0),
            Content::Page(page) => page.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty => SizeHint::with_exact(0),
            Content::Pieces(pieces) => SizeHint::with_exact(pieces.left),
            Content::Stream(_) => SizeHint::default(),
            Content::Relayed(relayed) => relayed.left.map_or_else(SizeHint::default, SizeHint::with_exact),
            Content::Page(page) => page.size_hint(),
        }
    }
}
