//! Fetching ahead: what a program that waits for one object will probably read next.
//!
//! Only a READ that misses starts it (a LOOKUP would fire on `ls -l`). Reads do no more than tell a thread of what they
//! met; that thread looks at the catalogs around, and into compiled modules, guesses, and has the store warm the cache as far as that delays
//! nothing demanded. What it may guess is bounded by what programs read ([`Budget`]), except for libraries and executables
//! in use: what the loader reads of them comes at once, and the rest of what is mapped when nothing else happens, so that a
//! later outage doesn't fault a running job, unless a publisher announced what is read.

mod bundles;
mod elf_files;
mod elf_needed;
mod listings;
mod objects;
mod python_imports;
mod retry;
mod scheduler;
pub(crate) mod thread;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use esker_prefetch::PART;
use esker_prefetch::budget::Budget;
use esker_prefetch::elf_needed::NeededSearch;
use esker_prefetch::python_imports::PythonModule;
use esker_prefetch::recent_reads::RecentReads;
pub use esker_prefetch::{Arrival, PrefetchEvent, PrefetchListener};
use esker_store::{CacheKey, CancelToken, Handle};
use esker_vfs::{Node, NodeKey};
use parking_lot::Mutex;

use crate::catalogs::{Attached, WantedCatalog};
use crate::payload::NodeInfo;

/// Files that are read after another one, whose catalogs are those of a view.
pub(crate) type Cluster = esker_prefetch::bundles::Cluster<WantedCatalog>;

/// What bundles may bring that nobody has read yet: plain bytes. More than the largest of
/// the packages that programs load at once, and never more than half of the cache.
const PUBLISHED_MAX: u64 = 2 << 30;

/// With so many misses not looked at yet, further ones are not worth a guess.
const BACKLOG_MAX: usize = 1024;

/// What the planner is told.
pub(crate) enum Event {
    /// A program waits for an object.
    Missed(Miss),
    /// A program reads what was in the cache, for the first time in a while.
    FirstRead(FirstRead),
    /// Catalogs that a guess needed are attached; they are held until it is made again.
    Catalogs { path: Vec<u8>, attached: Vec<Arc<Attached>>, tries: u32 },
    /// An object is there, or is not to be had now.
    Warmed { key: CacheKey, outcome: Outcome },
    /// A file that was fetched ahead is read, and announces others.
    BundleObject(Node),
    /// The bundle of a trigger in this directory is there, or is not to be had now.
    Spec { trigger: NodeKey, directory: Vec<u8>, handle: Option<Handle> },
    /// A compiled module is there, or is not to be had now; catalogs that the guess needed are attached.
    PythonModule { module: PythonModule, handle: Option<Handle>, attached: Vec<Arc<Attached>> },
    /// A part of a library or executable that tells what its loader reads is there, or is not to be had now.
    Part { file: NodeKey, number: usize, handle: Option<Handle> },
    /// The libraries that one needs are to be found; catalogs that this needed are attached.
    Needed { need: NeededSearch, attached: Vec<Arc<Attached>> },
    /// A cluster goes on; catalogs that it needed are attached.
    Cluster { cluster: Box<Cluster>, attached: Vec<Arc<Attached>> },
    /// Guesses came true, so more are allowed.
    Earned,
    /// The view ends.
    Closed,
}

/// A read of a part of an object.
#[derive(Clone, Debug)]
pub(crate) struct PartRead {
    pub(crate) key: CacheKey,
    /// Where in the file the object begins, and its plain bytes.
    pub(crate) at: u64,
    pub(crate) size: u64,
    /// The bytes of the file that are read.
    pub(crate) range: Range<u64>,
}

/// A first read of something that was in the cache.
#[derive(Clone, Debug)]
pub(crate) struct FirstRead {
    /// The file.
    pub(crate) node: Node,
    pub(crate) read: PartRead,
    pub(crate) source: ReadSource,
}

/// Where the object was that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// In the cache, and probably not in memory.
    Disk,
    /// Just come, as a guess of our own.
    Prefetched,
    /// Just come otherwise, or another part of it was read before.
    Memory,
}

/// A read that had to wait.
#[derive(Clone, Debug)]
pub(crate) struct Miss {
    /// The file.
    pub(crate) node: Node,
    pub(crate) read: PartRead,
    /// Whether the object was on its way already.
    pub(crate) guessed: bool,
}

/// What came of warming the cache with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Fetched,
    WasThere,
    Failed,
}

/// What reads tell.
pub(crate) struct Prefetch {
    /// `None` if nothing is to be fetched ahead.
    events: Option<Sender<Event>>,
    /// Misses and first reads sent and not looked at yet.
    backlog: AtomicUsize,
    /// Whether the planner would go on if it were allowed more.
    starved: AtomicBool,
    budget: Budget,
    /// The same for what publishers announce, which is worth more.
    published: Budget,
    /// The same for what was learned here.
    learned: Budget,
    recent_reads: RecentReads<CacheKey>,
    /// Parts of large objects, by the number of the part.
    recent_parts: RecentReads<(CacheKey, u64)>,
    /// Who hears of what is foreseen.
    pub(crate) listener: OnceLock<PrefetchListener>,
    /// The planner.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// All that is fetched ahead; ends with the view.
    cancel_token: CancelToken,
}

impl Prefetch {
    /// Nothing is fetched ahead.
    pub(crate) fn off() -> Self {
        Self {
            events: None,
            backlog: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            budget: Budget::default(),
            published: Budget::bounded(0),
            learned: Budget::default(),
            recent_reads: RecentReads::default(),
            recent_parts: RecentReads::default(),
            listener: OnceLock::new(),
            thread: Mutex::default(),
            cancel_token: CancelToken::new(),
        }
    }

    /// Fetches ahead into a cache of this size, once [`start`] was called with the receiver.
    pub(crate) fn new(quota: u64) -> (Self, Receiver<Event>) {
        let (events, inbox) = channel();
        let published = Budget::bounded(PUBLISHED_MAX.min(quota / 2));
        (Self { events: Some(events), published, ..Self::off() }, inbox)
    }

    /// A program reads a part of an object that was there.
    pub(crate) fn read(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        let guessed = self.budget.read(&key);
        let came = self.published.read(&key) | self.learned.read(&key) | guessed;
        // It would have announced others, had it been missed.
        if came && NodeInfo::of(node).is_ok_and(|info| info.bundle) {
            self.tell(Event::BundleObject(*node));
        }
        if came && self.starved.swap(false, Ordering::Relaxed) {
            self.tell(Event::Earned);
        }
        let first = self.recent_reads.is_first(key);
        if self.is_first_of_part(first, read) && self.is_room() {
            let source = match (guessed, came) {
                (true, _) => ReadSource::Prefetched,
                // What has just come is in memory, and so probably are its neighbours.
                (false, false) if first => ReadSource::Disk,
                _ => ReadSource::Memory,
            };
            self.tell(Event::FirstRead(FirstRead { node: *node, read: read.clone(), source }));
        }
    }

    /// A program waits for an object of which it reads a part.
    pub(crate) fn missed(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        // What has just come is in memory.
        let first = self.recent_reads.is_first(key);
        // One that is not to be had is waited for again and again, and each part of one.
        let bytes = if first { read.size } else { 0 };
        let guessed = self.budget.missed(&key, bytes)
            | self.published.missed(&key, bytes)
            | self.learned.missed(&key, bytes);
        self.is_first_of_part(first, read);
        if self.is_room() {
            self.tell(Event::Missed(Miss { node: *node, read: read.clone(), guessed }));
        }
    }

    /// Whether something is read that was not read in a while, given whether that is true of the object.
    fn is_first_of_part(&self, first: bool, read: &PartRead) -> bool {
        if read.size <= PART || read.range.is_empty() {
            return first;
        }
        let parts = read.range.start / PART..=(read.range.end - 1) / PART;
        parts.fold(false, |any, part| self.recent_parts.is_first((read.key, part)) | any)
    }

    /// Takes a place in the backlog.
    fn is_room(&self) -> bool {
        let room = self.backlog.fetch_add(1, Ordering::Relaxed) < BACKLOG_MAX;
        if !room {
            self.backlog.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// Calls off what is queued, and waits until what was learned is saved.
    pub(crate) fn close(&self) {
        self.cancel_token.cancel();
        self.tell(Event::Closed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // Its panic was reported, and costs only what is fetched ahead.
            let _ = thread.join();
        }
    }

    /// Sends an event to the scheduler.
    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // The planner ends before us only if it panicked, and then nothing is fetched ahead.
            let _ = events.send(event);
        }
    }
}
