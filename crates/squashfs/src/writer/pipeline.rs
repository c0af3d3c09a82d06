//! Pipeline that turns contents into blocks: a few threads read, all cores compress, one thread writes in order.
//!
//! ```text
//!   feeder ─► readers ─► sequencer: equal content? blocks, fragments ─► workers: zeros? compress ─► writer
//!     └──────(large files, streams)──┘         └──────────(tickets, in the order of the image)────────┘
//! ```
//!
//! Feeder, sequencer and writer see the files one after the other and make all decisions about the image, so the
//! image does not depend on the number of threads. The feeder reserves memory before a content is read, and the
//! reservation ends when the content is written.

mod block_writer;
mod feeder;
mod sequencer;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use super::budget::Budget;
use super::image::Image;
use super::{Options, WriteError};
use crate::layout::Fragment;

pub(super) use feeder::Feed;

/// Number of a file, in the order in which contents are passed to the pipeline.
pub(super) type FileNumber = usize;

/// Collision-resistant digest of a content.
type Digest = [u8; blake3::OUT_LEN];

/// Location of a file's content in the image.
#[derive(Clone, Debug, Default)]
pub(super) struct Located {
    /// Offset of the first block in bytes; 0 if there is none.
    pub(super) start: u64,
    pub(super) words: Vec<u32>,
    /// Fragment block of the tail, and the offset in it.
    pub(super) tail: Option<(u32, u32)>,
    pub(super) size: u64,
    /// Bytes of holes.
    pub(super) sparse: u64,
}

/// Result of the pipeline.
pub(super) struct Stored {
    pub(super) files: Vec<Located>,
    pub(super) fragments: Vec<Fragment>,
}

/// Counters that other threads may read during the build.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) duplicate_bytes: AtomicU64,
    /// Number of files whose size differed between listing and reading.
    pub(super) changed: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) blocks_plain: AtomicU64,
    pub(super) blocks_hole: AtomicU64,
}

/// Context that all threads share.
#[derive(Clone, Copy)]
struct PipelineContext<'r> {
    options: &'r Options,
    counters: &'r Counters,
    /// Flag that stops the build when set.
    stop: &'r AtomicBool,
    run: &'r RunState,
}

/// State of the run: whether it continues.
#[derive(Default)]
struct RunState {
    error: Mutex<Option<WriteError>>,
    over: AtomicBool,
}

impl RunState {
    fn fail(&self, error: WriteError) {
        let mut first = self.error.lock();
        *first = first.take().or(Some(error));
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Memory for content in flight, in blocks for each compression thread; compressed blocks take as much again.
const BLOCKS_A_THREAD: u64 = 32;
/// Minimum memory for content in flight, in bytes.
const MEMORY_MIN: u64 = 64 << 20;
/// Maximum number of queued items of a stage, which bounds the number of small items.
const QUEUE_LEN: usize = 1024;
/// Number of reader threads. Reading waits for disks and servers, so there are more threads than the work
/// itself needs.
const READERS: std::ops::RangeInclusive<usize> = 4..=16;

/// Stores all contents that `feed` passes on at the end of the image. Returns the result of `feed` and the
/// locations.
pub(super) fn run<T>(
    options: &Options,
    counters: &Counters,
    stop: &AtomicBool,
    image: &mut Image<'_>,
    feed: impl FnOnce(Feed<'_>) -> Result<T, WriteError>,
) -> Result<(T, Stored), WriteError> {
    let run = RunState::default();
    let shared = PipelineContext { options, counters, stop, run: &run };
    let threads = options.threads.max(1);
    let memory = MEMORY_MIN.max(u64::from(options.block_size) * BLOCKS_A_THREAD * threads as u64);
    let budget = Budget::new(memory);
    let (items, sequenced) = bounded(QUEUE_LEN);
    let (reads, to_read) = bounded(QUEUE_LEN);
    let (jobs, to_do) = bounded(QUEUE_LEN);
    let (tickets, to_store) = bounded(QUEUE_LEN);
    let outcome = std::thread::scope(|scope| {
        // A stage that ends with an error closes the memory budget and drops its end of a queue, so that
        // those before it end as well.
        let end = |outcome: Result<(), WriteError>| {
            if let Err(error) = outcome {
                run.fail(error);
                budget.close();
            }
        };
        for _ in 0..threads.clamp(*READERS.start(), *READERS.end()) {
            let to_read = to_read.clone();
            scope.spawn(move || feeder::read(shared, &to_read));
        }
        for _ in 0..threads {
            let to_do = to_do.clone();
            scope.spawn(move || end(worker::work(shared, &to_do)));
        }
        drop((to_read, to_do));
        scope.spawn(move || end(sequencer::sequence(shared, &sequenced, jobs, tickets)));
        let writer = scope.spawn(move || {
            let stored = block_writer::store(shared, &to_store, image);
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
