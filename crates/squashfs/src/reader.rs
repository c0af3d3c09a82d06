//! An image opened for reading.
//!
//! Every request runs twice if need be: first on the calling thread, with cached data only; if data is
//! missing, again on a pool thread, which may block. So the code of a request is written as if all data were
//! there.

pub(crate) mod content;
mod directories;
mod inodes;
mod metadata;
mod tables;
mod xattrs;

use std::sync::Arc;

use esker_threads::Pool;
use esker_threads::waits::{self, WaitClock};
use esker_vfs::{DirEntry, ErrorKind, Origin, Reply, Requester, TreeError};

pub(crate) use content::{FileState, Piece};

use directories::SeekPoint;
pub(crate) use inodes::Inode;
pub(crate) use metadata::MetaBlock;

use crate::blocks::Blocks;
use crate::cache::Cache;
use crate::fault::Fault;
use crate::image::Image;
use crate::layout::{LayoutError, SUPERBLOCK_LEN, Superblock};
use crate::loading_cache::LoadingCache;
use crate::read_cache::ReadCache;
use crate::{OpenError, Options};

/// Reasons why a request has no result.
#[derive(Clone, Debug)]
pub(crate) enum ReadError {
    /// Data is not cached, and this thread must not block.
    NotCached,
    /// The image is damaged or can't be read.
    Fault(Fault),
    /// The request was invalid for this node.
    Invalid(ErrorKind),
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ErrorKind> for ReadError {
    fn from(kind: ErrorKind) -> Self {
        Self::Invalid(kind)
    }
}

pub(crate) type ReadResult<T> = Result<T, ReadError>;

/// Components of an open image.
pub(crate) struct Core {
    /// User and group that own all files, in place of the owners in the image.
    owner: Option<(u32, u32)>,
    /// Numbers added to those of users and groups in the image.
    first_ids: (u32, u32),
    pub(crate) name: Arc<str>,
    pub(crate) superblock: Superblock,
    pub(crate) tables: tables::Tables,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) pool: Arc<Pool>,
    image: Arc<dyn Image>,
    pieces: Arc<ReadCache>,
    metadata: LoadingCache<u64, MetaBlock>,
    seek_points: Cache<u64, Arc<[SeekPoint]>>,
    windows: Cache<(u64, usize), Arc<[DirEntry]>>,
    files: Cache<u64, Arc<FileState>>,
}

/// Access to the image by a thread that may, or may not, block.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) core: &'a Core,
    pub(crate) may_wait: bool,
}

/// Returns the clock of a call that waits for threads of the image.
pub(crate) fn waits_of(requester: &Requester) -> Arc<WaitClock> {
    let clock = Arc::new(WaitClock::default());
    let seen = Arc::clone(&clock);
    requester.add_waits(move || seen.times());
    clock
}

impl Core {
    /// Opens an image: reads its superblock and validates everything that needs no complete read.
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
        let pool = Arc::new(Pool::start("image", threads).map_err(OpenError::Thread)?);
        let pieces = Arc::new(ReadCache::new(&image, superblock.bytes_used, options.metadata_bytes));
        let striped = (image.stripe() > 0).then(|| Arc::clone(&pieces));
        let blocks = Blocks::new(&image, &superblock, striped, Arc::clone(&pool), options);
        let mut core = Self {
            pieces,
            metadata: LoadingCache::new(
                options.metadata_bytes,
                crate::layout::METADATA_BLOCK,
                MetaBlock::weight,
            ),
            seek_points: Cache::new(options.metadata_bytes / 8, 1 << 16),
            windows: Cache::new(options.metadata_bytes, 1 << 20),
            files: Cache::new(options.metadata_bytes / 8, 1 << 10),
            tables: tables::Tables::default(),
            owner: options.owner,
            first_ids: options.first_ids,
            name,
            superblock,
            blocks,
            pool,
            image,
        };
        core.tables = core.blocking().read_tables().map_err(|error| match error {
            ReadError::Fault(fault) => OpenError::Fault(fault),
            ReadError::NotCached | ReadError::Invalid(_) => {
                OpenError::Fault(core.fault(superblock.id_table, "the tables can't be read"))
            }
        })?;
        Ok(core)
    }

    /// Returns access that may block.
    pub(crate) const fn blocking(&self) -> Access<'_> {
        Access { core: self, may_wait: true }
    }

    /// Returns access to cached data only.
    pub(crate) const fn cached_only(&self) -> Access<'_> {
        Access { core: self, may_wait: false }
    }

    /// Creates the error for a fault at `offset` of the image.
    pub(crate) fn fault(&self, offset: u64, what: impl std::fmt::Display) -> Fault {
        Fault::damaged(&self.name, offset, what)
    }

    /// Returns the size of all caches in bytes.
    pub(crate) fn kept(&self) -> usize {
        self.blocks.weight() + self.metadata.weight()
    }

    /// Makes a waiting call follow the progress of the image's source.
    pub(crate) fn follow(&self, requester: &Requester) {
        let image = Arc::clone(&self.image);
        requester.follow(move || image.progress());
        requester.may_come_from(|| {
            let name = Arc::clone(&self.name);
            Box::new(move || Some(Origin::Image(Arc::clone(&name))))
        });
    }

    /// Answers a request: at once if all its data is cached, otherwise from the pool.
    pub(crate) fn serve<T: Send + 'static>(
        self: &Arc<Self>,
        reply: Reply<T>,
        ask: impl Fn(Access<'_>) -> ReadResult<T> + Send + 'static,
    ) {
        match ask(self.cached_only()) {
            Err(ReadError::NotCached) => {
                self.follow(reply.requester());
                let clock = waits_of(reply.requester());
                let core = Arc::clone(self);
                self.pool.run(move || {
                    let answer = ask(core.blocking());
                    clock.add(waits::of_this_job());
                    reply.give(answer.map_err(tree_error));
                });
            }
            answer => reply.give(answer.map_err(tree_error)),
        }
    }
}

/// Returns the default number of threads. They also wait for the disk, so there are more than cores on a
/// small machine.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(4, usize::from).clamp(4, 32)
}

/// Converts the error of a request that was allowed to block.
pub(crate) fn tree_error(error: ReadError) -> TreeError {
    match error {
        ReadError::Fault(fault) => fault.into(),
        ReadError::Invalid(kind) => kind.into(),
        ReadError::NotCached => ErrorKind::Internal.into(),
    }
}
