//! An image whose bytes come in blocks of equal length, as from a server.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use esker_threads::waits::{WaitCause, timed};

use crate::image::Image;

/// Function that returns the block of a number: of the block length, or the last and shorter. It may wait.
pub type ReadBlock = dyn Fn(u64) -> io::Result<Arc<Vec<u8>>> + Send + Sync;

/// Function that returns when bytes of any block being read last arrived.
pub type BlockProgress = dyn Fn() -> Option<Instant> + Send + Sync;

/// Image in a file of blocks.
pub struct BlockImage {
    /// Name for messages.
    pub name: Arc<str>,
    /// Length of a block in bytes, not 0.
    pub block_size: u64,
    /// Length of the file in bytes.
    pub end: u64,
    /// Offset of the image in the file, at most its length.
    pub offset: u64,
    /// Source of the blocks.
    pub read: Box<ReadBlock>,
    /// Progress of the source.
    pub progress: Box<BlockProgress>,
}

impl Image for BlockImage {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.end - self.offset
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            let at = self.offset.saturating_add(offset).saturating_add(filled as u64);
            if at >= self.end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let block = timed(WaitCause::Network, || (self.read)(at / self.block_size))?;
            let skipped = usize::try_from(at % self.block_size).map_err(io::Error::other)?;
            let bytes = block.get(skipped..).unwrap_or_default();
            let len = bytes.len().min(room.len());
            let (there, from) = (room.get_mut(..len), bytes.get(..len));
            let (there, from) = there.zip(from).filter(|_| len > 0).ok_or(io::ErrorKind::UnexpectedEof)?;
            there.copy_from_slice(from);
            filled += len;
        }
        Ok(())
    }

    fn progress(&self) -> Option<Instant> {
        (self.progress)()
    }

    fn stripe(&self) -> usize {
        usize::try_from(self.block_size).unwrap_or(usize::MAX)
    }

    fn origin(&self) -> u64 {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn image(bytes: &'static [u8], offset: u64) -> BlockImage {
        BlockImage {
            name: "it".into(),
            block_size: 4,
            end: 10,
            offset,
            read: Box::new(move |number| {
                let block = bytes.chunks(4).nth(number as usize).ok_or(io::ErrorKind::NotFound)?;
                Ok(Arc::new(block.to_vec()))
            }),
            progress: Box::new(|| None),
        }
    }

    #[test]
    fn reads_cross_blocks_and_end_with_the_file() {
        let image = image(b"0123456789", 1);
        let mut all = [0; 9];
        image.read_at(0, &mut all).expect("the image");
        assert_eq!((&all, image.len()), (b"123456789", 9));
        let mut part = [0; 3];
        image.read_at(2, &mut part).expect("a part");
        assert_eq!(&part, b"345");
        let beyond = image.read_at(7, &mut part).expect_err("the end of the file");
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_short_block_is_an_error() {
        let mut whole = [0; 10];
        let short = image(b"01234", 0).read_at(0, &mut whole).expect_err("a block without the byte");
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_aligned_read_asks_for_its_block_once() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let source = image(b"0123456789", 0).read;
        let read = Box::new(move |number| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            source(number)
        });
        let image = BlockImage { read, ..image(b"", 0) };
        image.read_at(4, &mut [0; 4]).expect("a block");
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        assert_eq!(image.stripe(), 4);
    }
}
