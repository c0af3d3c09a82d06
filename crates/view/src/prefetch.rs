//! Prefetches what a program that waits for one object will probably read next.
//!
//! Only a READ that misses starts it (a LOOKUP would start it on `ls -l`). Reads only send an event to a thread; that
//! thread looks at the catalogs around, and into compiled modules, collects candidates, and has the store fetch them
//! without delaying demanded objects. Candidates are bounded by the bytes that programs read ([`Budget`]), except for
//! libraries and executables in use: the parts that the loader reads are fetched at once, and the rest of the mapped
//! parts in idle time, so that a later outage doesn't fault a running job, unless a publisher announced which parts
//! are read.

mod executor;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

pub use esker_prefetch::{Arrival, PrefetchEvent, PrefetchListener};
use esker_prefetch::{Budgets, PART, RecentReads, Settled, Source};
use esker_store::{CacheKey, CancelToken};
use esker_vfs::Node;
use parking_lot::Mutex;

use crate::catalogs::{Attached, WantedCatalog};
use crate::payload::NodeInfo;
pub(crate) use executor::start;

/// Event for the predictors, in the catalogs of a view.
type PlannerEvent = esker_prefetch::Event<WantedCatalog>;

/// Maximum number of unhandled events; with more, further misses are not worth a prediction.
const BACKLOG_MAX: usize = 1024;

/// Input of the prefetching thread.
pub(crate) enum Event {
    /// A program reads an object: one that it waits for, or for the first time in a while.
    Observed(Observed),
    /// A prefetched file that triggers a bundle is read.
    TriggerRead(Node),
    /// An event that a predictor waits for; the catalogs that it lacked are attached until it is handled.
    Planned { event: PlannerEvent, attached: Vec<Arc<Attached>> },
    /// Prefetched objects were read, so the budgets allow more.
    Earned,
    /// The view is closed.
    Closed,
}

impl Event {
    fn planned(event: PlannerEvent) -> Self {
        Self::Planned { event, attached: Vec::new() }
    }
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

/// A read that predictors learn of.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// File of the read.
    node: Node,
    read: PartRead,
    source: Source,
}

/// Receives reads and misses, and sends them to the prefetching thread.
pub(crate) struct Prefetch {
    /// `None` if nothing is prefetched.
    events: Option<Sender<Event>>,
    /// Number of misses and first reads that are not handled yet.
    backlog: AtomicUsize,
    budgets: Arc<Budgets>,
    recent_reads: RecentReads<CacheKey>,
    /// Recent parts of large objects, by the number of the part.
    recent_parts: RecentReads<(CacheKey, u64)>,
    /// Listener for predictions.
    pub(crate) listener: OnceLock<PrefetchListener>,
    /// The prefetching thread.
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
            budgets: Arc::default(),
            recent_reads: RecentReads::default(),
            recent_parts: RecentReads::default(),
            listener: OnceLock::new(),
            thread: Mutex::default(),
            cancel_token: CancelToken::new(),
        }
    }

    /// Returns a state for a cache of this size; prefetching begins when [`start`] is called with the
    /// receiver.
    pub(crate) fn new(quota: u64) -> (Self, Receiver<Event>) {
        let (events, inbox) = channel();
        (Self { events: Some(events), budgets: Arc::new(Budgets::new(quota)), ..Self::off() }, inbox)
    }

    /// Handles a read of a cached object.
    pub(crate) fn read(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        let Settled { was_prefetched, was_likely } = self.budgets.read(&key);
        // A miss of this trigger would have fetched its bundle.
        if was_prefetched && NodeInfo::of(node).is_ok_and(|info| info.bundle) {
            self.tell(Event::TriggerRead(*node));
        }
        if was_prefetched && self.budgets.take_starved() {
            self.tell(Event::Earned);
        }
        let first = self.recent_reads.is_first(key);
        if self.is_first_of_part(first, read) && self.is_room() {
            let source = match (was_likely, was_prefetched) {
                (true, _) => Source::Prefetched,
                // A prefetched object is in memory, and so probably are its neighbours.
                (false, false) if first => Source::Disk,
                _ => Source::Memory,
            };
            self.tell(Event::Observed(Observed { node: *node, read: read.clone(), source }));
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
        let source = Source::Server { expected: self.budgets.missed(&key, bytes) };
        self.is_first_of_part(first, read);
        if self.is_room() {
            self.tell(Event::Observed(Observed { node: *node, read: read.clone(), source }));
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

    /// Reports a prediction to the listener.
    fn announce(&self, event: PrefetchEvent<'_>) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    /// Sends an event to the thread.
    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // The thread ends before this only if it panicked, and then nothing is prefetched.
            let _ = events.send(event);
        }
    }
}
