//! Lends encoders: as many as there are threads for the processor, however many threads wait for the storage.

use crossbeam_channel::{Receiver, Sender, bounded};
use esker_repository::{Encoder, RepositoryError, Settings};

/// Encoders that no thread uses.
pub(super) struct Encoders {
    give: Sender<Tool>,
    idle: Receiver<Tool>,
}

/// An encoder and its room.
type Tool = (Encoder, Vec<u8>);

/// A lent encoder, given back when dropped.
pub(super) struct Lent<'e> {
    encoders: &'e Encoders,
    tool: Option<Tool>,
}

impl Encoders {
    pub(super) fn new(count: usize, settings: &Settings) -> Result<Self, RepositoryError> {
        let (give, idle) = bounded(count);
        for _ in 0..count {
            // There is room for all of them.
            let _ = give.send((Encoder::new(settings.compression, settings.deflate)?, Vec::new()));
        }
        Ok(Self { give, idle })
    }

    /// Waits for an encoder.
    pub(super) fn lend(&self) -> Lent<'_> {
        // Both ends live as long as `self`.
        Lent { encoders: self, tool: self.idle.recv().ok() }
    }
}

impl Lent<'_> {
    /// Returns the stored form of a piece.
    pub(super) fn encode<'a>(&'a mut self, plain: &'a [u8]) -> Result<&'a [u8], RepositoryError> {
        let Some((encoder, room)) = &mut self.tool else { return Err(RepositoryError::Interrupted) };
        encoder.encode(plain, room)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.tool.take().into_iter().for_each(|tool| drop(self.encoders.give.send(tool)));
    }
}
