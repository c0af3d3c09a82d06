//! Streaming decompression.

use std::io;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};

use super::{Compression, DecompressError};
use crate::canary;

/// Maximum number of bytes passed to the sink at once.
const PIECE: usize = 64 * 1024;

/// Binary logarithm of the largest zstd window that is allocated (128 MiB); larger ones require `--long` at
/// compression.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Binary logarithm of a window (8 MiB) that small objects may have, too: a compressor that doesn't know the
/// length in advance states the window of its level, and levels up to 19 use at most this one.
const ZSTD_WINDOW_LOG_MIN: u32 = 23;

/// Decompresses stored bytes as they arrive.
pub struct Inflater {
    state: State,
    piece: Vec<u8>,
    produced: u64,
    limit: u64,
}

enum State {
    Stored,
    Zlib { stream: Box<flate2::Decompress>, ended: bool },
    Zstd { stream: Box<Decoder<'static>>, at_frame_end: bool },
    Unusable(String),
}

/// Result of one step of a decompressor.
struct Step {
    consumed: usize,
    produced: usize,
}

impl Inflater {
    /// Starts an object of at most `limit` decompressed bytes.
    pub fn new(compression: Compression, limit: u64) -> Self {
        let state = match compression {
            Compression::Stored => State::Stored,
            Compression::Zlib => {
                State::Zlib { stream: Box::new(flate2::Decompress::new(true)), ended: false }
            }
            Compression::Zstd => match zstd_decoder(limit) {
                Ok(stream) => State::Zstd { stream: Box::new(stream), at_frame_end: false },
                Err(error) => State::Unusable(error.to_string()),
            },
        };
        let piece = if compression == Compression::Stored { Vec::new() } else { vec![0; PIECE] };
        Self { state, piece, produced: 0, limit }
    }

    /// Processes the next stored bytes and passes decompressed bytes to `sink`.
    pub fn write(
        &mut self,
        stored: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), DecompressError> {
        if matches!(self.state, State::Stored) {
            self.count(stored.len())?;
            return sink(stored).map_err(DecompressError::Sink);
        }
        let mut rest = stored;
        loop {
            let step = self.state.step(rest, &mut self.piece)?;
            rest = rest.get(step.consumed..).unwrap_or_default();
            self.count(step.produced)?;
            if step.produced > 0 {
                sink(self.piece.get(..step.produced).unwrap_or_default()).map_err(DecompressError::Sink)?;
            }
            // If the output piece is full, more output may be pending, whatever is left of the input.
            let may_have_more = step.produced == self.piece.len();
            let stuck = step.consumed == 0 && step.produced == 0;
            if stuck || (rest.is_empty() && !may_have_more) {
                return Ok(());
            }
        }
    }

    /// Ends the object; returns its decompressed length in bytes.
    pub fn finish(self) -> Result<u64, DecompressError> {
        match self.state {
            State::Zlib { ended: false, .. } => Err(DecompressError::Truncated(Compression::Zlib)),
            State::Zstd { at_frame_end: false, .. } => Err(DecompressError::Truncated(Compression::Zstd)),
            State::Unusable(reason) => {
                Err(DecompressError::Damaged { compression: Compression::Zstd, reason })
            }
            _ => Ok(self.produced),
        }
    }

    fn count(&mut self, produced: usize) -> Result<(), DecompressError> {
        self.produced = self.produced.saturating_add(produced as u64);
        if self.produced > self.limit && !canary::skipped("inflated-length") {
            return Err(DecompressError::TooLarge { limit: self.limit });
        }
        Ok(())
    }
}

impl State {
    fn step(&mut self, stored: &[u8], piece: &mut [u8]) -> Result<Step, DecompressError> {
        match self {
            Self::Stored | Self::Zlib { ended: true, .. } => Ok(Step { consumed: stored.len(), produced: 0 }),
            Self::Zlib { stream, ended } => {
                let (in_before, out_before) = (stream.total_in(), stream.total_out());
                let status = stream
                    .decompress(stored, piece, flate2::FlushDecompress::None)
                    .map_err(|error| damaged(Compression::Zlib, &error))?;
                *ended = status == flate2::Status::StreamEnd;
                Ok(Step {
                    consumed: length(stream.total_in() - in_before),
                    produced: length(stream.total_out() - out_before),
                })
            }
            Self::Zstd { stream, at_frame_end } => {
                let mut input = InBuffer::around(stored);
                let mut output = OutBuffer::around(piece);
                let hint = stream
                    .run(&mut input, &mut output)
                    .map_err(|error| damaged(Compression::Zstd, &error))?;
                let step = Step { consumed: input.pos(), produced: output.pos() };
                // Without progress the hint refers to a next frame, which need not exist.
                if step.consumed > 0 || step.produced > 0 {
                    *at_frame_end = hint == 0;
                }
                Ok(step)
            }
            Self::Unusable(reason) => {
                Err(DecompressError::Damaged { compression: Compression::Zstd, reason: reason.clone() })
            }
        }
    }
}

fn zstd_decoder(limit: u64) -> io::Result<Decoder<'static>> {
    let mut decoder = Decoder::new()?;
    let wanted = u64::BITS - limit.saturating_sub(1).leading_zeros();
    let window_log = wanted.clamp(ZSTD_WINDOW_LOG_MIN, ZSTD_WINDOW_LOG_MAX);
    decoder.set_parameter(DParameter::WindowLogMax(window_log))?;
    Ok(decoder)
}

fn damaged(compression: Compression, error: &dyn std::fmt::Display) -> DecompressError {
    DecompressError::Damaged { compression, reason: error.to_string() }
}

/// Converts the difference of two counters around one call, which is at most the length of that call's
/// buffers.
fn length(moved: u64) -> usize {
    usize::try_from(moved).unwrap_or(usize::MAX)
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").field("produced", &self.produced).field("limit", &self.limit).finish()
    }
}
