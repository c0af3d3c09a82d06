//! Fetching ahead: what a program that waits for one object will probably read next.
//!
//! Only a READ that misses starts it (a LOOKUP would fire on `ls -l`). Reads do no more than tell a thread of what they
//! met; that thread looks at the catalogs around, guesses, and has the store warm the cache as far as that delays
//! nothing demanded. What it may guess is bounded by what programs read ([`Credit`]), except for the rest of a library
//! or executable in use: it follows whole, so that a later outage doesn't fault a running job.

mod announced;
mod credit;
mod near;
mod neighbours;
mod objects;
mod plan;
mod rest;
mod touched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use esker_store::{CacheKey, Errand, Handle};
use esker_vfs::Node;

use crate::catalogs::Attached;
use crate::core::Core;
use crate::payload::Notes;

use self::announced::Cluster;
use self::credit::Credit;
use self::plan::Planner;
use self::touched::Touched;

/// What bundles may bring that nobody has read yet, before anything was read: plain bytes. More than the largest of
/// the packages that programs load at once, and never more than half of the cache.
const PUBLISHED_MAX: u64 = 2 << 30;

/// With so many misses not looked at yet, further ones are not worth a guess.
const BACKLOG_MAX: usize = 1024;

/// What the planner is told.
pub(crate) enum Event {
    /// A program waits for an object.
    Missed(Miss),
    /// A program reads an object that was in the cache, for the first time in a while.
    Touched { node: Node, offset: u64 },
    /// Catalogs that a guess needed are attached; they are held until it is made again.
    Catalogs { path: Vec<u8>, attached: Vec<Arc<Attached>>, tries: u32 },
    /// An object is there, or is not to be had now.
    Warmed { key: CacheKey, outcome: Outcome },
    /// A file that was fetched on a guess is read, and announces others.
    Announced(Node),
    /// The bundle of a trigger in this directory is there.
    Spec { directory: Vec<u8>, handle: Handle },
    /// A cluster goes on; catalogs that it needed are attached.
    Cluster { cluster: Box<Cluster>, attached: Vec<Arc<Attached>> },
    /// Guesses came true, so more are allowed.
    Earned,
}

/// A read that had to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    /// The file.
    pub(crate) node: Node,
    /// Where in it the object begins.
    pub(crate) offset: u64,
    pub(crate) key: CacheKey,
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
    touched: Touched,
    /// All that is fetched ahead; ends with the view.
    errand: Errand,
}

impl Prefetch {
    /// Nothing is fetched ahead.
    pub(crate) fn off() -> Self {
        Self {
            events: None,
            backlog: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            credit: Credit::default(),
            published: Credit::new(0),
            touched: Touched::default(),
            errand: Errand::new(),
        }
    }

    /// Fetches ahead into a cache of this size, once [`start`] was called with the receiver.
    pub(crate) fn new(quota: u64) -> (Self, Receiver<Event>) {
        let (events, inbox) = channel();
        let published = Credit::new(PUBLISHED_MAX.min(quota / 2));
        (Self { events: Some(events), published, ..Self::off() }, inbox)
    }

    /// An object that a program reads, which begins at `offset` in the file, was there.
    pub(crate) fn read(&self, node: &Node, offset: u64, key: CacheKey) {
        if self.events.is_none() {
            return;
        }
        let guessed = self.credit.read(&key);
        // It would have announced others, had it been missed.
        if guessed && Notes::of(node).is_ok_and(|notes| notes.bundle) {
            self.tell(Event::Announced(*node));
        }
        let came = self.published.read(&key) || guessed;
        if came && self.starved.swap(false, Ordering::Relaxed) {
            self.tell(Event::Earned);
        }
        // What has just come is in memory, and so probably are its neighbours.
        if self.touched.is_first(key) && !came && self.is_room() {
            self.tell(Event::Touched { node: *node, offset });
        }
    }

    /// A program waits for an object with so many plain bytes, which begins at `offset` in the file.
    pub(crate) fn missed(&self, node: &Node, offset: u64, key: CacheKey, bytes: u64) {
        if self.events.is_none() {
            return;
        }
        let guessed = self.credit.missed(&key, bytes) | self.published.missed(&key, bytes);
        // What has just come is in memory.
        self.touched.is_first(key);
        if self.is_room() {
            self.tell(Event::Missed(Miss { node: *node, offset, key, guessed }));
        }
    }

    /// Takes a place in the backlog.
    fn is_room(&self) -> bool {
        let room = self.backlog.fetch_add(1, Ordering::Relaxed) < BACKLOG_MAX;
        if !room {
            self.backlog.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// Calls off what is queued.
    pub(crate) fn close(&self) {
        self.errand.end();
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // The planner ends before us only if it panicked, and then nothing is fetched ahead.
            let _ = events.send(event);
        }
    }
}

/// Starts the planner; it ends with the core.
pub(crate) fn start(core: &Arc<Core>, inbox: Receiver<Event>) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    let plan = move || {
        let mut planner = Planner::new(weak.clone());
        while let Ok(event) = inbox.recv() {
            let Some(core) = weak.upgrade() else { return };
            if core.prefetch.errand.is_over() {
                return;
            }
            if matches!(event, Event::Missed(_) | Event::Touched { .. }) {
                core.prefetch.backlog.fetch_sub(1, Ordering::Relaxed);
            }
            planner.handle(&core, event);
            planner.go_on(&core);
        }
    };
    std::thread::Builder::new().name("prefetch".into()).spawn(plan).map(drop)
}
