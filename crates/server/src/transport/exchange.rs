//! Defines the state that a connection, its requests and its responses share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::{Transport, chunk};

/// State of a connection.
pub(crate) struct Exchange {
    pub(crate) transport: Arc<Transport>,
    pub(crate) client: SocketAddr,
    /// True if the connection ends with the current response.
    last: AtomicBool,
    /// True while the response is a stream without an end, which ends when the client sends or closes.
    streams: AtomicBool,
    /// Time at which the current response of an HTTP/1 connection must be sent.
    due: Mutex<Option<Instant>>,
    /// Responses in progress of an HTTP/2 connection, with the time of the next expected progress.
    open: watch::Sender<Vec<(u64, Option<Instant>)>>,
    next: AtomicU64,
    /// Permits for chunks of these while memory is scarce.
    pub(crate) chunks: Arc<Semaphore>,
}

impl Exchange {
    pub(crate) fn new(transport: Arc<Transport>, client: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            transport,
            client,
            last: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            due: Mutex::new(None),
            open: watch::Sender::new(Vec::new()),
            next: AtomicU64::new(0),
            chunks: Arc::new(Semaphore::new(chunk::SCARCE_CHUNKS)),
        })
    }

    /// Ends the connection after the current response.
    pub(crate) fn end(&self) {
        self.last.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_last(&self) -> bool {
        self.last.load(Ordering::Relaxed)
    }

    /// Marks the response as a stream without an end.
    pub(crate) fn begin_stream(&self) {
        self.streams.store(true, Ordering::Relaxed);
    }

    pub(crate) fn streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the longest time for sending this many bytes.
    pub(crate) fn patience(&self, len: u64) -> Duration {
        let limits = &self.transport.limits;
        limits.stall.saturating_add(Duration::from_secs(len / limits.slowest.max(1)))
    }

    /// Sets the time limit of the current response of an HTTP/1 connection; `None` for a stream without an end.
    pub(crate) fn set_due(&self, len: Option<u64>) {
        *self.due.lock() = len.and_then(|len| Instant::now().checked_add(self.patience(len)));
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        *self.due.lock()
    }

    /// Registers a response in progress of an HTTP/2 connection.
    pub(crate) fn open(self: &Arc<Self>) -> OpenStream {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.send_modify(|open| open.push((number, None)));
        OpenStream { exchange: self.clone(), number }
    }

    /// Returns the responses in progress, for waiting until they change.
    pub(crate) fn open_streams(&self) -> watch::Receiver<Vec<(u64, Option<Instant>)>> {
        self.open.subscribe()
    }
}

/// A response in progress of an HTTP/2 connection; it ends on drop.
pub(crate) struct OpenStream {
    exchange: Arc<Exchange>,
    number: u64,
}

impl OpenStream {
    /// Sets the time until the client must have taken the next `len` bytes; `None` for a stream without an end.
    pub(crate) fn progress(&self, len: Option<u64>) {
        let due = len.and_then(|len| Instant::now().checked_add(self.exchange.patience(len)));
        self.exchange.open.send_if_modified(|open| {
            if let Some(entry) = open.iter_mut().find(|entry| entry.0 == self.number) {
                entry.1 = due;
            }
            // Waiting is for the number of responses; deadlines are read at intervals.
            false
        });
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.exchange.open.send_modify(|open| open.retain(|entry| entry.0 != self.number));
    }
}
