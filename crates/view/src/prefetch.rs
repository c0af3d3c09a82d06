//! Fetching ahead: what a program that waits for one object will probably read next.
//!
//! Only a READ that misses starts it (a LOOKUP would fire on `ls -l`). Reads do no more than tell a thread of what they
//! met; that thread looks at the catalogs around, and into compiled modules, guesses, and has the store warm the cache as far as that delays
//! nothing demanded. What it may guess is bounded by what programs read ([`Credit`]), except for libraries and executables
//! in use: what the loader reads of them comes at once, and the rest of what is mapped when nothing else happens, so that a
//! later outage doesn't fault a running job, unless a publisher announced what is read.

mod again;
mod announced;
mod arriving;
mod credit;
mod guess;
mod modules;
mod near;
mod needed;
mod neighbours;
mod objects;
mod plan;
mod programs;
mod rest;
mod touched;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_store::{CacheKey, CancelToken, Handle};
use esker_vfs::{Node, NodeKey};
use parking_lot::Mutex;

use crate::catalogs::Attached;
use crate::core::Core;
use crate::payload::Notes;

use self::announced::Cluster;
pub use self::arriving::{Arrival, Foreseen, Foresight};
use self::credit::Credit;
use self::modules::Module;
use self::needed::Need;
use self::plan::Planner;
use self::touched::Touched;
use esker_trails::{Keeper, PART, Sight};

/// What bundles may bring that nobody has read yet: plain bytes. More than the largest of
/// the packages that programs load at once, and never more than half of the cache.
const PUBLISHED_MAX: u64 = 2 << 30;

/// With so many misses not looked at yet, further ones are not worth a guess.
const BACKLOG_MAX: usize = 1024;

/// What was learned is saved once nothing happened for so long.
const QUIET: Duration = Duration::from_secs(5);
/// Waiting for ever, in words of a queue that takes a time.
const IDLE: Duration = Duration::from_secs(1 << 30);

/// What the planner is told.
pub(crate) enum Event {
    /// A program waits for an object.
    Missed(Miss),
    /// A program reads what was in the cache, for the first time in a while.
    Touched(Touch),
    /// Catalogs that a guess needed are attached; they are held until it is made again.
    Catalogs { path: Vec<u8>, attached: Vec<Arc<Attached>>, tries: u32 },
    /// An object is there, or is not to be had now.
    Warmed { key: CacheKey, outcome: Outcome },
    /// A file that was fetched ahead is read, and announces others.
    Announced(Node),
    /// The bundle of a trigger in this directory is there, or is not to be had now.
    Spec { trigger: NodeKey, directory: Vec<u8>, handle: Option<Handle> },
    /// A compiled module is there, or is not to be had now; catalogs that the guess needed are attached.
    Module { module: Module, handle: Option<Handle>, attached: Vec<Arc<Attached>> },
    /// A part of a library or executable that tells what its loader reads is there, or is not to be had now.
    Part { file: NodeKey, number: usize, handle: Option<Handle> },
    /// The libraries that one needs are to be found; catalogs that this needed are attached.
    Needed { need: Need, attached: Vec<Arc<Attached>> },
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
pub(crate) struct Touch {
    /// The file.
    pub(crate) node: Node,
    pub(crate) read: PartRead,
    pub(crate) found: Found,
}

/// Where the object was that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// In the cache, and probably not in memory.
    Disk,
    /// Just come, as a guess of our own.
    Guess,
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
    credit: Credit,
    /// The same for what publishers announce, which is worth more.
    published: Credit,
    /// The same for what was learned here.
    learned: Credit,
    touched: Touched<CacheKey>,
    /// Parts of large objects, by the number of the part.
    touched_parts: Touched<(CacheKey, u64)>,
    /// Who hears of what is foreseen.
    foresight: OnceLock<Foresight>,
    /// The planner.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// All that is fetched ahead; ends with the view.
    errand: CancelToken,
}

impl Prefetch {
    /// Nothing is fetched ahead.
    pub(crate) fn off() -> Self {
        Self {
            events: None,
            backlog: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            credit: Credit::default(),
            published: Credit::bounded(0),
            learned: Credit::default(),
            touched: Touched::default(),
            touched_parts: Touched::default(),
            foresight: OnceLock::new(),
            thread: Mutex::default(),
            errand: CancelToken::new(),
        }
    }

    /// Fetches ahead into a cache of this size, once [`start`] was called with the receiver.
    pub(crate) fn new(quota: u64) -> (Self, Receiver<Event>) {
        let (events, inbox) = channel();
        let published = Credit::bounded(PUBLISHED_MAX.min(quota / 2));
        (Self { events: Some(events), published, ..Self::off() }, inbox)
    }

    /// A program reads a part of an object that was there.
    pub(crate) fn read(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        let guessed = self.credit.read(&key);
        let came = self.published.read(&key) | self.learned.read(&key) | guessed;
        // It would have announced others, had it been missed.
        if came && Notes::of(node).is_ok_and(|notes| notes.bundle) {
            self.tell(Event::Announced(*node));
        }
        if came && self.starved.swap(false, Ordering::Relaxed) {
            self.tell(Event::Earned);
        }
        let first = self.touched.is_first(key);
        if self.is_first_of_part(first, read) && self.is_room() {
            let found = match (guessed, came) {
                (true, _) => Found::Guess,
                // What has just come is in memory, and so probably are its neighbours.
                (false, false) if first => Found::Disk,
                _ => Found::Memory,
            };
            self.tell(Event::Touched(Touch { node: *node, read: read.clone(), found }));
        }
    }

    /// A program waits for an object of which it reads a part.
    pub(crate) fn missed(&self, node: &Node, read: &PartRead) {
        if self.events.is_none() {
            return;
        }
        let key = read.key;
        // What has just come is in memory.
        let first = self.touched.is_first(key);
        // One that is not to be had is waited for again and again, and each part of one.
        let bytes = if first { read.size } else { 0 };
        let guessed = self.credit.missed(&key, bytes)
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
        parts.fold(false, |any, part| self.touched_parts.is_first((read.key, part)) | any)
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
        self.errand.cancel();
        self.tell(Event::Closed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // Its panic was reported, and costs only what is fetched ahead.
            let _ = thread.join();
        }
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // The planner ends before us only if it panicked, and then nothing is fetched ahead.
            let _ = events.send(event);
        }
    }
}

/// Starts the planner, which ends with the core; `trails` is the file of what it learns.
pub(crate) fn start(
    core: &Arc<Core>,
    inbox: Receiver<Event>,
    trails: Option<PathBuf>,
) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    let plan = move || {
        let keeper = Keeper::new(trails);
        let mut planner = Planner::new(weak.clone(), keeper.load(Sight::All));
        loop {
            let saving = if planner.learned.is_changed() { QUIET } else { IDLE };
            let event = match inbox.recv_timeout(planner.rest.patience().unwrap_or(saving)) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let Some(core) = weak.upgrade() else { break };
            let Some(event) = event else {
                if !planner.rest.begin() {
                    keeper.save(&mut planner.learned);
                    planner.quiet();
                }
                if !core.prefetch.errand.is_cancelled() {
                    planner.go_on(&core);
                }
                continue;
            };
            if matches!(event, Event::Missed(_) | Event::Touched(_)) {
                core.prefetch.backlog.fetch_sub(1, Ordering::Relaxed);
                planner.rest.wait();
            }
            if core.prefetch.errand.is_cancelled() {
                planner.note(&core, &event);
                continue;
            }
            planner.handle(&core, event);
            planner.go_on(&core);
        }
        keeper.save(&mut planner.learned);
    };
    let thread = std::thread::Builder::new().name("prefetch".into()).spawn(plan)?;
    *core.prefetch.thread.lock() = Some(thread);
    Ok(())
}
