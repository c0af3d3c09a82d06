//! Reads metadata blocks on demand; a cursor moves over their stream.

use std::sync::Arc;

use esker_threads::waits::{WaitCause, timed};

use super::{Access, Core, ReadError, ReadResult};
use crate::fault::Fault;
use crate::layout::{LayoutError, METADATA_BLOCK, MetaHeader, MetaRef};

/// A decompressed metadata block.
#[derive(Clone, Debug)]
pub(crate) struct MetaBlock {
    pub(crate) bytes: Arc<[u8]>,
    /// Image offset of the next stored block.
    pub(crate) next: u64,
}

impl MetaBlock {
    /// Returns the bytes that it takes in the cache.
    pub(super) fn weight(&self) -> usize {
        self.bytes.len() + 128
    }
}

/// A metadata stream: the image offsets of its start and of its end limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A metadata block as stored.
struct Stored {
    header: MetaHeader,
    room: [u8; METADATA_BLOCK],
}

impl Stored {
    /// Decompresses the block stored at `at`.
    fn decode(&self, core: &Core, at: u64) -> Result<MetaBlock, Fault> {
        let len = usize::from(self.header.len);
        let stored = self.room.get(..len).unwrap_or_default();
        let next = at + (MetaHeader::LEN + len) as u64;
        if !self.header.compressed {
            return Ok(MetaBlock { bytes: Arc::from(stored), next });
        }
        let mut out = [0; METADATA_BLOCK];
        let codec = core.superblock.codec;
        let length = timed(WaitCause::Processing, || codec.decompress(stored, &mut out));
        let length = length
            .map_err(|error| core.fault(at, format!("a metadata block can't be decompressed: {error}")))?;
        Ok(MetaBlock { bytes: Arc::from(out.get(..length).unwrap_or_default()), next })
    }
}

impl<'a> Access<'a> {
    /// Returns the metadata block stored at `at`.
    ///
    /// The first requester decompresses it, also on a thread that must not block: a block is small, and
    /// handing it to the pool would wake two threads.
    pub(crate) fn block(self, at: u64) -> ReadResult<MetaBlock> {
        let core = self.core;
        if let Some(block) = core.metadata.get(&at) {
            return Ok(block);
        }
        let stored = self.stored_block(at)?;
        match core.metadata.load_or_wait(at, self.may_wait, || stored.decode(core, at)) {
            Some(block) => block.map_err(ReadError::Fault),
            None if self.may_wait => Err(core.fault(at, "the read was abandoned").into()),
            None => Err(ReadError::NotCached),
        }
    }

    /// Fills `out` from the stored bytes at `offset`.
    pub(super) fn stored(self, offset: u64, out: &mut [u8]) -> ReadResult<()> {
        if self.core.pieces.fill(offset, out, self.may_wait)? { Ok(()) } else { Err(ReadError::NotCached) }
    }

    fn stored_block(self, at: u64) -> ReadResult<Stored> {
        let core = self.core;
        let mut header = [0; MetaHeader::LEN];
        self.stored(at, &mut header)?;
        let header = MetaHeader::decode(header).map_err(|error| core.fault(at, error))?;
        let mut room = [0; METADATA_BLOCK];
        let stored = room.get_mut(..usize::from(header.len));
        let stored = stored.ok_or_else(|| core.fault(at, "a metadata block is too long"))?;
        self.stored(at + MetaHeader::LEN as u64, stored)?;
        Ok(Stored { header, room })
    }

    /// Returns a cursor at `place` of `stream`.
    pub(crate) fn cursor(self, stream: Stream, place: MetaRef) -> ReadResult<Cursor<'a>> {
        let at = stream.start.checked_add(place.block()).filter(|at| *at < stream.end);
        let at = at.ok_or_else(|| {
            self.core.fault(stream.start, format!("there is no metadata block at {:#x}", place.block()))
        })?;
        let block = self.block(at)?;
        let from = usize::from(place.offset());
        if from > block.bytes.len() {
            let what = format!(
                "a reference points to byte {from} of a metadata block of {} bytes",
                block.bytes.len()
            );
            return Err(self.core.fault(at, what).into());
        }
        Ok(Cursor { access: self, stream, block, at, from })
    }
}

/// Read position in a metadata stream. It only moves forward, so it ends where the stream does.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    access: Access<'a>,
    stream: Stream,
    block: MetaBlock,
    /// Image offset of the current block.
    at: u64,
    from: usize,
}

impl Cursor<'_> {
    /// Returns the current position, for creating a cursor later.
    pub(crate) fn place(&self) -> MetaRef {
        MetaRef::new(self.at - self.stream.start, u16::try_from(self.from).unwrap_or(u16::MAX))
    }

    /// Creates the error for invalid data before the cursor.
    pub(crate) fn fault(&self, error: &LayoutError) -> ReadError {
        let what = format!("in the metadata block there, byte {}: {error}", self.from);
        self.access.core.fault(self.at, what).into()
    }

    /// Returns the unread bytes of this block, or those of the next block if there are none.
    fn rest(&mut self) -> ReadResult<&[u8]> {
        // Valid images have no empty blocks, so one step is enough for them, but the image may be invalid.
        while self.from >= self.block.bytes.len() {
            let next = self.block.next;
            if next >= self.stream.end {
                return Err(self.access.core.fault(self.at, "a metadata stream ends too early").into());
            }
            self.block = self.access.block(next)?;
            self.at = next;
            self.from = 0;
        }
        Ok(self.block.bytes.get(self.from..).unwrap_or_default())
    }

    /// Fills `out` with the next bytes.
    pub(crate) fn fill(&mut self, mut out: &mut [u8]) -> ReadResult<()> {
        while !out.is_empty() {
            let rest = self.rest()?;
            let len = rest.len().min(out.len());
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(rest.get(..len).unwrap_or_default());
            self.from += len;
            out = later;
        }
        Ok(())
    }

    /// Returns the next bytes, as many as `room` has: borrowed from the block, or copied if they cross two
    /// blocks.
    pub(crate) fn take<'b>(&'b mut self, room: &'b mut [u8]) -> ReadResult<&'b [u8]> {
        let len = room.len();
        if self.rest()?.len() < len {
            self.fill(room)?;
            return Ok(room);
        }
        let from = self.from;
        self.from += len;
        Ok(self.block.bytes.get(from..self.from).unwrap_or_default())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> ReadResult<[u8; N]> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// Returns `len` bytes. The length may be invalid, so memory is allocated only for bytes that exist.
    pub(crate) fn bytes(&mut self, mut len: usize) -> ReadResult<Vec<u8>> {
        let mut out = Vec::with_capacity(len.min(METADATA_BLOCK));
        while len > 0 {
            let rest = self.rest()?;
            let piece = rest.get(..len.min(rest.len())).unwrap_or_default();
            out.extend_from_slice(piece);
            let scanned = piece.len();
            len -= scanned;
            self.from += scanned;
        }
        Ok(out)
    }

    /// Skips `len` bytes.
    pub(crate) fn skip(&mut self, mut len: u64) -> ReadResult<()> {
        while len > 0 {
            let rest = self.rest()?.len();
            let step = usize::try_from(len).unwrap_or(usize::MAX).min(rest);
            self.from += step;
            len -= step as u64;
        }
        Ok(())
    }

    /// Calls `each` with the next `count` words.
    pub(crate) fn words(
        &mut self,
        count: u64,
        mut each: impl FnMut(u32) -> ReadResult<()>,
    ) -> ReadResult<()> {
        let mut left = count;
        while left > 0 {
            let rest = self.rest()?;
            let (words, _) = rest.as_chunks::<4>();
            if words.is_empty() {
                each(u32::from_le_bytes(self.array()?))?;
                left -= 1;
                continue;
            }
            let now = usize::try_from(left).unwrap_or(usize::MAX).min(words.len());
            for word in words.iter().take(now) {
                each(u32::from_le_bytes(*word))?;
            }
            self.from += now * 4;
            left -= now as u64;
        }
        Ok(())
    }
}
