//! Contents become blocks of the image: read by a few threads, compressed by all cores, written in order by one.
//!
//! ```text
//!   feeder ─► readers ─► sequencer: equal content? blocks, fragments ─► workers: zeros? compress ─► writer
//!     └──────(large files, streams)──┘         └──────────(tickets, in the order of the image)────────┘
//! ```
//!
//! What decides about the image happens in the feeder, the sequencer and the writer, which see the files one after
//! the other: so the image is the same however many threads there are. The feeder takes a share of the memory before
//! it lets anything be read, and the share goes back when the writer is done with it.

mod feed;
mod sequence;
mod store;
mod work;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use super::budget::Budget;
use super::image::Image;
use super::{Options, WriteError};
use crate::layout::Fragment;

pub(super) use feed::Feed;

/// Number of a file, in the order in which contents are handed over.
pub(super) type FileNumber = usize;

/// A digest that nobody can make two contents have.
type Digest = [u8; blake3::OUT_LEN];

/// Where the content of a file is.
#[derive(Clone, Debug, Default)]
pub(super) struct Located {
    /// Where its first block is; 0 if it has none.
    pub(super) start: u64,
    pub(super) words: Vec<u32>,
    /// The fragment block with its end, and where in it.
    pub(super) tail: Option<(u32, u32)>,
    pub(super) size: u64,
    /// How much of it is holes.
    pub(super) sparse: u64,
}

/// What the pipeline made.
pub(super) struct Stored {
    pub(super) files: Vec<Located>,
    pub(super) fragments: Vec<Fragment>,
}

/// Numbers that others may look at meanwhile.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) duplicate_bytes: AtomicU64,
    /// Files that had another size when they were read than when they were looked at.
    pub(super) changed: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) blocks_plain: AtomicU64,
    pub(super) blocks_hole: AtomicU64,
}

/// What all threads need to know.
#[derive(Clone, Copy)]
struct Shared<'r> {
    options: &'r Options,
    counters: &'r Counters,
    /// Set when somebody asks for the end.
    stop: &'r AtomicBool,
    run: &'r Run,
}

/// Whether it still goes on.
#[derive(Default)]
struct Run {
    error: Mutex<Option<WriteError>>,
    over: AtomicBool,
}

impl Run {
    fn fail(&self, error: WriteError) {
        let mut first = self.error.lock();
        *first = first.take().or(Some(error));
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Content in flight takes this much memory for each thread that compresses, in blocks, and as much again once
/// compressed.
const BLOCKS_A_THREAD: u64 = 32;
/// Content in flight may always take this much memory.
const MEMORY_MIN: u64 = 64 << 20;
/// Pieces that may wait for a stage, so that many small ones don't pile up.
const QUEUE_LEN: usize = 1024;
/// Reading waits for disks and servers, so it is done by more threads than would be needed for the work.
const READERS: std::ops::RangeInclusive<usize> = 4..=16;

/// Stores what `feed` hands over at the end of the image; returns what `feed` returned with what became of it.
pub(super) fn run<T>(
    options: &Options,
    counters: &Counters,
    stop: &AtomicBool,
    image: &mut Image<'_>,
    feed: impl FnOnce(Feed<'_>) -> Result<T, WriteError>,
) -> Result<(T, Stored), WriteError> {
    let run = Run::default();
    let shared = Shared { options, counters, stop, run: &run };
    let threads = options.threads.max(1);
    let memory = MEMORY_MIN.max(u64::from(options.block_size) * BLOCKS_A_THREAD * threads as u64);
    let budget = Budget::new(memory);
    let (items, sequenced) = bounded(QUEUE_LEN);
    let (reads, to_read) = bounded(QUEUE_LEN);
    let (jobs, to_do) = bounded(QUEUE_LEN);
    let (tickets, to_store) = bounded(QUEUE_LEN);
    let outcome = std::thread::scope(|scope| {
        // Whoever ends with an error lets the feeder no longer wait for memory, and drops its end of a queue, so that
        // those before it end as well.
        let end = |outcome: Result<(), WriteError>| {
            if let Err(error) = outcome {
                run.fail(error);
                budget.close();
            }
        };
        for _ in 0..threads.clamp(*READERS.start(), *READERS.end()) {
            let to_read = to_read.clone();
            scope.spawn(move || feed::read(shared, &to_read));
        }
        for _ in 0..threads {
            let to_do = to_do.clone();
            scope.spawn(move || end(work::work(shared, &to_do)));
        }
        drop((to_read, to_do));
        scope.spawn(move || end(sequence::sequence(shared, &sequenced, jobs, tickets)));
        let writer = scope.spawn(move || {
            let stored = store::store(shared, &to_store, image);
            stored.map_err(|error| end(Err(error))).ok()
        });
        let fed = feed(Feed::new(shared, &budget, items, reads));
        let fed = fed.map_err(|error| end(Err(error))).ok();
        let stored = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Some((fed?, stored?))
    });
    match (run.error.into_inner(), outcome) {
        (None, Some(outcome)) => Ok(outcome),
        (error, _) => Err(error.unwrap_or(WriteError::Interrupted)),
    }
}
