//! Blocks of data and fragment blocks: read, decompressed and cached once for all who want them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Options;
use crate::ahead::{Around, Guesses};
use crate::cache::Cache;
use crate::fault::Fault;
use crate::flights::{Flights, Joined, Waiter};
use crate::image::Image;
use crate::layout::{BlockWord, CodecId, Superblock};
use crate::pieces::Pieces;
use crate::pool::Pool;

/// A decompressed block.
pub(crate) type Block = Arc<[u8]>;

/// Where a block is stored and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) word: BlockWord,
    /// How long it must be; for fragments, only how long it may be.
    pub(crate) length: Length,
}

/// The length of a decompressed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Exactly(usize),
    UpTo(usize),
}

type Key = (u64, u32);

impl Extent {
    const fn key(&self) -> Key {
        (self.start, self.word.encode())
    }
}

thread_local! {
    /// Stored bytes and what may be longer than it turns out to be. Two blocks at most.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// What was done so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) decompressed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) ahead: AtomicU64,
}

/// The blocks of an image.
pub(crate) struct Blocks {
    image: Arc<dyn Image>,
    name: Arc<str>,
    end: u64,
    codec: CodecId,
    cached: Cache<Key, Block>,
    loading: Flights<Key, Block>,
    pool: Arc<Pool>,
    /// For an image that wants to be read in large pieces.
    pieces: Option<Arc<Pieces>>,
    around: Around,
    guesses: Guesses,
    pub(crate) counters: Counters,
}

impl Blocks {
    pub(crate) fn new(
        image: &Arc<dyn Image>,
        superblock: &Superblock,
        pieces: Option<Arc<Pieces>>,
        pool: Arc<Pool>,
        options: &Options,
    ) -> Arc<Self> {
        let largest = usize::try_from(superblock.block_size).unwrap_or(1 << 20);
        Arc::new(Self {
            name: image.name(),
            image: Arc::clone(image),
            end: superblock.bytes_used,
            codec: superblock.codec,
            cached: Cache::new(options.block_bytes.max(4 * largest), largest),
            loading: Flights::new(),
            pool,
            pieces,
            around: Around::new(superblock.bytes_used),
            guesses: Guesses::new(),
            counters: Counters::default(),
        })
    }

    /// A block that somebody wants, if it is cached.
    pub(crate) fn wanted(&self, extent: &Extent) -> Option<Block> {
        self.guesses.wanted(extent.start);
        self.cached(extent)
    }

    fn cached(&self, extent: &Extent) -> Option<Block> {
        self.cached.get(&extent.key())
    }

    /// Bytes of cached blocks.
    pub(crate) fn weight(&self) -> usize {
        self.cached.weight()
    }

    /// Calls `then` with the block, at once or from the thread that loads it.
    pub(crate) fn get(self: &Arc<Self>, extent: Extent, then: Waiter<Block>) {
        if let Some(block) = self.cached(&extent) {
            return then(Ok(block));
        }
        match self.loading.join(extent.key(), Some(then)) {
            Joined::First | Joined::Promoted => {
                let blocks = Arc::clone(self);
                self.pool.run(move || blocks.load(extent));
            }
            Joined::Coming => {}
        }
    }

    /// Sees to it that the block will be cached; `false` if too much is under way for that.
    pub(crate) fn ahead(self: &Arc<Self>, extent: Extent) -> bool {
        if self.cached.contains(&extent.key()) || self.loading.join(extent.key(), None) != Joined::First {
            return true;
        }
        let blocks = Arc::clone(self);
        let queued = self.pool.run_ahead(move || blocks.load(extent));
        if queued {
            self.counters.ahead.fetch_add(1, Ordering::Relaxed);
        } else if self.loading.cancel(extent.key()) {
            // Somebody has begun to wait for it.
            let blocks = Arc::clone(self);
            self.pool.run(move || blocks.load(extent));
        }
        queued
    }

    /// Has a block loaded that may be wanted next, if guessing has been of use lately.
    pub(crate) fn guess(self: &Arc<Self>, extent: Extent) {
        if !self.cached.contains(&extent.key()) && self.guesses.make(extent.start) {
            self.ahead(extent);
        }
    }

    fn load(&self, extent: Extent) {
        // What was demanded while it waited to be read ahead is queued twice.
        let Some(taken) = self.loading.take(extent.key()) else { return };
        let block = self.cached(&extent).map_or_else(|| self.read(&extent), Ok);
        if let Ok(block) = &block {
            self.cached.insert(extent.key(), Arc::clone(block), block.len());
        }
        taken.give(&block);
    }

    fn read(&self, extent: &Extent) -> Result<Block, Fault> {
        let Extent { start, word, length } = *extent;
        let fault = |what: String| Fault::damaged(&self.name, start, what);
        let len = usize::try_from(word.len).unwrap_or(usize::MAX);
        if start.checked_add(word.len.into()).is_none_or(|end| end > self.end) {
            return Err(fault(format!("a block of {len} bytes goes beyond the end of the image")));
        }
        self.counters.decompressed.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(word.len.into(), Ordering::Relaxed);
        SCRATCH.with_borrow_mut(|(stored, room)| {
            let stored = sized(stored, len);
            self.stored(start, stored)?;
            match length {
                Length::Exactly(exact) if !word.compressed && exact == len => Ok(Arc::from(&*stored)),
                Length::UpTo(most) if !word.compressed && len <= most => Ok(Arc::from(&*stored)),
                Length::Exactly(exact) | Length::UpTo(exact) if !word.compressed => {
                    Err(fault(format!("a block has {len} bytes instead of {exact}")))
                }
                Length::Exactly(exact) => {
                    let mut block: Arc<[u8]> = std::iter::repeat_n(0, exact).collect();
                    let out = Arc::get_mut(&mut block).expect("nobody else has it yet");
                    match self.codec.decompress(stored, out) {
                        Ok(length) if length == exact => Ok(block),
                        Ok(length) => Err(fault(format!("a block has {length} bytes instead of {exact}"))),
                        Err(error) => Err(fault(format!("a block can't be decompressed: {error}"))),
                    }
                }
                Length::UpTo(most) => {
                    let out = sized(room, most);
                    let length = self.codec.decompress(stored, out);
                    let length = length
                        .map_err(|error| fault(format!("a fragment block can't be decompressed: {error}")))?;
                    Ok(Arc::from(out.get(..length).unwrap_or_default()))
                }
            }
        })
    }

    fn stored(&self, start: u64, out: &mut [u8]) -> Result<(), Fault> {
        if let Some(pieces) = &self.pieces {
            return pieces.fill(start, out, true).map(drop);
        }
        let len = out.len();
        self.image.read_at(start, out).map_err(|error| Fault::read(&self.name, start, len, error))?;
        self.around.read(&*self.image, start);
        Ok(())
    }
}

/// The first `len` bytes of a buffer that only grows.
fn sized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    buffer.get_mut(..len).unwrap_or_default()
}
