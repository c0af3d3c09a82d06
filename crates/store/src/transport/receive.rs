//! Receiver of a body: memory, or a spool file if it is large.

use std::io;
use std::sync::Arc;

use crate::error::Cause;
use crate::memory_budget::Share;
use crate::transport::source::{MEMORY_MAX, Spool, SpoolFile, Stored, spooling_failed};

/// Step in bytes by which a buffer grows if the server announces no length, or a larger one.
const STEP: usize = 64 << 10;
/// Number of bytes collected for one write to a spool file.
const BATCH: usize = 1 << 20;

/// Receiver of one body.
pub(crate) struct Receiver {
    limit: u64,
    step: usize,
    len: u64,
    bytes: Vec<u8>,
    share: Share,
    spool: Option<Arc<dyn Spool>>,
    file: Option<SpoolFile>,
}

impl Receiver {
    /// Creates a receiver for a body of at most `limit` bytes; `announced` is the length that the server sent.
    pub(crate) fn new(
        limit: u64,
        announced: Option<u64>,
        share: Share,
        spool: Option<Arc<dyn Spool>>,
    ) -> Self {
        let step = announced.and_then(|len| usize::try_from(len).ok()).map_or(STEP, |len| len.min(STEP));
        Self { limit, step, len: 0, bytes: Vec::new(), share, spool, file: None }
    }

    /// Returns the number of received bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Stores the next bytes.
    pub(crate) async fn take(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        self.len += bytes.len() as u64;
        if self.len > self.limit {
            return Err(Cause::TooLarge { limit: self.limit });
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
    pub(crate) async fn finish(mut self) -> Result<Stored, Cause> {
        self.flush().await?;
        match self.file.take() {
            Some(file) => Ok(Stored::spooled(file, self.len)),
            None => Ok(Stored::in_shared_memory(self.bytes, Some(self.share))),
        }
    }
}

fn cancelled() -> Cause {
    spooling_failed(io::Error::other("the writing task was cancelled"))
}
