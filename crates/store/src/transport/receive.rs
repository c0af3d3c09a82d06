//! Receiver of a body: memory, or a spool file if it is large.

use std::io;
use std::sync::Arc;

use crate::error::Cause;
use crate::memory_budget::Share;
use crate::transport::relay::Relay;
use crate::transport::source::{MEMORY_MAX, Spool, SpoolFile, Stored, spooling_failed};

/// Step in bytes by which a buffer grows if the server announces no length, or a larger one.
const STEP: usize = 64 << 10;
/// Number of bytes collected for one write to a spool file.
const BATCH: usize = 1 << 20;

/// Receiver of one body.
pub struct Receiver {
    limit: u64,
    step: usize,
    len: u64,
    bytes: Vec<u8>,
    share: Share,
    spool: Option<Arc<dyn Spool>>,
    file: Option<SpoolFile>,
    relay: Option<Relaying>,
}

/// Reader of the bytes, in place of memory and spool.
struct Relaying {
    relay: Arc<Relay>,
    announced: Option<u64>,
    is_begun: bool,
    /// True if the reader was waited for since this was last asked.
    has_waited: bool,
}

impl Receiver {
    /// Creates a receiver for a body of at most `limit` bytes; `announced` is the length that the server sent.
    pub fn new(limit: u64, announced: Option<u64>, share: Share, spool: Option<Arc<dyn Spool>>) -> Self {
        let step = announced.and_then(|len| usize::try_from(len).ok()).map_or(STEP, |len| len.min(STEP));
        Self { limit, step, len: 0, bytes: Vec::new(), share, spool, file: None, relay: None }
    }

    /// Passes the bytes of this body on to a reader and keeps none.
    pub fn relayed(mut self, relay: Option<Arc<Relay>>, announced: Option<u64>) -> Self {
        self.relay = relay.map(|relay| Relaying { relay, announced, is_begun: false, has_waited: false });
        self
    }

    /// Returns true if the reader of a relayed body was waited for since the last call.
    pub(crate) fn has_waited(&mut self) -> bool {
        self.relay.as_mut().is_some_and(|relay| std::mem::take(&mut relay.has_waited))
    }

    /// Returns the number of received bytes.
    pub fn received(&self) -> u64 {
        self.len
    }

    /// Stores the next bytes.
    pub async fn take(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.len += bytes.len() as u64;
        if self.len > self.limit {
            return Err(Cause::TooLarge { limit: self.limit });
        }
        if let Some(relay) = &mut self.relay {
            return relay.take(bytes).await;
        }
        if self.file.is_none() {
            self.make_room(bytes.len())?;
        }
        self.bytes.extend_from_slice(bytes);
        if self.file.is_some() && self.bytes.len() >= BATCH {
            self.flush().await?;
        }
        Ok(())
    }

    /// Grows the buffer of a body in memory, or switches to a spool file.
    fn make_room(&mut self, more: usize) -> Result<(), Cause> {
        let room = self.bytes.capacity() - self.bytes.len();
        if room >= more {
            return Ok(());
        }
        // Doubling keeps copying cheap; most bodies are small, and no larger than announced.
        let grow = more.max(self.bytes.capacity()).max(self.step);
        let small = self.len <= MEMORY_MAX && self.share.grow(grow as u64);
        match &self.spool {
            Some(spool) if !small => {
                self.file = Some(SpoolFile::begin(spool)?);
            }
            // Without a spool the limit of the request bounds it.
            _ => self.bytes.reserve_exact(grow),
        }
        Ok(())
    }

    /// Writes collected bytes on another thread: the disk must not block the network.
    async fn flush(&mut self) -> Result<(), Cause> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let bytes = std::mem::take(&mut self.bytes);
        let writing = tokio::task::spawn_blocking(move || file.append(&bytes).map(|()| file)).await;
        self.file = Some(writing.map_err(|_| cancelled())??);
        Ok(())
    }

    /// Ends the body.
    pub async fn finish(mut self) -> Result<Stored, Cause> {
        if let Some(mut relay) = self.relay.take() {
            relay.begin().await?;
            relay.relay.finish().await?;
        }
        self.flush().await?;
        match self.file.take() {
            Some(file) => Ok(Stored::spooled(file, self.len)),
            None => Ok(Stored::in_shared_memory(self.bytes, Some(self.share))),
        }
    }
}

impl Relaying {
    async fn begin(&mut self) -> Result<(), Cause> {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.relay.begin(self.announced).await?;
        }
        Ok(())
    }

    async fn take(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.begin().await?;
        self.has_waited |= self.relay.take(bytes).await?;
        Ok(())
    }
}

fn cancelled() -> Cause {
    spooling_failed(io::Error::other("the writing task was cancelled"))
}
