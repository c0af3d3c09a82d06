//! Events that predictors handle, and the actions that they request.

use std::ops::Range;
use std::sync::Arc;

use esker_format::catalog::Chunk;
use esker_store::{CacheKey, Handle, ObjectRequest};
use esker_vfs::NodeKey;

use crate::cluster::Cluster;
use crate::elf_files::ElfFile;
use crate::elf_needed::NeededSearch;
use crate::folders::Leaf;
use crate::python_imports::PythonModule;
use crate::world::File;

/// Event that predictors handle; `C` is the request for a catalog.
pub enum Event<C> {
    /// A program reads a part of an object, for the first time in a while.
    Read(Read),
    /// A program reads a prefetched file that triggers a bundle.
    TriggerRead(File),
    /// A prefetch has ended.
    Ended(Ended),
    /// An object whose content decides what is prefetched next was opened; `None` if it could not be fetched.
    Opened(Purpose, Option<Handle>),
    /// The files around a small file are likely next.
    Around(Around),
    /// Libraries will probably be used: a module imports them, or another library needs them.
    LibrariesExpected(Vec<(NodeKey, ElfFile)>),
    /// The libraries that a file needs should be found.
    LibrariesNeeded(NeededSearch),
    /// The files of the same kind beside a module are likely next.
    BesideModule(Vec<u8>),
    /// A module imports these files.
    Imported {
        /// The files, in order.
        leaves: Vec<Leaf>,
        /// The module.
        module: PythonModule,
        /// Content of the module, for a retry.
        handle: Handle,
    },
    /// Files are read after a trigger or a step of a sequence.
    Cluster(Box<Cluster<C>>),
    /// The specification of a bundle has arrived or failed.
    BundleArrived,
}

/// A read of a part of an object.
#[derive(Clone, Debug)]
pub struct Read {
    /// File of the read.
    pub file: File,
    /// Key of the object.
    pub key: CacheKey,
    /// Offset in the file at which the object begins.
    pub at: u64,
    /// Range of the file that is read.
    pub range: Range<u64>,
    /// Location of the object.
    pub source: Source,
    /// True if a sequence predicts what comes next.
    pub is_guided: bool,
    /// True if modules whose imports are evaluated are around the file.
    pub is_among_modules: bool,
    /// Chunks of the file, and whether they are those of a library or executable.
    pub chunks: Option<(Arc<[Chunk]>, bool)>,
}

/// Location of the object of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// On a server: a program waits for it. It is expected if it was queued or being fetched.
    Server {
        /// True if the object was a candidate, or being prefetched.
        expected: bool,
    },
    /// In the cache, and probably not in memory.
    Disk,
    /// In memory, because it was just prefetched.
    Prefetched,
    /// In memory, because it has just arrived for another reason, or another part of it was read before.
    Memory,
}

impl Read {
    /// True if a program waits for the object and nothing predicted it.
    pub(crate) fn is_surprise(&self) -> bool {
        self.source == Source::Server { expected: false }
    }

    /// Returns the path of a small file, if its neighbours are likely to be read next.
    pub(crate) fn small_file(&self) -> Option<&[u8]> {
        let is_small = !self.file.is_chunked && !self.file.is_trigger && !self.is_guided;
        self.file.path.as_deref().filter(|_| is_small)
    }
}

/// End of a prefetch.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Key of the object.
    pub key: CacheKey,
    /// Result of the fetch.
    pub outcome: Outcome,
}

/// Result of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object was fetched.
    Fetched,
    /// The object was in the cache already.
    WasThere,
    /// The object could not be fetched.
    Failed,
}

/// Files around a small file.
#[derive(Clone, Debug)]
pub struct Around {
    /// Path of the small file.
    pub path: Vec<u8>,
    /// True if a program waited for it, and nothing predicted it.
    pub was_missed: bool,
    /// True if modules whose imports are evaluated are around the file.
    pub is_among_modules: bool,
    /// Number of retries so far because catalogs were missing.
    pub tries: u32,
}

/// Purpose of an object that a predictor reads.
pub enum Purpose {
    /// The specification of the bundle of a trigger in this directory.
    Bundle {
        /// Node of the trigger.
        trigger: NodeKey,
        /// Directory of both files.
        directory: Vec<u8>,
    },
    /// A compiled module, whose imports are evaluated.
    Module(PythonModule),
    /// The chunk of this number, which describes a library or executable.
    ElfPart(NodeKey, usize),
}

/// Action of the caller of the [planner](crate::Planner).
pub enum Action<C> {
    /// Fetch an object and open it; then handle [`Event::Opened`] with the purpose.
    Open(ObjectRequest, Purpose),
    /// Fetch and attach catalogs; then handle the event, unless none could be attached.
    Attach(Vec<C>, Event<C>),
    /// Handle the event after those that wait.
    Continue(Event<C>),
}
