//! Metadata blocks, decompressed when they are wanted, and a cursor over their stream.

use std::sync::Arc;

use super::{Answer, Core, Scene, Stop};
use crate::fault::Fault;
use crate::flights::Joined;
use crate::layout::{LayoutError, METADATA_BLOCK, MetaHeader, MetaRef};
use crate::pieces::waiter;

/// A metadata block, decompressed.
#[derive(Clone, Debug)]
pub(crate) struct MetaBlock {
    pub(crate) bytes: Arc<[u8]>,
    /// Where in the image the next one is stored.
    pub(crate) next: u64,
}

/// Which stream of metadata: where in the image it begins, and where it must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A metadata block as it is stored.
struct Stored {
    header: MetaHeader,
    room: [u8; METADATA_BLOCK],
}

impl Stored {
    /// What is in it, if it is stored at `at`.
    fn decode(&self, core: &Core, at: u64) -> Result<MetaBlock, Fault> {
        let len = usize::from(self.header.len);
        let stored = self.room.get(..len).unwrap_or_default();
        let next = at + (MetaHeader::LEN + len) as u64;
        if !self.header.compressed {
            return Ok(MetaBlock { bytes: Arc::from(stored), next });
        }
        let mut out = [0; METADATA_BLOCK];
        let length = core.superblock.codec.decompress(stored, &mut out);
        let length = length
            .map_err(|error| core.fault(at, format!("a metadata block can't be decompressed: {error}")))?;
        Ok(MetaBlock { bytes: Arc::from(out.get(..length).unwrap_or_default()), next })
    }
}

impl<'a> Scene<'a> {
    /// The metadata block that is stored at `at`. Whoever wants it first decompresses it, on this thread also if it must
    /// not wait: a block is small, and to hand it over takes two threads being woken.
    pub(crate) fn block(self, at: u64) -> Answer<MetaBlock> {
        let core = self.core;
        if let Some(block) = core.metadata.get(&at) {
            return Ok(block);
        }
        let stored = self.stored_block(at)?;
        let (waiter, answer) = waiter();
        if core.decoding.join(at, self.may_wait.then_some(waiter)) == Joined::First
            && let Some(taken) = core.decoding.take(at)
        {
            let block = core.metadata.get(&at).map_or_else(|| stored.decode(core, at), Ok);
            if let Ok(block) = &block {
                core.metadata.insert(at, block.clone(), block.bytes.len() + 128);
            }
            taken.give(&block);
            return block.map_err(Stop::Fault);
        }
        if !self.may_wait {
            return Err(Stop::Missing);
        }
        answer.recv().unwrap_or_else(|_| Err(core.fault(at, "reading it was given up"))).map_err(Stop::Fault)
    }

    /// Fills `out` from the stored bytes at `offset`.
    pub(super) fn stored(self, offset: u64, out: &mut [u8]) -> Answer<()> {
        if self.core.pieces.fill(offset, out, self.may_wait)? { Ok(()) } else { Err(Stop::Missing) }
    }

    fn stored_block(self, at: u64) -> Answer<Stored> {
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

    /// A cursor at a place of a stream.
    pub(crate) fn cursor(self, stream: Stream, place: MetaRef) -> Answer<Cursor<'a>> {
        let at = stream.start.checked_add(place.block()).filter(|at| *at < stream.end);
        let at = at.ok_or_else(|| {
            self.core.fault(stream.start, format!("there is no metadata block at {:#x}", place.block()))
        })?;
        let block = self.block(at)?;
        let from = usize::from(place.offset());
        if from > block.bytes.len() {
            let what = format!("byte {from} of a metadata block of {} bytes", block.bytes.len());
            return Err(self.core.fault(at, format!("{what} is pointed to")).into());
        }
        Ok(Cursor { scene: self, stream, block, at, from })
    }
}

/// A place in a stream of metadata, to read on from. It only ever moves forward, so it ends where the stream does.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    scene: Scene<'a>,
    stream: Stream,
    block: MetaBlock,
    /// Where the block is stored.
    at: u64,
    from: usize,
}

impl Cursor<'_> {
    /// Where the cursor is, to come back to.
    pub(crate) fn place(&self) -> MetaRef {
        MetaRef::new(self.at - self.stream.start, u16::try_from(self.from).unwrap_or(u16::MAX))
    }

    /// What is wrong at the cursor.
    pub(crate) fn fault(&self, error: &LayoutError) -> Stop {
        let what = format!("in the metadata block there, byte {}: {error}", self.from);
        self.scene.core.fault(self.at, what).into()
    }

    /// The bytes from here to the end of this block, and on to the next block if there are none.
    fn rest(&mut self) -> Answer<&[u8]> {
        // An empty block is allowed nowhere, so one step is enough, but nothing says that the image knows.
        while self.from >= self.block.bytes.len() {
            let next = self.block.next;
            if next >= self.stream.end {
                return Err(self.scene.core.fault(self.at, "a metadata stream ends too early").into());
            }
            self.block = self.scene.block(next)?;
            self.at = next;
            self.from = 0;
        }
        Ok(self.block.bytes.get(self.from..).unwrap_or_default())
    }

    /// Fills `out`.
    pub(crate) fn fill(&mut self, mut out: &mut [u8]) -> Answer<()> {
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

    /// The next bytes, as many as there is room for: where they lie, or copied if they lie in two blocks.
    pub(crate) fn take<'b>(&'b mut self, room: &'b mut [u8]) -> Answer<&'b [u8]> {
        let len = room.len();
        if self.rest()?.len() < len {
            self.fill(room)?;
            return Ok(room);
        }
        let from = self.from;
        self.from += len;
        Ok(self.block.bytes.get(from..self.from).unwrap_or_default())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Answer<[u8; N]> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// `len` bytes, which may be many: nothing is set aside for those that aren't there.
    pub(crate) fn bytes(&mut self, mut len: usize) -> Answer<Vec<u8>> {
        let mut out = Vec::with_capacity(len.min(METADATA_BLOCK));
        while len > 0 {
            let rest = self.rest()?;
            let piece = rest.get(..len.min(rest.len())).unwrap_or_default();
            out.extend_from_slice(piece);
            let passed = piece.len();
            len -= passed;
            self.from += passed;
        }
        Ok(out)
    }

    /// Passes over `len` bytes.
    pub(crate) fn skip(&mut self, mut len: u64) -> Answer<()> {
        while len > 0 {
            let rest = self.rest()?.len();
            let step = usize::try_from(len).unwrap_or(usize::MAX).min(rest);
            self.from += step;
            len -= step as u64;
        }
        Ok(())
    }

    /// Calls `each` with the words from here on, until it has seen `count` of them.
    pub(crate) fn words(&mut self, count: u64, mut each: impl FnMut(u32) -> Answer<()>) -> Answer<()> {
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
