//! Files become objects: read and cut by a few threads, compressed, hashed and put by all cores.
//!
//! ```text
//!   readers ──(pieces, a bounded number of bytes)──► workers: digest ─► known? ─► compress ─► hash ─► put
//! ```
//!
//! A piece is a whole small file or one chunk of a large one. Readers take a share of the memory before they
//! read, and the worker that is done with the piece gives it back.

mod budget;
mod reader;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use esker_format::catalog::{Chunk, Flags};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_store::Sink;
use parking_lot::Mutex;

use crate::content_index::ContentIndex;
use crate::error::AdminError;
use crate::plan::Plan;
use crate::progress::Counters;
use crate::settings::Settings;
use crate::source::Source;
use budget::{Budget, Share};

/// Where the content of a file went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) hash: Option<ContentHash>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) flags: Flags,
}

/// A piece of a file on its way from a reader to a worker.
struct Piece {
    job: usize,
    /// Where a chunk starts; none if the piece is a whole file.
    offset: Option<u64>,
    plain: Vec<u8>,
    _share: Share,
}

/// What all threads of the pipeline need.
pub(crate) struct Pipeline<'r> {
    pub(crate) source: &'r Source,
    pub(crate) sink: &'r dyn Sink,
    pub(crate) index: &'r ContentIndex,
    pub(crate) settings: &'r Settings,
    pub(crate) algorithm: HashAlgorithm,
    pub(crate) counters: &'r Counters,
    pub(crate) stop: &'r AtomicBool,
}

/// Pieces in flight take this much memory at most, or what a few of the largest chunks need.
const MEMORY_MAX: u64 = 192 << 20;
/// Pieces that may wait for a worker, so that many small files don't pile up.
const QUEUE_LEN: usize = 256;
/// How often the progress is told.
const TICK: Duration = Duration::from_millis(200);

/// What the threads of one run share.
struct Run {
    contents: Mutex<Vec<Content>>,
    error: Mutex<Option<AdminError>>,
    /// Set once there is an error, or somebody asked for the end.
    over: AtomicBool,
    next: std::sync::atomic::AtomicUsize,
}

impl Run {
    fn fail(&self, error: AdminError) {
        let mut first = self.error.lock();
        *first = first.take().or(Some(error));
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl Pipeline<'_> {
    /// Stores everything that the plan has to read; `tick` is called now and then.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        threads: usize,
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<Content>, AdminError> {
        let batches = reader::batches(plan, u64::from(self.settings.chunks.min()));
        let run = Run {
            contents: Mutex::new(vec![Content::default(); plan.jobs]),
            error: Mutex::default(),
            over: AtomicBool::new(false),
            next: Default::default(),
        };
        let readers = threads.clamp(2, 8);
        let largest = u64::from(self.settings.chunks.max());
        let budget = Budget::new(MEMORY_MAX.max(largest * (readers as u64 + 1)));
        let (pieces, waiting) = bounded::<Piece>(QUEUE_LEN);
        let (alive, ended) = bounded::<()>(0);
        std::thread::scope(|scope| {
            for _ in 0..readers {
                let (pieces, alive) = (pieces.clone(), alive.clone());
                let (run, batches, budget) = (&run, &batches, &budget);
                scope.spawn(move || {
                    let _alive = alive;
                    if let Err(error) = reader::work(self, run, batches, budget, &pieces) {
                        run.fail(error);
                    }
                });
            }
            for _ in 0..threads {
                let (waiting, alive) = (waiting.clone(), alive.clone());
                let run = &run;
                scope.spawn(move || {
                    let _alive = alive;
                    if let Err(error) = worker::work(self, run, &waiting) {
                        run.fail(error);
                        // Readers must not wait for room that nobody would give back.
                        waiting.iter().for_each(drop);
                    }
                });
            }
            drop((pieces, waiting, alive));
            // Ends when the last thread has dropped its end.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                if self.stop.load(Ordering::Relaxed) && !run.is_over() {
                    run.fail(AdminError::Interrupted);
                }
                tick();
            }
        });
        match run.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(finished(run.contents.into_inner())),
        }
    }
}

/// Puts the chunks of each file in order, which workers finish in any.
fn finished(mut contents: Vec<Content>) -> Vec<Content> {
    for content in &mut contents {
        content.chunks.sort_unstable_by_key(|chunk| chunk.offset);
    }
    contents
}
