//! Stores files as objects: a few threads read and cut, all cores compress, hash and put.
//!
//! ```text
//!   feeders ──(pieces, a bounded number of bytes)──► workers: digest ─► known? ─► compress ─► hash ─► put
//! ```
//!
//! Storage that answers late has more workers, which wait for its answers; the encoders are as many as the cores.
//!
//! A piece is a whole small file or one chunk of a large one. Files whose content encoders would make no smaller are stored
//! plain (decision 0181); this is one decision for all chunks of a file, since catalogs have one flag for them. A feeder takes a share of the memory before it
//! reads, and the worker that is done with the piece gives it back.

mod budget;
mod encoders;
pub(crate) mod folder;
mod incompressible;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use esker_format::catalog::{Chunk, Flags};
use esker_format::chunker::Chunker;
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::Entry;
use esker_store::Sink;
use parking_lot::Mutex;

use crate::content_index::{ContentIndex, ContentKey};
use crate::error::PublishError;
use crate::progress::{Counters, TICK};
use crate::source_entry::is_control;
use budget::{Budget, Share};
use encoders::Encoders;
use esker_repository::{RepositoryError, Settings, condemned::Condemned};
use incompressible::{is_incompressible, is_incompressible_piece};

/// Objects that hold the content of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) hash: Option<ContentHash>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) flags: Flags,
    /// Size of the content if it differs from that of the file.
    size: Option<u64>,
}

impl Content {
    /// Sets the content of a file's entry, whose other attributes stay.
    pub(crate) fn set_in(&self, entry: &mut Entry) {
        entry.size = self.size.unwrap_or(entry.size);
        entry.hash = self.hash;
        entry.chunks.clone_from(&self.chunks);
        entry.flags.0 |= self.flags.0;
    }
}

/// A piece of a file on its way from a feeder to a worker.
struct Piece {
    job: usize,
    /// True if the content is hashed only, and left to servers for external data.
    external: bool,
    /// Compression of all chunks of the file; none to decide on it by this piece.
    compression: Option<Compression>,
    /// Offset of a chunk in its file; none if the piece is a whole file.
    offset: Option<u64>,
    plain: Vec<u8>,
    _share: Share,
}

/// State shared by all threads of the pipeline.
pub(crate) struct Pipeline<'r> {
    pub(crate) sink: &'r dyn Sink,
    /// True to store nothing, and count objects as if they were stored.
    pub(crate) is_dry: bool,
    pub(crate) index: &'r ContentIndex,
    /// Objects that a collect is about to delete, which are stored as if they were absent.
    pub(crate) condemned: Option<Condemned>,
    pub(crate) settings: &'r Settings,
    pub(crate) algorithm: HashAlgorithm,
    pub(crate) counters: &'r Counters,
    pub(crate) stop: &'r AtomicBool,
    pub(crate) threads: usize,
}

/// Memory for pieces in flight; a few of the largest chunks may exceed it.
const MEMORY_MAX: u64 = 192 << 20;
/// Maximum number of pieces in the queue of the workers.
const QUEUE_LEN: usize = 256;
/// Number of bytes per read while the feeder searches for a cut.
const BLOCK: usize = 256 << 10;

/// Hands files to a [`Feed`]; runs on a thread of its own.
pub(crate) type Feeder<'f> = Box<dyn FnOnce(&Feed<'_>) -> Result<(), PublishError> + Send + 'f>;

/// State shared by the threads of one run.
#[derive(Default)]
struct Run {
    contents: Mutex<Vec<Content>>,
    error: Mutex<Option<PublishError>>,
    /// Set after an error, or when the caller stops the run.
    over: AtomicBool,
}

impl Run {
    /// Changes what is known of the content of a job.
    fn set(&self, job: usize, change: impl FnOnce(&mut Content)) {
        let mut contents = self.contents.lock();
        if contents.len() <= job {
            contents.resize(job + 1, Content::default());
        }
        change(&mut contents[job]);
    }

    fn fail(&self, error: PublishError) {
        let mut first = self.error.lock();
        *first = first.take().or(Some(error));
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl Pipeline<'_> {
    /// Stores all files from the feeders and returns their objects; `tick` is called at intervals. Returns
    /// where the content of each job went.
    pub(crate) fn run(
        &self,
        feeders: Vec<Feeder<'_>>,
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<Content>, PublishError> {
        let run = Run::default();
        let largest = u64::from(self.settings.chunks.max());
        let budget = Budget::new(MEMORY_MAX.max(largest * (feeders.len() as u64 + 1)));
        let encoders = Encoders::new(self.threads, self.settings)?;
        let (pieces, waiting) = bounded::<Piece>(QUEUE_LEN);
        let (alive, ended) = bounded::<()>(0);
        std::thread::scope(|scope| {
            for feeder in feeders {
                let (pieces, alive) = (pieces.clone(), alive.clone());
                let (run, budget) = (&run, &budget);
                scope.spawn(move || {
                    let _alive = alive;
                    if let Err(error) = feeder(&Feed { pipeline: self, run, budget, pieces }) {
                        run.fail(error);
                    }
                });
            }
            for _ in 0..self.threads.max(self.sink.at_once()) {
                let (waiting, alive) = (waiting.clone(), alive.clone());
                let (run, encoders) = (&run, &encoders);
                scope.spawn(move || {
                    let _alive = alive;
                    if let Err(error) = worker::work(self, run, encoders, &waiting) {
                        run.fail(error);
                        // Feeders would wait without end for budget that no worker returns.
                        waiting.iter().for_each(drop);
                    }
                });
            }
            drop((pieces, waiting, alive));
            // Ends when the last thread has dropped its end.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                if self.stop.load(Ordering::Relaxed) && !run.is_over() {
                    run.fail(RepositoryError::Interrupted.into());
                }
                tick();
            }
        });
        match run.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(in_order(run.contents.into_inner())),
        }
    }
}

impl Pipeline<'_> {
    /// Returns the compression of a file whose first piece this is: none for content that no encoder makes smaller. What is stored
    /// compressed already stays so, since it would be stored twice.
    fn compression_of(
        &self,
        first: &[u8],
        kind: ObjectKind,
        size: u64,
        sample: Option<&Sample<'_>>,
    ) -> Compression {
        let usual = self.settings.compression;
        let is_incompressible = || match sample {
            Some(sample) => is_incompressible(size, sample),
            None => is_incompressible_piece(first),
        };
        let key = || ContentKey::of(first, self.algorithm, usual, kind);
        if usual != Compression::Stored && is_incompressible() && self.index.find(&key()).is_none() {
            return Compression::Stored;
        }
        usual
    }

    fn is_condemned(&self, object: &ObjectName) -> Result<bool, RepositoryError> {
        self.condemned.as_ref().map_or(Ok(false), |condemned| condemned.contains(object))
    }
}

/// Sorts the chunks of each file, which workers finish in any order.
fn in_order(mut contents: Vec<Content>) -> Vec<Content> {
    for content in &mut contents {
        content.chunks.sort_unstable_by_key(|chunk| chunk.offset);
    }
    contents
}

/// Input of the pipeline, into which a feeder puts files.
pub(crate) struct Feed<'r> {
    pipeline: &'r Pipeline<'r>,
    run: &'r Run,
    budget: &'r Budget,
    pieces: Sender<Piece>,
}

/// A file that is about to be read.
#[derive(Clone, Copy)]
struct FileOfJob {
    job: usize,
    external: bool,
    size: u64,
}

/// Fills a buffer with the next bytes of a file; fewer only at its end.
type Fill<'f> = dyn FnMut(&mut [u8]) -> Result<usize, PublishError> + 'f;

/// Fills a buffer with the bytes of a file at an offset; false if it can't.
type Sample<'f> = dyn Fn(u64, &mut [u8]) -> bool + 'f;

impl Feed<'_> {
    /// Returns true if the pipeline accepts no more files.
    pub(crate) fn is_over(&self) -> bool {
        self.run.is_over()
    }

    /// Stores a file of `size` bytes under the number of its job. False means that it ended too early. Without `sample`, the
    /// beginning of a large file decides whether the file is compressed.
    pub(crate) fn store(
        &self,
        job: usize,
        name: &[u8],
        size: u64,
        fill: &mut Fill<'_>,
        sample: Option<&Sample<'_>>,
    ) -> Result<bool, PublishError> {
        let settings = self.pipeline.settings;
        let file = FileOfJob { job, external: settings.external_data && !is_control(name), size };
        let stored = if size <= u64::from(settings.chunks.min()) {
            self.store_whole(file, fill)?
        } else {
            self.store_chunks(file, fill, sample)?
        };
        self.pipeline.counters.files.fetch_add(1, Ordering::Relaxed);
        Ok(stored)
    }

    /// Stores content that stands for that of a file.
    fn store_instead(&self, job: usize, name: &[u8], content: &[u8]) -> Result<bool, PublishError> {
        let size = content.len() as u64;
        self.run.set(job, |content| content.size = Some(size));
        let mut rest = content;
        let fill = &mut |room: &mut [u8]| {
            let len = room.len().min(rest.len());
            room[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            Ok(len)
        };
        self.store(job, name, size, fill, None)
    }

    fn fill(&self, room: &mut [u8], fill: &mut Fill<'_>) -> Result<bool, PublishError> {
        let read = fill(room)?;
        self.pipeline.counters.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read == room.len())
    }

    fn store_whole(&self, file: FileOfJob, fill: &mut Fill<'_>) -> Result<bool, PublishError> {
        let FileOfJob { job, external, size } = file;
        let share = self.budget.take(size);
        // No larger than the smallest size of a chunk, which fits.
        let mut plain = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        if !self.fill(&mut plain, fill)? {
            return Ok(false);
        }
        self.send(Piece { job, external, compression: None, offset: None, plain, _share: share });
        Ok(true)
    }

    fn store_chunks(
        &self,
        file: FileOfJob,
        fill: &mut Fill<'_>,
        sample: Option<&Sample<'_>>,
    ) -> Result<bool, PublishError> {
        let FileOfJob { job, external, size } = file;
        let sizes = self.pipeline.settings.chunks;
        let largest = sizes.max() as usize;
        let mut cutting = Cutting { chunker: Chunker::new(sizes), carried: Vec::new() };
        let (mut offset, mut left, mut compression) = (0, size, None);
        while left > 0 && !self.is_over() {
            let mut share = self.budget.take(u64::from(sizes.max()));
            let mut plain = Vec::with_capacity(largest.min(usize::try_from(left).unwrap_or(largest)));
            let Some(cut) = self.next_chunk(&mut cutting, left, &mut plain, fill)? else { return Ok(false) };
            let len = plain.len() as u64;
            share.shrink(len);
            let is_whole = !cut && offset == 0;
            let offset_in_file = (!is_whole).then_some(offset);
            if offset == 0 && !external {
                let kind = if is_whole { ObjectKind::File } else { ObjectKind::Chunk };
                compression = Some(self.pipeline.compression_of(&plain, kind, size, sample));
            }
            self.send(Piece { job, external, compression, offset: offset_in_file, plain, _share: share });
            offset += len;
            left -= len;
        }
        Ok(true)
    }

    /// Collects the bytes of one chunk; returns whether a cut ends it, or none if the file was shorter than
    /// expected. Tells whether it ends in a cut, or else at the end of the file; none if the file ended too
    /// early.
    fn next_chunk(
        &self,
        cutting: &mut Cutting,
        left: u64,
        plain: &mut Vec<u8>,
        fill: &mut Fill<'_>,
    ) -> Result<Option<bool>, PublishError> {
        let mut fresh = std::mem::take(&mut cutting.carried);
        loop {
            if let Some(cut) = cutting.chunker.next_cut(&fresh) {
                cutting.carried.extend_from_slice(&fresh[cut..]);
                plain.extend_from_slice(&fresh[..cut]);
                return Ok(Some(true));
            }
            plain.extend_from_slice(&fresh);
            let missing = left - plain.len() as u64;
            if missing == 0 {
                return Ok(Some(false));
            }
            fresh.resize(BLOCK.min(usize::try_from(missing).unwrap_or(BLOCK)), 0);
            if !self.fill(&mut fresh, fill)? {
                return Ok(None);
            }
        }
    }

    fn send(&self, piece: Piece) {
        // If no worker is left, there is an error already.
        let _ = self.pieces.send(piece);
    }
}

/// The state between two chunks of a file.
struct Cutting {
    chunker: Chunker,
    /// Bytes read beyond the last cut.
    carried: Vec<u8>,
}
