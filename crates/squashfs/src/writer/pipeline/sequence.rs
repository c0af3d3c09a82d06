//! The sequencer: what becomes of each file, in order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::budget::Share;
use super::feed::{Block, Item, Whole};
use super::work::{Job, Packed};
use super::{Digest, FileNumber, Shared, WriteError};

/// What the writer does next.
pub(super) enum Ticket {
    /// The blocks of a file follow.
    Begin { file: FileNumber },
    /// A block of that file.
    Block { packed: Receiver<Packed>, len: u64, _share: Arc<Share> },
    /// A block of that file of which nothing is stored.
    Hole { len: u64 },
    /// The end of that file.
    End { size: u64, tail: Option<(u32, u32)> },
    /// A file has the content of another.
    Same { file: FileNumber, of: FileNumber },
    /// The file that was begun has the content of another: its blocks are not wanted.
    Undo { of: FileNumber },
    /// The next fragment block.
    Fragment { packed: Receiver<Packed>, _shares: Vec<Arc<Share>> },
}

struct Sequencer<'r> {
    shared: Shared<'r>,
    jobs: Sender<Job>,
    tickets: Sender<Ticket>,
    known: HashMap<(u64, Digest), FileNumber>,
    fragment: Vec<u8>,
    fragment_shares: Vec<Arc<Share>>,
    fragments: u32,
}

/// Whoever takes jobs or tickets ended, which happens only with an error that is told already.
struct Ended;

impl From<Ended> for WriteError {
    fn from(_: Ended) -> Self {
        WriteError::Interrupted
    }
}

/// The file that is read block by block: its length so far, and its end while that may become a tail.
#[derive(Default)]
struct Current {
    size: u64,
    held: Option<(Vec<u8>, Share)>,
}

/// Decides until there are no more files.
pub(super) fn sequence(
    shared: Shared<'_>,
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
    let mut current = Current::default();
    for item in items {
        match item {
            Item::Whole { file, content } => {
                let whole = content.recv().map_err(|_| Ended)?;
                sequencer.whole(file, whole)?;
            }
            Item::Begin { file } => {
                current = Current::default();
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
    fn ticket(&self, ticket: Ticket) -> Result<(), Ended> {
        self.tickets.send(ticket).map_err(|_| Ended)
    }

    fn block_size(&self) -> usize {
        self.shared.options.block_size as usize
    }

    /// The file that has this content already; else it is noted for those to come.
    fn known(&mut self, file: FileNumber, size: u64, digest: Option<Digest>) -> Option<FileNumber> {
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

    /// How much of the end of a file goes into a fragment.
    fn tail_len(&self, size: u64) -> usize {
        let options = self.shared.options;
        let block_size = u64::from(options.block_size);
        let wanted = options.fragments && (size < block_size || options.tail_ends);
        if wanted { usize::try_from(size % block_size).unwrap_or(0) } else { 0 }
    }

    fn whole(&mut self, file: FileNumber, whole: Whole) -> Result<(), Ended> {
        let Whole { bytes, digest, share } = whole;
        let size = bytes.len() as u64;
        if let Some(of) = self.known(file, size, digest) {
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

    fn block(&mut self, current: &mut Current, block: Block) -> Result<(), Ended> {
        match block {
            Block::Hole { len } => {
                current.size += len;
                self.ticket(Ticket::Hole { len })
            }
            Block::Data { bytes, share } => {
                current.size += bytes.len() as u64;
                if bytes.len() < self.block_size() && self.tail_len(current.size) == bytes.len() {
                    // It is the last one. Whether it is wanted is known with the digest.
                    current.held = Some((bytes, share));
                    return Ok(());
                }
                let (len, range) = (bytes.len() as u64, 0..bytes.len());
                let packed = self.pack(Arc::new(bytes), range, true)?;
                self.ticket(Ticket::Block { packed, len, _share: Arc::new(share) })
            }
        }
    }

    fn end(&mut self, file: FileNumber, current: Current, digest: Option<Digest>) -> Result<(), Ended> {
        let Current { size, held } = current;
        if let Some(of) = self.known(file, size, digest) {
            return self.ticket(Ticket::Undo { of });
        }
        let tail = held.map(|(bytes, share)| self.add_tail(&bytes, Some(Arc::new(share)))).transpose()?;
        self.ticket(Ticket::End { size, tail })
    }

    /// Has a block compressed.
    fn pack(
        &self,
        bytes: Arc<Vec<u8>>,
        range: Range<usize>,
        may_be_hole: bool,
    ) -> Result<Receiver<Packed>, Ended> {
        let (reply, packed) = bounded(1);
        self.jobs.send(Job { bytes, range, may_be_hole, reply }).map_err(|_| Ended)?;
        Ok(packed)
    }

    /// Puts the end of a file into the fragment block that is being filled.
    fn add_tail(&mut self, tail: &[u8], share: Option<Arc<Share>>) -> Result<(u32, u32), Ended> {
        if self.fragment.len() + tail.len() > self.block_size() {
            self.flush()?;
        }
        let offset = u32::try_from(self.fragment.len()).expect("a block has at most a megabyte");
        self.fragment.extend_from_slice(tail);
        self.fragment_shares.extend(share);
        Ok((self.fragments, offset))
    }

    /// Hands over the fragment block as it is.
    fn flush(&mut self) -> Result<(), Ended> {
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
