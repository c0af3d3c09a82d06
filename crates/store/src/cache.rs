//! The cache: verified objects on disk.
//!
//! ```text
//!   <cache>/lock             flock of the one writer; holds its process number
//!   <cache>/index            list of all objects; exists only after a clean shutdown   (cache/index.rs)
//!   <cache>/objects/ab/cd…   one file an object: plain bytes, then a trailer           (cache/trailer.rs)
//!   <cache>/txn/17           being written where it can't be done without a name; removed at the next start
//!   <cache>/heads/….head     last accepted heads, never evicted                        (head/saved.rs)
//!   <cache>/pins             objects that are never evicted                            (cache/pins.rs)
//!   <cache>/trails/…         what programs read one after the other, kept by views
//! ```
//!
//! Crash rule: an object is written without a name, or in `txn/`, and gets its own when complete, without a sync; so after a
//! crash a file may have any content under any of the names. That is why without an index (which is written after
//! everything was synced) each entry is compared with the digest in its trailer before its first use. Index
//! and heads are made durable by `disk::persist`, the only function that does so.
//!
//! Locking rule: one process holds `lock` and writes. Others get read-only descriptors from it. Files are
//! never changed once they have their name, only removed, so a reader needs no lock. Inside the process: the
//! list of open entries, then an entry's state, then a shard of the table or the account of bytes; none is
//! held while a callback runs.

pub(crate) mod care;
mod descriptors;
pub(crate) mod disk;
mod entry;
mod evict;
mod index;
mod layout;
mod lease;
pub(crate) mod pins;
mod space;
mod start;
mod trailer;
mod unkept;
mod write;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::below::{Below, Lower};
use crate::engine::{Engine, Log};
use crate::error::{Cause, StoreError, is_full};
use crate::file_lock::FileLock;
use crate::flight::Flights;
use crate::pool::Pool;
use crate::status::{CacheStatus, Room, unix_now};
use crate::store::Holder;
use crate::urgency::Urgency;
use crate::wanted::CacheKey;
use descriptors::{Descriptors, Slot};
use disk::{Disk, RealDisk};
use index::Listed;
use layout::Layout;
use pins::Pins;
use space::{Marks, Space};

use entry::Reads;
pub(crate) use entry::{Entry, EntryUse, Pin};
pub(crate) use lease::Leased;
pub(crate) use space::Reservation;
pub(crate) use start::private;
pub(crate) use trailer::{TRAILER_LEN, Trailer};
pub(crate) use unkept::{Room as FileRoom, Unkept, UnkeptShare};
pub(crate) use write::Writing;

/// How a cache is to behave.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes that objects may take on disk, counted in blocks of the file system.
    pub quota: u64,
    /// Up to where objects in use may exceed the quota. What does not fit below it is not kept.
    pub hard_limit: u64,
    /// Bytes that files may take which are served without being kept, because the hard limit is reached.
    pub unkept_limit: u64,
    /// Open objects at most; by default what fits the process's limit on open files.
    pub descriptors: Option<usize>,
    /// How long an eviction that found everything in use keeps the next one from asking again.
    pub patience: Duration,
    /// Folders that are asked before the network, the first one first.
    pub lower: Vec<Lower>,
    /// Whether the content of files is passed on without being kept, and only the rest is.
    pub streaming: bool,
}

/// Bytes of memory that objects may take which are served without being kept because the disk fails. They
/// live as long as somebody reads them, so this is a bound on what is read at once.
const UNKEPT_MEMORY_MAX: u64 = 256 << 20;

/// The least that the most plain bytes of an object are whose size nothing states.
const UNSTATED_MIN: u64 = 64 << 20;

impl CacheOptions {
    /// Options for a quota in bytes: a quarter more as hard limit, another quarter for what is not kept.
    pub fn with_quota(quota: u64) -> Self {
        Self {
            quota,
            hard_limit: quota.saturating_add(quota / 4),
            unkept_limit: (quota / 4).max(64 << 20),
            descriptors: None,
            patience: Duration::from_secs(2),
            lower: Vec::new(),
            streaming: false,
        }
    }
}

/// A cache folder of which this process is the writer. Cheap to clone. When the last user is gone it is shut
/// down cleanly, though perhaps a moment later, on a thread that was finishing a request; who needs to know
/// calls [`Cache::close`].
#[derive(Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

/// What is shared by everyone who uses the cache.
pub(crate) struct Inner {
    disk: Arc<dyn Disk>,
    layout: Layout,
    block: u64,
    table: entry::Table,
    pub(crate) space: Arc<Space>,
    pub(crate) unkept_files: Arc<Unkept>,
    pub(crate) unkept_memory: Arc<Unkept>,
    pub(crate) descriptors: Arc<Descriptors>,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    pins: Pins,
    pub(crate) flights: Flights,
    pub(crate) below: Option<Arc<Below>>,
    pub(crate) streaming: bool,
    pub(crate) pool: Arc<Pool>,
    evictor: Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<FileLock>>,
    /// The folder, so that it is not cleaned up by age.
    _folder: Option<std::fs::File>,
    /// Whether the cache is closed; held for reading by whoever gives a file its name.
    gate: RwLock<bool>,
    reads: Reads,
    next_file: AtomicU64,
    /// Whether files are written without a name.
    nameless: bool,
    evicted: AtomicU64,
    spared: AtomicU64,
    disk_errors: AtomicU64,
    disk_failure: Mutex<Option<DiskFailure>>,
    log: Log,
    damaged: AtomicU64,
    /// Set when a file is left that no entry stands for; the next start has to look for it.
    no_index: AtomicBool,
    opened_unclean: bool,
    leftovers: u64,
}

/// How often the log is told of the same kind of failure.
const TOLD_EVERY: Duration = Duration::from_secs(600);

/// The last operation on the disk that failed.
struct DiskFailure {
    time: u64,
    kind: io::ErrorKind,
    /// When the log was last told of this kind.
    told: Instant,
    text: String,
}

impl DiskFailure {
    /// Takes the place of the last failure; returns whether the log is to be told.
    fn replace(mut self, last: &mut Option<Self>) -> bool {
        let before = last.as_ref().filter(|last| last.kind == self.kind);
        let told = before.map(|last| last.told).filter(|told| told.elapsed() < TOLD_EVERY);
        self.told = told.unwrap_or(self.told);
        *last = Some(self);
        told.is_none()
    }
}

/// What was found at start.
struct Opened {
    entries: Vec<Listed>,
    leftovers: u64,
    unclean: bool,
}

impl Cache {
    /// Opens a cache folder, making it if need be, and becomes its writer.
    pub fn open(engine: &Engine, folder: &Path, options: CacheOptions) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(RealDisk::PRIVATE), engine, folder, options)
    }

    /// The same on a given disk.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        engine: &Engine,
        folder: &Path,
        options: CacheOptions,
    ) -> Result<Self, StoreError> {
        Inner::open(disk, engine, folder, options)
            .map(|inner| Self { inner })
            .map_err(|cause| StoreError::new("the cache", cause))
    }

    /// The cache folder.
    pub fn folder(&self) -> &Path {
        &self.inner.layout.root
    }

    /// The folder of saved heads.
    pub fn heads(&self) -> PathBuf {
        self.inner.layout.heads.clone()
    }

    /// Adds somebody to ask before objects are evicted. An object is held if any of them holds it; a dead
    /// one is forgotten.
    pub fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.inner.add_holder(holder);
    }

    /// Waits until no eviction is under way or due.
    pub fn settle(&self) {
        self.inner.space.settle();
    }

    /// Shuts down: makes everything durable and leaves the index. What was given out stays readable; nothing
    /// is kept from now on.
    pub fn close(&self) -> Result<(), StoreError> {
        self.inner.close().map_err(|cause| StoreError::new("the cache", cause))
    }

    /// Counters and states.
    pub fn status(&self) -> CacheStatus {
        self.inner.status()
    }

    /// Whether the folder was removed or replaced since it was opened. Looks at the disk, which may take its time.
    pub fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }
}

impl Inner {
    fn open(
        disk: Arc<dyn Disk>,
        engine: &Engine,
        folder: &Path,
        options: CacheOptions,
    ) -> Result<Arc<Self>, Cause> {
        let pool = engine.pool().clone();
        let layout = Layout::new(folder);
        start::make_folders(&*disk, &layout)?;
        let below = Below::open(&options.lower)?;
        let lock = start::lock(&layout)?;
        let opened = start::load(&*disk, &layout)?;
        let nameless = start::names_later(&*disk, &layout);
        let cannot_start =
            |source| Cause::Disk { doing: "starting threads for", path: folder.into(), source };
        let space = Space::new(Marks::new(options.quota, options.hard_limit, options.patience));
        let limit = options.descriptors.unwrap_or_else(descriptors::default_limit);
        let descriptors = Descriptors::new(limit, Arc::downgrade(&pool), layout.clone());
        let (pins, unreadable) = Pins::load(&*disk, &layout.pins);
        let inner = Arc::new(Self {
            disk,
            pins,
            block: start::block_size(&layout.root),
            _folder: start::occupy(&layout),
            layout,
            table: entry::Table::new(),
            space,
            unkept_files: Unkept::new(options.unkept_limit),
            unkept_memory: Unkept::new(UNKEPT_MEMORY_MAX),
            descriptors,
            holders: Mutex::default(),
            flights: Flights::default(),
            below,
            streaming: options.streaming,
            pool,
            evictor: Mutex::new(None),
            lock: Mutex::new(Some(lock)),
            gate: RwLock::new(false),
            reads: Reads::default(),
            next_file: AtomicU64::new(0),
            nameless,
            evicted: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            disk_errors: AtomicU64::new(u64::from(unreadable.is_some())),
            disk_failure: Mutex::default(),
            log: engine.log().clone(),
            damaged: AtomicU64::new(0),
            no_index: AtomicBool::new(false),
            opened_unclean: opened.unclean,
            leftovers: opened.leftovers,
        });
        inner.adopt(&opened.entries);
        let (space, weak) = (inner.space.clone(), Arc::downgrade(&inner));
        let evictor = std::thread::Builder::new()
            .name("esker-evict".to_owned())
            .spawn(move || evict::run(&space, &weak))
            .map_err(cannot_start)?;
        *inner.evictor.lock() = Some(evictor);
        Ok(inner)
    }

    /// A file for what isn't complete that has no name; none where it needs one.
    fn begin_nameless(&self) -> io::Result<Option<std::fs::File>> {
        if self.nameless { self.disk.create_nameless(&self.layout.txn) } else { Ok(None) }
    }

    /// A new name for it.
    fn draft(&self) -> PathBuf {
        self.layout.txn.join(self.next_file.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(crate) fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.holders.lock().push(holder);
    }

    /// Returns the most plain bytes of an object whose size nothing states: half of the quota, and what fits memory.
    pub(crate) fn unstated_limit(&self) -> u64 {
        (self.space.marks.quota / 2).max(UNSTATED_MIN)
    }

    /// Refuses an object that is larger than all that the cache may keep or pass on.
    pub(crate) fn check_size(&self, plain_len: u64, is_kept: bool) -> Result<(), Cause> {
        let kept = if is_kept { self.space.marks.hard } else { 0 };
        let limit = kept.max(self.unkept_files.limit());
        if self.charge_of(plain_len) > limit {
            return Err(Cause::LargerThanCache { needed: plain_len, limit });
        }
        Ok(())
    }

    /// Bytes an object is counted with.
    pub(crate) fn charge_of(&self, plain_len: u64) -> u64 {
        let len = plain_len.saturating_add(trailer::TRAILER_LEN as u64);
        len.div_ceil(self.block).saturating_mul(self.block)
    }

    pub(crate) fn find(&self, key: &CacheKey) -> Option<Arc<Entry>> {
        self.table.find(key)
    }

    /// Takes a slot for an open file, now or when one becomes free.
    pub(crate) fn with_slot(self: &Arc<Self>, urgency: Urgency, then: impl FnOnce(Slot) + Send + 'static) {
        if let Some(slot) = self.descriptors.take() {
            return then(slot);
        }
        let cache = self.clone();
        let again = Box::new(move || cache.with_slot(urgency, then));
        if let Err(again) = self.descriptors.park(urgency, again) {
            self.pool.spawn(urgency, again);
        }
    }

    fn failed(&self, doing: &'static str, path: &Path, source: io::Error) -> Cause {
        self.note_failure(doing, path, &source);
        Cause::Disk { doing, path: path.to_owned(), source }
    }

    /// Counts an operation on the disk that failed, and keeps what was wrong for whoever asks.
    fn note_failure(&self, doing: &str, path: &Path, error: &io::Error) {
        self.disk_errors.fetch_add(1, Ordering::Relaxed);
        let mend = if is_full(error) { ": make room there, or give it a smaller quota" } else { "" };
        let text = format!("{doing} `{}` failed: {error}{mend}", path.display());
        let failure = DiskFailure { time: unix_now(), kind: error.kind(), told: Instant::now(), text };
        let line = failure.text.clone();
        let is_news = failure.replace(&mut self.disk_failure.lock());
        if is_news {
            self.log.say(&format!("the cache: {line}"));
        }
    }

    fn is_lost(&self) -> bool {
        self.lock.lock().as_ref().is_some_and(|lock| lock.is_lost_at(&self.layout.lock))
    }

    fn keep_no_index(&self) {
        self.no_index.store(true, Ordering::Relaxed);
    }

    fn stop_evictor(&self) {
        if let Some(evictor) = self.evictor.lock().take()
            // The evictor itself may be the last to let go of the cache; it ends right after.
            && evictor.thread().id() != std::thread::current().id()
        {
            let _ = evictor.join();
        }
    }

    pub(crate) fn room(&self) -> Room {
        Room { quota: self.space.marks.quota, used: self.space.used() }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (descriptors, descriptors_peak, descriptors_limit) = self.descriptors.counts();
        let (pinned, pinned_objects) = self.pinned_here();
        CacheStatus {
            quota: self.space.marks.quota,
            hard_limit: self.space.marks.hard,
            used: self.space.used(),
            objects: self.table.len(),
            pinned,
            pinned_objects,
            descriptors,
            descriptors_peak,
            descriptors_limit,
            evicted: get(&self.evicted),
            spared: get(&self.spared),
            over_quota: self.space.over_quota(),
            unkept: self.unkept_files.served() + self.unkept_memory.served(),
            disk_errors: get(&self.disk_errors),
            disk_failure: self.disk_failure.lock().as_ref().map(|last| (last.time, last.text.clone())),
            damaged: get(&self.damaged),
            unchecked: self.table.unchecked(),
            opened_unclean: self.opened_unclean,
            leftovers: self.leftovers,
            lower: self.below.as_ref().map(|below| below.status()).unwrap_or_default(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a clean mark the next start checks every entry; nothing else is lost.
        let _ = self.close();
    }
}
