//! Worker threads, which compress blocks.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::super::encoder::Encoder;
use super::{PipelineContext, WriteError};

/// A block to compress.
pub(super) struct Job {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) range: Range<usize>,
    /// True if the block need not be stored if it is all zeros.
    pub(super) may_be_hole: bool,
    pub(super) reply: Sender<PackedBlock>,
}

/// A block in the form in which it will be stored.
pub(super) enum PackedBlock {
    Hole,
    /// An uncompressed block: compression would save nothing.
    Plain(Arc<Vec<u8>>, Range<usize>),
    Compressed(Vec<u8>),
}

/// Compresses blocks until there are no more jobs.
pub(super) fn work(shared: PipelineContext<'_>, to_do: &Receiver<Job>) -> Result<(), WriteError> {
    let mut encoder = Encoder::new(shared.options.compression, shared.options.block_size)?;
    for Job { bytes, range, may_be_hole, reply } in to_do {
        if shared.run.is_over() {
            continue;
        }
        let plain = bytes.get(range.clone()).unwrap_or_default();
        let packed = if may_be_hole && is_zero(plain) {
            PackedBlock::Hole
        } else {
            match encoder.encode(plain)? {
                Some(stored) => PackedBlock::Compressed(stored.to_vec()),
                None => PackedBlock::Plain(bytes.clone(), range),
            }
        };
        // After an error the receiver may be gone.
        let _ = reply.send(packed);
    }
    Ok(())
}

/// Returns true if all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn a_single_nonzero_byte_is_found() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for at in 0..len {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{at} of {len}");
                bytes[at] = 0;
            }
        }
    }
}
