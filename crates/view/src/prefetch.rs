//! Prefetches what a program that waits for one object will probably read next.
//!
//! Only a READ that misses starts it (a LOOKUP would start it on `ls -l`). Reads only send an event to a thread; that
//! thread looks at the catalogs around, and into compiled modules, collects candidates, and has the store fetch them
//! without delaying demanded objects. Candidates are bounded by the bytes that programs read ([`Budget`]), except for
//! libraries and executables in use: the parts that the loader reads are fetched at once, and the rest of the mapped
//! parts in idle time, so that a later outage doesn't fault a running job, unless a publisher announced which parts
//! are read.

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

/// Files that are read after a trigger, in the catalogs of a view.
pub(crate) type Cluster = esker_prefetch::bundles::Cluster<WantedCatalog>;

/// Maximum plain bytes from bundles that are unread.
///
/// It is more than the largest of the packages that programs load at once, and never more than half of the cache.
const PUBLISHED_MAX: u64 = 2 << 30;

/// Maximum number of unhandled events; with more, further misses are not worth a prediction.
const BACKLOG_MAX: usize = 1024;

/// Input of the scheduler.
pub(crate) enum Event {
    /// A program waits for an object.
    Missed(Miss),
    /// A program reads a cached object, for the first time in a while.
    FirstRead(FirstRead),
    /// The catalogs that a prediction lacked are attached; they are referenced until its retry.
    Catalogs { path: Vec<u8>, attached: Vec<Arc<Attached>>, tries: u32 },
    /// A prefetch has ended.
    Warmed { key: CacheKey, outcome: Outcome },
    /// A prefetched file that triggers a bundle is read.
    TriggerRead(Node),
    /// The bundle of a trigger in this directory was fetched; `None` if it failed.
    Spec { trigger: NodeKey, directory: Vec<u8>, handle: Option<Handle> },
    /// A compiled module was fetched; `None` if it failed. Catalogs that the prediction lacked are attached.
    PythonModule { module: PythonModule, handle: Option<Handle>, attached: Vec<Arc<Attached>> },
    /// A chunk that describes a library or executable was fetched; `None` if it failed.
    Part { file: NodeKey, number: usize, handle: Option<Handle> },
    /// The libraries that a file needs should be found; catalogs that this lacked are attached.
    Needed { need: NeededSearch, attached: Vec<Arc<Attached>> },
    /// A cluster continues; catalogs that it lacked are attached.
    Cluster { cluster: Box<Cluster>, attached: Vec<Arc<Attached>> },
    /// Prefetched objects were read, so the budgets allow more.
    Earned,
    /// The view is closed.
    Closed,
}

/// A read of a part of an object.
#[derive(Clone, Debug)]
pub(crate) struct PartRead {
    pub(crate) key: CacheKey,
    /// Offset in the file at which the object begins, and its plain bytes.
    pub(crate) at: u64,
    pub(crate) size: u64,
    /// Range of the file that is read.
    pub(crate) range: Range<u64>,
}

/// A first read of a cached object.
#[derive(Clone, Debug)]
pub(crate) struct FirstRead {
    /// File of the read.
    pub(crate) node: Node,
    pub(crate) read: PartRead,
    pub(crate) source: ReadSource,
}

/// Location of the object of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// In the cache, and probably not in memory.
    Disk,
    /// In memory, because it was just prefetched.
    Prefetched,
    /// In memory, because it has just arrived for another reason, or another part of it was read before.
    Memory,
}

/// A read that had to wait.
#[derive(Clone, Debug)]
pub(crate) struct Miss {
    /// File of the read.
    pub(crate) node: Node,
    pub(crate) read: PartRead,
    /// True if the object was being prefetched.
    pub(crate) was_prefetched: bool,
}

/// Result of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Fetched,
    WasThere,
    Failed,
}

/// Receives reads and misses, and sends them to the scheduler.
pub(crate) struct Prefetch {
    /// `None` if nothing is prefetched.
    events: Option<Sender<Event>>,
    /// Number of misses and first reads that are not handled yet.
    backlog: AtomicUsize,
    /// True if the scheduler waits for a budget.
    starved: AtomicBool,
    budget: Budget,
    /// Budget of objects from bundles, which is larger.
    published: Budget,
    /// Budget of objects from sequences.
    learned: Budget,
    recent_reads: RecentReads<CacheKey>,
    /// Recent parts of large objects, by the number of the part.
    recent_parts: RecentReads<(CacheKey, u64)>,
    /// Listener for predictions.
    pub(crate) listener: OnceLock<PrefetchListener>,
    /// Thread of the scheduler.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Cancels all prefetches when the view is closed.
    cancel_token: CancelToken,
}

impl Prefetch {
    /// Returns a state with prefetching disabled.
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

    /// Returns a state for a cache of this size; prefetching begins when [`thread::start`] is called with the
    /// receiver.
    pub(crate) fn new(quota: u64) -> (Self, Receiver<Event>) {
        let (events, inbox) = channel();
        let published = Budget::bounded(PUBLISHED_MAX.min(quota / 2));
        (Self { events: Some(events), published, ..Self::off() }, inbox)
    }

    /// Handles a read of a cached object.
    pub(crate) fn read(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        let was_prefetched = self.budget.read(&key);
        let arrived = self.published.read(&key) | self.learned.read(&key) | was_prefetched;
        // A miss of this trigger would have fetched its bundle.
        if arrived && NodeInfo::of(node).is_ok_and(|info| info.bundle) {
            self.tell(Event::TriggerRead(*node));
        }
        if arrived && self.starved.swap(false, Ordering::Relaxed) {
            self.tell(Event::Earned);
        }
        let first = self.recent_reads.is_first(key);
        if self.is_first_of_part(first, read) && self.is_room() {
            let source = match (was_prefetched, arrived) {
                (true, _) => ReadSource::Prefetched,
                // A prefetched object is in memory, and so probably are its neighbours.
                (false, false) if first => ReadSource::Disk,
                _ => ReadSource::Memory,
            };
            self.tell(Event::FirstRead(FirstRead { node: *node, read: read.clone(), source }));
        }
    }

    /// Handles a miss of an object.
    pub(crate) fn missed(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        // The object is in memory once it has arrived.
        let first = self.recent_reads.is_first(key);
        // An object that can't be fetched is missed again and again, and so is each part of one.
        let bytes = if first { read.size } else { 0 };
        let was_prefetched = self.budget.missed(&key, bytes)
            | self.published.missed(&key, bytes)
            | self.learned.missed(&key, bytes);
        self.is_first_of_part(first, read);
        if self.is_room() {
            self.tell(Event::Missed(Miss { node: *node, read: read.clone(), was_prefetched }));
        }
    }

    /// Returns true for the first read of an object's part in a while; `first` is the same for the object.
    fn is_first_of_part(&self, first: bool, read: &PartRead) -> bool {
        if read.size <= PART || read.range.is_empty() {
            return first;
        }
        let parts = read.range.start / PART..=(read.range.end - 1) / PART;
        parts.fold(false, |any, part| self.recent_parts.is_first((read.key, part)) | any)
    }

    /// Reserves an entry of the backlog; returns false if it is full.
    fn is_room(&self) -> bool {
        let room = self.backlog.fetch_add(1, Ordering::Relaxed) < BACKLOG_MAX;
        if !room {
            self.backlog.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// Cancels queued prefetches, and waits until the sequences are saved.
    pub(crate) fn close(&self) {
        self.cancel_token.cancel();
        self.tell(Event::Closed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic was reported already, and only ends prefetching.
            let _ = thread.join();
        }
    }

    /// Sends an event to the scheduler.
    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // The scheduler ends before this only if it panicked, and then nothing is prefetched.
            let _ = events.send(event);
        }
    }
}
