//! Bodies of requests, which have to arrive at a least speed.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Error of a body: the client is too slow, or gone.
pub(crate) type UploadError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request. It fails if the client sends nothing for too long, or takes too long in all.
pub(crate) struct Upload {
    body: Incoming,
    /// Longest pause of the client.
    pause_max: Duration,
    /// Time at which all of the body must be there.
    due: Option<Instant>,
    /// Set while the client sends nothing.
    paused: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// Limits the pauses of a client, and the time that it takes in all.
    pub(crate) fn new(body: Incoming, pause_max: Duration, longest: Duration) -> Self {
        Self { body, pause_max, due: Instant::now().checked_add(longest), paused: None }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if this.paused.take().is_some() && this.due.is_some_and(|due| due <= Instant::now()) {
                return Poll::Ready(Some(Err("the client sends its request too slowly".into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let (pause_max, due) = (this.pause_max, this.due);
        let paused = this.paused.get_or_insert_with(|| {
            let stall = Instant::now() + pause_max;
            Box::pin(sleep_until(due.map_or(stall, |due| due.min(stall))))
        });
        ready!(paused.as_mut().poll(cx));
        Poll::Ready(Some(Err("the client stopped sending its request".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
