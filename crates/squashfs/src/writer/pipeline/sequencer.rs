//! Sequencer: decides in file order how each content is stored.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::budget::MemoryShare;
use super::feeder::{Block, Item, Whole};
use super::worker::{Job, PackedBlock};
use super::{Digest, FileNumber, PipelineContext, WriteError};

/// A ticket for the block writer.
pub(super) enum Ticket {
    /// The blocks of a file follow.
    Begin { file: FileNumber },
    /// A block of the current file.
    Block { packed: Receiver<PackedBlock>, len: u64, _share: Arc<MemoryShare> },
    /// An all-zero block of the current file, which is not stored.
    Hole { len: u64 },
    /// The end of the current file.
    End { size: u64, tail: Option<(u32, u32)> },
    /// A file has the content of an earlier file.
    Same { file: FileNumber, of: FileNumber },
    /// The current file has the content of an earlier file: its blocks are discarded.
    Undo { of: FileNumber },
    /// The next fragment block.
    Fragment { packed: Receiver<PackedBlock>, _shares: Vec<Arc<MemoryShare>> },
}

struct Sequencer<'r> {
    shared: PipelineContext<'r>,
    jobs: Sender<Job>,
    tickets: Sender<Ticket>,
    known: HashMap<(u64, Digest), FileNumber>,
    fragment: Vec<u8>,
    fragment_shares: Vec<Arc<MemoryShare>>,
    fragments: u32,
}

/// The receiver of jobs or tickets ended, which happens only after an error that is already recorded.
struct Disconnected;

impl From<Disconnected> for WriteError {
    fn from(_: Disconnected) -> Self {
        WriteError::Interrupted
    }
}

/// A file that is read block by block: its length so far, and its last bytes while they may become a tail.
#[derive(Default)]
struct CurrentFile {
    size: u64,
    held: Option<(Vec<u8>, MemoryShare)>,
}

/// Sequences items until there are no more.
pub(super) fn sequence(
    shared: PipelineContext<'_>,
    items: &Receiver<Item>,
    jobs: Sender<Job>,
    tickets: Sender<Ticket>,
) -> Result<(), WriteError> {
    let mut sequencer = Sequencer {
        shared,
        jobs,
        tickets,
        known: HashMap::new(),
        fragment: Vec::new(),
        fragment_shares: Vec::new(),
        fragments: 0,
    };
    let mut current = CurrentFile::default();
    for item in items {
        match item {
            Item::Whole { file, content } => {
                let whole = content.recv().map_err(|_| Disconnected)?;
                sequencer.whole(file, whole)?;
            }
            Item::Begin { file } => {
                current = CurrentFile::default();
                sequencer.ticket(Ticket::Begin { file })?;
            }
            Item::Block(block) => sequencer.block(&mut current, block)?,
            Item::End { file, digest } => sequencer.end(file, std::mem::take(&mut current), digest)?,
        }
    }
    sequencer.flush()?;
    Ok(())
}

impl Sequencer<'_> {
    fn ticket(&self, ticket: Ticket) -> Result<(), Disconnected> {
        self.tickets.send(ticket).map_err(|_| Disconnected)
    }

    fn block_size(&self) -> usize {
        self.shared.options.block_size as usize
    }

    /// Returns the earlier file with the same content; otherwise records this one.
    fn find_duplicate(&mut self, file: FileNumber, size: u64, digest: Option<Digest>) -> Option<FileNumber> {
        let digest = digest.filter(|_| size > 0)?;
        let of = *self.known.entry((size, digest)).or_insert(file);
        if of == file {
            return None;
        }
        let counters = self.shared.counters;
        counters.duplicates.fetch_add(1, Ordering::Relaxed);
        counters.duplicate_bytes.fetch_add(size, Ordering::Relaxed);
        Some(of)
    }

    /// Returns the number of bytes at the end of a file that go into a fragment.
    fn tail_len(&self, size: u64) -> usize {
        let options = self.shared.options;
        let block_size = u64::from(options.block_size);
        let wanted = options.fragments && (size < block_size || options.tail_ends);
        if wanted { usize::try_from(size % block_size).unwrap_or(0) } else { 0 }
    }

    fn whole(&mut self, file: FileNumber, whole: Whole) -> Result<(), Disconnected> {
        let Whole { bytes, digest, share } = whole;
        let size = bytes.len() as u64;
        if let Some(of) = self.find_duplicate(file, size, digest) {
            return self.ticket(Ticket::Same { file, of });
        }
        self.ticket(Ticket::Begin { file })?;
        let (bytes, share) = (Arc::new(bytes), Arc::new(share));
        let in_blocks = bytes.len() - self.tail_len(size);
        for start in (0..in_blocks).step_by(self.block_size()) {
            let range = start..in_blocks.min(start + self.block_size());
            let len = range.len() as u64;
            let packed = self.pack(bytes.clone(), range, true)?;
            self.ticket(Ticket::Block { packed, len, _share: share.clone() })?;
        }
        let tail = bytes.get(in_blocks..).filter(|tail| !tail.is_empty());
        // The fragment block waits for more files, whose memory may be that of all but the end of this one: only a share
        // that is no larger than the tail may wait with it.
        let share = (in_blocks == 0).then_some(share);
        let tail = tail.map(|tail| self.add_tail(tail, share)).transpose()?;
        self.ticket(Ticket::End { size, tail })
    }

    fn block(&mut self, current: &mut CurrentFile, block: Block) -> Result<(), Disconnected> {
        match block {
            Block::Hole { len } => {
                current.size += len;
                self.ticket(Ticket::Hole { len })
            }
            Block::Data { bytes, share } => {
                current.size += bytes.len() as u64;
                if bytes.len() < self.block_size() && self.tail_len(current.size) == bytes.len() {
                    // This is the last block. The digest, which follows, shows whether it is needed.
                    current.held = Some((bytes, share));
                    return Ok(());
                }
                let (len, range) = (bytes.len() as u64, 0..bytes.len());
                let packed = self.pack(Arc::new(bytes), range, true)?;
                self.ticket(Ticket::Block { packed, len, _share: Arc::new(share) })
            }
        }
    }

    fn end(
        &mut self,
        file: FileNumber,
        current: CurrentFile,
        digest: Option<Digest>,
    ) -> Result<(), Disconnected> {
        let CurrentFile { size, held } = current;
        if let Some(of) = self.find_duplicate(file, size, digest) {
            return self.ticket(Ticket::Undo { of });
        }
        let tail = held.map(|(bytes, share)| self.add_tail(&bytes, Some(Arc::new(share)))).transpose()?;
        self.ticket(Ticket::End { size, tail })
    }

    /// Queues a block for compression.
    fn pack(
        &self,
        bytes: Arc<Vec<u8>>,
        range: Range<usize>,
        may_be_hole: bool,
    ) -> Result<Receiver<PackedBlock>, Disconnected> {
        let (reply, packed) = bounded(1);
        self.jobs.send(Job { bytes, range, may_be_hole, reply }).map_err(|_| Disconnected)?;
        Ok(packed)
    }

    /// Appends the tail of a file to the current fragment block.
    fn add_tail(&mut self, tail: &[u8], share: Option<Arc<MemoryShare>>) -> Result<(u32, u32), Disconnected> {
        if self.fragment.len() + tail.len() > self.block_size() {
            self.flush()?;
        }
        let offset = u32::try_from(self.fragment.len()).expect("a block has at most a megabyte");
        self.fragment.extend_from_slice(tail);
        self.fragment_shares.extend(share);
        Ok((self.fragments, offset))
    }

    /// Queues the current fragment block as it is.
    fn flush(&mut self) -> Result<(), Disconnected> {
        if self.fragment.is_empty() {
            return Ok(());
        }
        let room = Vec::with_capacity(self.block_size());
        let bytes = std::mem::replace(&mut self.fragment, room);
        let shares = std::mem::take(&mut self.fragment_shares);
        let range = 0..bytes.len();
        // The format has no fragment blocks that are holes.
        let packed = self.pack(Arc::new(bytes), range, false)?;
        self.fragments += 1;
        self.ticket(Ticket::Fragment { packed, _shares: shares })
    }
}
