//! Loads blocks of data and fragment blocks: each is read, decompressed and cached once for all readers.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_threads::Pool;
use esker_threads::waits::{WaitCause, timed};

use crate::Options;
use crate::fault::Fault;
use crate::image::Image;
use crate::layout::{BlockWord, CodecId, Superblock};
use crate::loading_cache::{LoadingCache, Waiter};
use crate::read_cache::ReadCache;
use crate::readahead::{SourceHints, Speculation};

/// A decompressed block.
pub(crate) type Block = Arc<[u8]>;

/// Position, stored length and compression of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) word: BlockWord,
    /// Exact decompressed length; for fragments, the maximum.
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
    /// Buffers for stored bytes and for blocks of unknown length; each holds at most two blocks.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Counters of loaded blocks since the image was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) decompressed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) ahead: AtomicU64,
}

/// Loader and cache of an image's blocks.
pub(crate) struct Blocks {
    image: Arc<dyn Image>,
    name: Arc<str>,
    end: u64,
    codec: CodecId,
    cached: LoadingCache<Key, Block>,
    pool: Arc<Pool>,
    /// Read cache, for an image whose reads should be large.
    pieces: Option<Arc<ReadCache>>,
    around: SourceHints,
    guesses: Speculation,
    pub(crate) counters: Counters,
}

impl Blocks {
    pub(crate) fn new(
        image: &Arc<dyn Image>,
        superblock: &Superblock,
        pieces: Option<Arc<ReadCache>>,
        pool: Arc<Pool>,
        options: &Options,
    ) -> Arc<Self> {
        let largest = usize::try_from(superblock.block_size).unwrap_or(1 << 20);
        Arc::new(Self {
            name: image.name(),
            image: Arc::clone(image),
            end: superblock.bytes_used,
            codec: superblock.codec,
            cached: LoadingCache::new(options.block_bytes.max(4 * largest), largest, |block| block.len()),
            pool,
            pieces,
            around: SourceHints::new(superblock.bytes_used),
            guesses: Speculation::new(),
            counters: Counters::default(),
        })
    }

    /// Returns a demanded block if it is cached.
    pub(crate) fn wanted(&self, extent: &Extent) -> Option<Block> {
        self.guesses.note_demand(extent.start);
        self.cached.get(&extent.key())
    }

    /// Returns the size of all cached blocks in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.cached.weight()
    }

    /// Calls `then` with the block: at once if it is cached, otherwise from the thread that loads it.
    pub(crate) fn get(self: &Arc<Self>, extent: Extent, then: Waiter<Block>) {
        if let Some(block) = self.cached.get(&extent.key()) {
            return then(Ok(block));
        }
        if self.cached.join(extent.key(), Some(then)) {
            self.queue(extent);
        }
    }

    fn queue(self: &Arc<Self>, extent: Extent) {
        let blocks = Arc::clone(self);
        self.pool.run(move || blocks.load(extent));
    }

    /// Queues the block for prefetch unless it is cached; returns false if the prefetch queue is full.
    pub(crate) fn ahead(self: &Arc<Self>, extent: Extent) -> bool {
        if self.cached.contains(&extent.key()) || !self.cached.join(extent.key(), None) {
            return true;
        }
        let blocks = Arc::clone(self);
        let queued = self.pool.run_ahead(move || blocks.load(extent));
        if queued {
            self.counters.ahead.fetch_add(1, Ordering::Relaxed);
        } else if self.cached.cancel_prefetch(extent.key()) {
            // A demand has joined it meanwhile.
            self.queue(extent);
        }
        queued
    }

    /// Prefetches the block that is likely to be read next, if recent predictions were right.
    pub(crate) fn guess(self: &Arc<Self>, extent: Extent) {
        if !self.cached.contains(&extent.key()) && self.guesses.should_load(extent.start) {
            self.ahead(extent);
        }
    }

    fn load(&self, extent: Extent) {
        // A block that was demanded while it was queued for read-ahead is queued twice.
        self.cached.load(extent.key(), || self.read(&extent));
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
                    let out = Arc::get_mut(&mut block).expect("the block is not shared yet");
                    match timed(WaitCause::Processing, || self.codec.decompress(stored, out)) {
                        Ok(length) if length == exact => Ok(block),
                        Ok(length) => Err(fault(format!("a block has {length} bytes instead of {exact}"))),
                        Err(error) => Err(fault(format!("a block can't be decompressed: {error}"))),
                    }
                }
                Length::UpTo(most) => {
                    let out = sized(room, most);
                    let length = timed(WaitCause::Processing, || self.codec.decompress(stored, out));
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

/// Returns the first `len` bytes of a buffer, which grows as needed and never shrinks.
fn sized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    buffer.get_mut(..len).unwrap_or_default()
}
