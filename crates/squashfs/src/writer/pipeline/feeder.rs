//! Feeder, which decides when a content is read, and the reader threads.

use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::budget::{Budget, MemoryShare};
use super::super::entry::{Open, Reading};
use super::super::error::shown;
use super::worker::is_zero;
use super::{Digest, FileNumber, PipelineContext, WriteError};

/// An item for the sequencer.
pub(super) enum Item {
    /// A file that another thread reads as a whole.
    Whole { file: FileNumber, content: Receiver<Whole> },
    /// Start of a file whose blocks follow.
    Begin { file: FileNumber },
    /// A block of the file that was started.
    Block(Block),
    /// End of the file, with the digest of its content if it was requested.
    End { file: FileNumber, digest: Option<Digest> },
}

/// A file that was read as a whole.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) digest: Option<Digest>,
    pub(super) share: MemoryShare,
}

/// A block of a file that is read block by block.
pub(super) enum Block {
    Data { bytes: Vec<u8>, share: MemoryShare },
    Hole { len: u64 },
}

/// A job for the reader threads.
pub(super) struct Read {
    content: Box<dyn Open>,
    path: Vec<u8>,
    size: u64,
    digest: bool,
    share: MemoryShare,
    reply: Sender<Whole>,
}

/// Maximum length in bytes of files that are read as a whole, so that many are read at once and duplicates
/// are found before compression.
const WHOLE_MAX: u64 = 4 << 20;

/// Entry of the pipeline: contents enter in the order in which they will be stored.
pub(in super::super) struct Feed<'r> {
    shared: PipelineContext<'r>,
    budget: &'r Budget,
    items: Sender<Item>,
    reads: Sender<Read>,
    next: FileNumber,
}

impl<'r> Feed<'r> {
    pub(super) fn new(
        shared: PipelineContext<'r>,
        budget: &'r Budget,
        items: Sender<Item>,
        reads: Sender<Read>,
    ) -> Self {
        Self { shared, budget, items, reads, next: 0 }
    }

    /// Adds a file that can be read at any time. `digest` says whether a file with the same content may exist.
    pub(in super::super) fn later(
        &mut self,
        path: Vec<u8>,
        size: u64,
        content: Box<dyn Open>,
        digest: bool,
    ) -> Result<FileNumber, WriteError> {
        if size > WHOLE_MAX {
            let failed = |source| WriteError::Input { doing: "opening", path: shown(&path), source };
            let mut reading = content.open().map_err(failed)?;
            return self.stream(&path, size, &mut *reading, digest, true);
        }
        let file = self.begin();
        let share = self.take(size)?;
        let (reply, content_read) = bounded(1);
        self.give(Item::Whole { file, content: content_read })?;
        let read = Read { content, path, size, digest, share, reply };
        self.reads.send(read).map_err(|_| WriteError::Interrupted)?;
        Ok(file)
    }

    /// Adds a file that must be read now. If it `may_change`, its size may differ from `size`.
    pub(in super::super) fn stream(
        &mut self,
        path: &[u8],
        size: u64,
        reading: &mut dyn Reading,
        digest: bool,
        may_change: bool,
    ) -> Result<FileNumber, WriteError> {
        let failed = |source| WriteError::Input { doing: "reading", path: shown(path), source };
        let file = self.begin();
        self.give(Item::Begin { file })?;
        let mut hasher = digest.then(Hasher::new);
        let block_size = u64::from(self.shared.options.block_size);
        let mut left = size;
        while left > 0 {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Err(WriteError::Interrupted);
            }
            let len = left.min(block_size);
            left -= len;
            if reading.skip_hole(len).map_err(failed)? {
                hasher.iter_mut().for_each(|hasher| hasher.hole(len));
                self.give(Item::Block(Block::Hole { len }))?;
                continue;
            }
            let share = self.take(len)?;
            let mut bytes = vec![0; usize::try_from(len).expect("a block has at most a megabyte")];
            let filled = reading.fill(&mut bytes).map_err(failed)?;
            let is_short = filled < bytes.len();
            if is_short && !may_change {
                return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
            }
            bytes.truncate(filled);
            self.shared.counters.bytes.fetch_add(filled as u64, Ordering::Relaxed);
            if !bytes.is_empty() {
                hasher.iter_mut().for_each(|hasher| hasher.data(&bytes));
                self.give(Item::Block(Block::Data { bytes, share }))?;
            }
            if is_short {
                self.shared.counters.changed.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        self.give(Item::End { file, digest: hasher.map(|hasher| hasher.finish()) })?;
        self.shared.counters.files.fetch_add(1, Ordering::Relaxed);
        Ok(file)
    }

    fn begin(&mut self) -> FileNumber {
        let file = self.next;
        self.next += 1;
        file
    }

    fn take(&self, bytes: u64) -> Result<MemoryShare, WriteError> {
        self.budget.take(bytes).ok_or(WriteError::Interrupted)
    }

    fn give(&self, item: Item) -> Result<(), WriteError> {
        // The receiver ends early only with an error, which is reported in place of this one.
        self.items.send(item).map_err(|_| WriteError::Interrupted)
    }
}

/// Runs a reader thread.
pub(super) fn read(shared: PipelineContext<'_>, to_read: &Receiver<Read>) {
    for read in to_read {
        if shared.run.is_over() {
            continue;
        }
        let Read { content, path, size, digest, share, reply } = read;
        match read_whole(&*content, size) {
            Ok((bytes, changed)) => {
                shared.counters.changed.fetch_add(changed.into(), Ordering::Relaxed);
                shared.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                shared.counters.files.fetch_add(1, Ordering::Relaxed);
                let block_size = shared.options.block_size as usize;
                let digest = digest.then(|| {
                    let mut hasher = Hasher::new();
                    bytes.chunks(block_size).for_each(|block| hasher.data(block));
                    hasher.finish()
                });
                // After an error the receiver may be gone.
                let _ = reply.send(Whole { bytes, digest, share });
            }
            Err(source) => {
                shared.run.fail(WriteError::Input { doing: "reading", path: shown(&path), source });
            }
        }
    }
}

/// Returns the content of a file, and true if it is shorter than it was.
fn read_whole(content: &dyn Open, size: u64) -> std::io::Result<(Vec<u8>, bool)> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    if bytes.is_empty() {
        return Ok((bytes, false));
    }
    let filled = content.open()?.fill(&mut bytes)?;
    let changed = filled < bytes.len();
    bytes.truncate(filled);
    Ok((bytes, changed))
}

/// Digests content block by block, so that a hole costs little time and has the digest of the same zeros.
struct Hasher(blake3::Hasher);

impl Hasher {
    fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    fn data(&mut self, block: &[u8]) {
        if is_zero(block) {
            return self.hole(block.len() as u64);
        }
        self.0.update(&[1]);
        self.0.update(block);
    }

    fn hole(&mut self, len: u64) {
        self.0.update(&[0]);
        self.0.update(&len.to_le_bytes());
    }

    fn finish(&self) -> Digest {
        *self.0.finalize().as_bytes()
    }
}
