//! An image opened for reading.
//!
//! Every question is asked twice if need be: first with what is cached, on the thread of whoever asks; if something is
//! missing, again on a thread of the pool, which may wait for it. So that thread can be written as if everything were
//! there.

pub(crate) mod content;
mod directories;
mod inodes;
mod metadata;
mod tables;
mod xattrs;

use std::sync::Arc;

use esker_vfs::{DirEntry, ErrorKind, Reply, Requester, TreeError};

pub(crate) use content::{FileState, Piece};

use directories::Landmark;
pub(crate) use inodes::Inode;
pub(crate) use metadata::MetaBlock;

use crate::blocks::Blocks;
use crate::cache::Cache;
use crate::fault::Fault;
use crate::flights::Flights;
use crate::image::Image;
use crate::layout::{LayoutError, SUPERBLOCK_LEN, Superblock};
use crate::pieces::Pieces;
use crate::pool::Pool;
use crate::{OpenError, Options};

/// Why a question has no answer yet, or none at all.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// Something is not cached, and this thread must not wait.
    Missing,
    /// The image is damaged or can't be read.
    Fault(Fault),
    /// The question itself was wrong.
    Wrong(ErrorKind),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ErrorKind> for Stop {
    fn from(kind: ErrorKind) -> Self {
        Self::Wrong(kind)
    }
}

pub(crate) type Answer<T> = Result<T, Stop>;

/// The parts of an open image.
pub(crate) struct Core {
    /// Whom everything is shown to belong to.
    owner: Option<(u32, u32)>,
    pub(crate) name: Arc<str>,
    pub(crate) superblock: Superblock,
    pub(crate) tables: tables::Tables,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) pool: Arc<Pool>,
    image: Arc<dyn Image>,
    pieces: Arc<Pieces>,
    metadata: Cache<u64, MetaBlock>,
    decoding: Flights<u64, MetaBlock>,
    landmarks: Cache<u64, Arc<[Landmark]>>,
    windows: Cache<(u64, usize), Arc<[DirEntry]>>,
    files: Cache<u64, Arc<FileState>>,
}

/// A look at the image, by a thread that may wait or may not.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) core: &'a Core,
    pub(crate) may_wait: bool,
}

impl Core {
    /// Opens an image: reads its superblock and checks everything that can be checked without reading all of it.
    pub(crate) fn open(image: Arc<dyn Image>, options: &Options) -> Result<Self, OpenError> {
        let name = image.name();
        let fault = |error: LayoutError| match error {
            LayoutError::Magic => OpenError::NoImage(Arc::clone(&name)),
            LayoutError::Unsupported { what } => OpenError::Unsupported(Arc::clone(&name), what),
            error => OpenError::Fault(Fault::damaged(&name, 0, error)),
        };
        let mut bytes = [0; SUPERBLOCK_LEN];
        if image.len() < SUPERBLOCK_LEN as u64 {
            return Err(OpenError::NoImage(name));
        }
        image.read_at(0, &mut bytes).map_err(|error| Fault::read(&name, 0, SUPERBLOCK_LEN, error))?;
        let superblock = Superblock::decode(&bytes).map_err(fault)?;
        tables::check(&superblock, image.len()).map_err(fault)?;
        let threads = if options.threads == 0 { image.parallel() } else { options.threads };
        let threads = if threads == 0 { default_threads() } else { threads };
        let pool = Arc::new(Pool::new(threads).map_err(OpenError::Thread)?);
        let pieces = Arc::new(Pieces::new(&image, superblock.bytes_used, options.metadata_bytes));
        let striped = (image.stripe() > 0).then(|| Arc::clone(&pieces));
        let blocks = Blocks::new(&image, &superblock, striped, Arc::clone(&pool), options);
        let mut core = Self {
            pieces,
            metadata: Cache::new(options.metadata_bytes, crate::layout::METADATA_BLOCK),
            decoding: Flights::new(),
            landmarks: Cache::new(options.metadata_bytes / 8, 1 << 16),
            windows: Cache::new(options.metadata_bytes, 1 << 20),
            files: Cache::new(options.metadata_bytes / 8, 1 << 10),
            tables: tables::Tables::default(),
            owner: options.owner,
            name,
            superblock,
            blocks,
            pool,
            image,
        };
        core.tables = core.waiting().read_tables().map_err(|stop| match stop {
            Stop::Fault(fault) => OpenError::Fault(fault),
            Stop::Missing | Stop::Wrong(_) => {
                OpenError::Fault(core.fault(superblock.id_table, "the tables can't be read"))
            }
        })?;
        Ok(core)
    }

    /// A look that may wait.
    pub(crate) const fn waiting(&self) -> Scene<'_> {
        Scene { core: self, may_wait: true }
    }

    /// A look at what is cached.
    pub(crate) const fn glance(&self) -> Scene<'_> {
        Scene { core: self, may_wait: false }
    }

    /// Something is wrong at a place of the image.
    pub(crate) fn fault(&self, offset: u64, what: impl std::fmt::Display) -> Fault {
        Fault::damaged(&self.name, offset, what)
    }

    /// How many bytes of blocks, of a file's metadata and so on are kept.
    pub(crate) fn kept(&self) -> usize {
        self.blocks.weight() + self.metadata.weight()
    }

    /// Makes a call that waits follow what comes of the image.
    pub(crate) fn follow(&self, requester: &Requester) {
        let image = Arc::clone(&self.image);
        requester.follow(move || image.progress());
    }

    /// Answers a question: at once if everything for it is cached, otherwise from the pool.
    pub(crate) fn serve<T: Send + 'static>(
        self: &Arc<Self>,
        reply: Reply<T>,
        ask: impl Fn(Scene<'_>) -> Answer<T> + Send + 'static,
    ) {
        match ask(self.glance()) {
            Err(Stop::Missing) => {
                self.follow(reply.requester());
                let core = Arc::clone(self);
                self.pool.run(move || reply.give(ask(core.waiting()).map_err(of_stop)));
            }
            answer => reply.give(answer.map_err(of_stop)),
        }
    }
}

/// The threads also wait for the disk, so there are more than a small machine has cores.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(4, usize::from).clamp(4, 32)
}

/// The error of a question that was asked where it may wait.
pub(crate) fn of_stop(stop: Stop) -> TreeError {
    match stop {
        Stop::Fault(fault) => fault.into(),
        Stop::Wrong(kind) => kind.into(),
        Stop::Missing => ErrorKind::Internal.into(),
    }
}
