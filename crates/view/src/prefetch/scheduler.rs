//! Turns misses into candidates, and candidates into requests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_prefetch::bundles::{BundleObject, Next, RecentTriggers};
use esker_prefetch::candidate::{Candidate, affordable};
use esker_prefetch::elf_files::{ElfFile, ElfFiles};
use esker_prefetch::neighbours::{Folder, Neighbours, is_library};
use esker_prefetch::objects as file_objects;
use esker_prefetch::pending::PendingArrivals;
use esker_prefetch::python_imports::{PythonModules, is_module};
use esker_prefetch::remaining::{self, Readers, RemainingChunks};
use esker_prefetch::{PART, Prediction, PrefetchEvent, Sequences};
use esker_store::{CacheKey, Callback, Handle, Warmed};
use esker_vfs::{Node, NodeKey};

use crate::core::Core;
use crate::failure::Blocked;
use crate::lookup::Snapshot;
use crate::payload::NodeInfo;

use super::bundles::fetch_spec;
use super::listings::{FolderCache, FolderLister};
use super::retry::{Retry, TRIES_MAX, fetch_catalogs};
use super::{Cluster, Event, FirstRead, Miss, Outcome, Prefetch, ReadSource};

/// Maximum number of outstanding requests.
///
/// The store sends as many of them as the path to the server holds; the other candidates stay queued here, where
/// likelier ones can still overtake them.
const UNDER_WAY_MAX: usize = 256;
/// Maximum plain bytes of outstanding requests, so that few large ones don't delay many small ones.
const UNDER_WAY_BYTES: u64 = 256 << 20;
/// Maximum plain bytes of outstanding idle-time requests: later requests must not find the path full.
const REST_BYTES: u64 = 32 << 20;
/// Maximum number of queued high-confidence objects, and of queued low-confidence ones; the least likely ones of the
/// latter are dropped.
const QUEUE_MAX: usize = 1 << 16;
const LIKELY_MAX: usize = 1 << 15;
/// Maximum size in bytes of a library or executable that is fetched whole because a part of it is used.
const WHOLE_MAX: u64 = 2 << 30;
/// Number of consecutive failures after which prefetching stops until the next miss.
const FAILURES_MAX: u32 = 8;
/// Maximum number of entries of a folder that is reported to the listener: larger ones take too long to list.
const ANNOUNCED_FOLDER_MAX: usize = 1 << 12;

/// Round-trip time from which a miss costs more than the CPU time of a wrong prediction or of a library's remaining
/// code.
const FAR: Duration = Duration::from_millis(2);

/// Time for which data read from the cache's disk counts as in memory.
const IN_MEMORY: Duration = Duration::from_secs(60);

const EXECUTABLE: u32 = 0o111;

/// Collects candidates, and keeps the store busy with them.
pub(super) struct Scheduler {
    core: Weak<Core>,
    pub(super) folder_cache: FolderCache,
    pub(super) neighbours: Neighbours,
    readers: Readers,
    /// Neighbours of objects that are read from the cache's disk; reset at intervals.
    cached_neighbours: Neighbours,
    cached_readers: Readers,
    cached_since: Instant,
    recent: RecentTriggers,
    /// Sequences of reads on this node.
    pub(super) learned: Sequences,
    clusters: u64,
    /// Candidates from sequences, in order; charged to a budget of their own.
    sequence_objects: VecDeque<Candidate>,
    /// Candidates from bundles, in order, the newest trigger first; charged to a budget of their own.
    bundle_objects: BTreeMap<(Reverse<u64>, usize, usize), Candidate>,
    /// Low-confidence candidates, most likely first; charged to a budget.
    likely: VecDeque<Candidate>,
    numbered_candidates: u64,
    pub(super) elf_files: ElfFiles,
    pub(super) python_modules: PythonModules,
    pub(super) remaining: RemainingChunks,
    /// Keys of all candidates, with the number of low-confidence ones.
    queued: HashMap<CacheKey, Option<u64>>,
    under_way: HashMap<CacheKey, u64>,
    /// File ranges of announced objects that are being fetched.
    pending: PendingArrivals,
    /// Folder that was reported last.
    last_folder: Option<Rc<Folder>>,
    failures: u32,
    /// True if the server is so far that a miss costs more than a wrong prediction.
    pub(super) far: bool,
}

impl Scheduler {
    pub(super) fn new(core: Weak<Core>, learned: Sequences) -> Self {
        Self {
            core,
            folder_cache: FolderCache::default(),
            neighbours: Neighbours::default(),
            readers: Readers::default(),
            cached_neighbours: Neighbours::once(),
            cached_readers: Readers::default(),
            cached_since: Instant::now(),
            recent: RecentTriggers::default(),
            learned,
            clusters: 0,
            sequence_objects: VecDeque::new(),
            bundle_objects: BTreeMap::new(),
            likely: VecDeque::new(),
            numbered_candidates: 0,
            elf_files: ElfFiles::default(),
            python_modules: PythonModules::default(),
            remaining: RemainingChunks::default(),
            queued: HashMap::new(),
            under_way: HashMap::new(),
            pending: PendingArrivals::default(),
            last_folder: None,
            failures: 0,
            far: false,
        }
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, core: &Arc<Core>, event: Event) {
        match event {
            Event::Missed(miss) => self.missed(core, miss),
            Event::FirstRead(touch) => self.first_read(core, &touch),
            Event::Catalogs { path, attached, tries } => {
                self.queue_neighbours(core, &path, false, tries);
                // The catalogs are mounted by now, if they were needed.
                drop(attached);
            }
            Event::Warmed { key, outcome } => self.warmed(core, &key, outcome),
            Event::TriggerRead(node) => {
                if let Ok(info) = NodeInfo::of(&node) {
                    self.trigger_read(core, node.key, &info);
                }
            }
            Event::Spec { trigger, directory, handle } => {
                if handle.is_none() {
                    self.recent.forget(&trigger);
                }
                self.spec_fetched(core, &directory, handle);
            }
            Event::PythonModule { module, handle, attached } => {
                self.module_fetched(core, module, handle);
                drop(attached);
            }
            Event::Part { file, number, handle } => self.part_fetched(core, file, number, handle.as_ref()),
            Event::Needed { need, attached } => {
                self.find_needed(core, need);
                drop(attached);
            }
            Event::Cluster { cluster, attached } => {
                self.cluster(core, cluster);
                drop(attached);
            }
            Event::Earned | Event::Closed => {}
        }
    }

    /// Releases caches after idle time.
    pub(super) fn release_caches(&mut self) {
        self.folder_cache.forget();
    }

    /// Records the read of an event, though nothing is prefetched any more.
    pub(super) fn record_event(&mut self, core: &Core, event: &Event) {
        if let Event::Missed(Miss { node, read, .. }) | Event::FirstRead(FirstRead { node, read, .. }) = event
            && let Ok(info) = NodeInfo::of(node)
            && let Some(path) = path_of(core, &info)
        {
            self.record_read(&path, &read.range);
        }
    }

    /// Records a read; returns the prediction of its sequence.
    fn record_read(&mut self, path: &[u8], range: &Range<u64>) -> Prediction {
        let mut all = Prediction::default();
        let now = Instant::now();
        for part in range.start / PART..range.end.div_ceil(PART) {
            let Ok(part) = u32::try_from(part) else { break };
            let Prediction { guided, next } = self.learned.read(path, part, now);
            all.guided |= guided;
            all.next.extend(next);
        }
        all
    }

    /// Records a read, and prefetches the predicted steps; returns true if the sequence predicts what comes next.
    fn record_and_predict(&mut self, core: &Arc<Core>, path: &[u8], range: &Range<u64>) -> bool {
        let Prediction { guided, next } = self.record_read(path, range);
        if !next.is_empty() {
            self.clusters += 1;
            self.cluster(core, Box::new(Cluster::of_steps(self.clusters, &next)));
        }
        guided
    }

    fn missed(&mut self, core: &Arc<Core>, miss: Miss) {
        let Ok(info) = NodeInfo::of(&miss.node) else { return };
        self.failures = 0;
        self.far = core.store.round_trip().is_some_and(|round_trip| round_trip >= FAR);
        self.pending.take(&miss.read.key);
        // The demanded request has fetched it already.
        let expected = self.queued.remove(&miss.read.key).is_some()
            || miss.was_prefetched
            || self.under_way.contains_key(&miss.read.key);
        let path = path_of(core, &info);
        let guided = path.as_ref().is_some_and(|path| self.record_and_predict(core, path, &miss.read.range));
        if info.bundle {
            self.trigger_read(core, miss.node.key, &info);
        }
        if info.chunked {
            self.chunk_missed(core, &miss, &info, &path.unwrap_or_default(), (expected, guided));
        } else if !info.bundle
            && !guided
            && let Some(path) = path
        {
            self.small_read(core, &miss.node, &info, &path, !expected);
        }
    }

    /// Fetches the bundle of a trigger.
    fn trigger_read(&mut self, core: &Arc<Core>, trigger: NodeKey, info: &NodeInfo) {
        if !self.recent.begin(trigger, Instant::now()) {
            return;
        }
        if fetch_spec(core, trigger, info) {
            self.remaining.await_spec();
        } else {
            self.recent.forget(&trigger);
        }
    }

    /// Handles the specification of a bundle in this directory; `None` if it could not be fetched.
    fn spec_fetched(&mut self, core: &Arc<Core>, directory: &[u8], handle: Option<Handle>) {
        self.remaining.spec_arrived();
        self.clusters += 1;
        if let Some(cluster) = handle.and_then(|it| Cluster::of_spec(self.clusters, &it, directory)) {
            for key in self.remaining.leave(cluster.files()) {
                self.queued.remove(&key);
            }
            self.cluster(core, Box::new(cluster));
        }
        self.resume_elf_files(core);
    }

    /// Queues the next objects of a cluster.
    fn cluster(&mut self, core: &Arc<Core>, mut cluster: Box<Cluster>) {
        let turn = {
            let revision = core.current.load();
            cluster.turn(&Snapshot::new(core, &revision))
        };
        for BundleObject { place: (read, part), wanted, size, range, arrival, chunk } in turn.objects {
            if cluster.learned {
                // Most of it is in the cache, and is read from its disk.
                if !core.store.read_ahead(&wanted, range) && self.admit(wanted.key()) {
                    self.sequence_objects.push_back(Candidate::new(wanted, size));
                }
                continue;
            }
            if chunk {
                self.remaining.announce(&arrival.path);
            }
            let key = wanted.key();
            if self.admit(key) {
                let place = (Reverse(cluster.serial), read, part);
                self.bundle_objects.insert(place, Candidate::new(wanted, size));
            }
            let is_coming = self.queued.contains_key(&key) || self.is_under_way(&key);
            if is_coming && core.prefetch.listener.get().is_some() {
                self.pending.expect(key, arrival);
            }
        }
        match turn.next {
            Next::Turn => core.prefetch.tell(Event::Cluster { cluster, attached: Vec::new() }),
            Next::Catalogs(missing) => fetch_catalogs(core, Retry::Cluster(cluster), missing),
            Next::Done => {}
        }
    }

    /// Handles the first read of a cached object; if it came from disk, reads likely objects ahead from disk, too.
    fn first_read(&mut self, core: &Arc<Core>, touch: &FirstRead) {
        let FirstRead { node, read, source } = touch;
        let Ok(info) = NodeInfo::of(node) else { return };
        let path = path_of(core, &info);
        let guided = path.as_ref().is_some_and(|path| self.record_and_predict(core, path, &read.range));
        if guided || *source == ReadSource::Memory {
            return;
        }
        if *source == ReadSource::Prefetched {
            if info.chunked {
                self.elf_read(core, node.key, read.at);
            } else if !info.bundle
                && let Some(path) = path
            {
                self.small_read(core, node, &info, &path, false);
            }
            return;
        }
        if self.cached_since.elapsed() > IN_MEMORY {
            (self.cached_neighbours, self.cached_since) = (Neighbours::once(), Instant::now());
        }
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        if !info.chunked {
            let Some(path) = path else { return };
            let mut lister = FolderLister::new(&snapshot, &mut self.folder_cache, self.far);
            for leaf in self.cached_neighbours.missed(&mut lister, &path) {
                core.store.read_ahead(&leaf.wanted(), 0..u64::MAX);
            }
        } else if let Some(chunks) = core.open_files.chunks(&node.key)
            && let Some(compression) = info.compression
        {
            let here = remaining::chunk_at(&chunks, read.at);
            let ahead = self.cached_readers.missed(node.key, &chunks, here);
            for chunk in chunks.get(here).into_iter().chain(ahead) {
                core.store.read_ahead(&file_objects::chunk(chunk, compression, ""), 0..u64::MAX);
            }
        }
    }

    /// Predicts what is read with a small file, after a read or an unpredicted miss.
    fn small_read(&mut self, core: &Arc<Core>, node: &Node, info: &NodeInfo, path: &[u8], missed: bool) {
        let content = info.content_key();
        if let Some(content) = content.filter(|_| is_module(path)) {
            return self.module_read(core, path, file_objects::file(content, info.size, path), missed);
        }
        let revision = core.current.load();
        if let Some(content) = content
            && is_program(&Snapshot::new(core, &revision), node).unwrap_or(false)
        {
            self.elf_used(core, node.key, &ElfFile::whole(path, content, info.size), 0);
        }
        self.queue_neighbours(core, path, missed, 0);
    }

    /// Queues candidates from the folders around a small file.
    pub(super) fn queue_neighbours(&mut self, core: &Arc<Core>, path: &[u8], missed: bool, tries: u32) {
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        let mut lister = FolderLister::new(&snapshot, &mut self.folder_cache, self.far);
        let candidate = if self.python_modules.are_around(path) && !self.far {
            // The modules around tell most of what is read there, and a miss takes less than the other candidates
            // would.
            Neighbours::beside
        } else if missed {
            Neighbours::missed
        } else {
            // A prefetched file predicts what comes next as well, but is no sign of eviction.
            Neighbours::read_prefetched
        };
        let files = candidate(&mut self.neighbours, &mut lister, path);
        let missing = lister.missing;
        // The newest miss predicts best.
        for leaf in files.into_iter().rev() {
            if self.is_new(&leaf.key()) {
                self.queue_first(Candidate::of(&leaf));
            }
        }
        if tries < TRIES_MAX {
            fetch_catalogs(core, Retry::Neighbours { path: path.to_vec(), tries: tries + 1 }, missing);
        }
    }

    fn chunk_missed(
        &mut self,
        core: &Arc<Core>,
        miss: &Miss,
        info: &NodeInfo,
        path: &[u8],
        (expected, guided): (bool, bool),
    ) {
        let Some(compression) = info.compression else { return };
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        let chunks = core.open_files.chunks(&miss.node.key);
        let Some(chunks) = chunks.or_else(|| snapshot.chunks(&miss.node).ok()) else { return };
        let missed = remaining::chunk_at(&chunks, miss.read.at);
        let whole = info.size <= WHOLE_MAX && is_program(&snapshot, &miss.node).unwrap_or(false);
        if whole && !self.remaining.is_announced(path) {
            let elf_file = ElfFile::chunked(path, chunks, compression);
            self.elf_missed(core, miss.node.key, &elf_file, (missed, expected));
        } else if !(guided || whole && expected) {
            // Otherwise the sequence predicts what follows.
            let what = String::from_utf8_lossy(path);
            for chunk in self.readers.missed(miss.node.key, &chunks, missed) {
                let wanted = file_objects::chunk(chunk, compression, &what);
                if self.is_new(&wanted.key()) {
                    self.queue_last(Candidate::new(wanted, chunk.size));
                }
            }
        }
    }

    /// Returns true if a request for an object is outstanding.
    pub(super) fn is_under_way(&self, key: &CacheKey) -> bool {
        self.under_way.contains_key(key)
    }

    /// Returns true if an object is neither queued nor requested.
    fn is_new(&self, key: &CacheKey) -> bool {
        !self.queued.contains_key(key) && !self.is_under_way(key)
    }

    /// Returns true if a high-confidence object should be queued. A queued low-confidence one is skipped in its queue.
    pub(super) fn admit(&mut self, key: CacheKey) -> bool {
        let is_sure = self.queued.get(&key).is_some_and(Option::is_none);
        if is_sure || self.is_under_way(&key) || self.queued.len() >= QUEUE_MAX + LIKELY_MAX {
            return false;
        }
        self.queued.insert(key, None);
        true
    }

    /// Queues a low-confidence candidate before all others.
    pub(super) fn queue_first(&mut self, candidate: Candidate) {
        if self.is_under_way(&candidate.wanted.key()) {
            return;
        }
        let candidate = self.numbered(candidate);
        self.likely.push_front(candidate);
        if self.likely.len() > LIKELY_MAX
            && let Some(last) = self.likely.pop_back()
            && self.queued.get(&last.wanted.key()) == Some(&Some(last.number))
        {
            self.queued.remove(&last.wanted.key());
        }
    }

    /// Queues a low-confidence candidate after all others.
    fn queue_last(&mut self, candidate: Candidate) {
        if self.likely.len() < LIKELY_MAX {
            let candidate = self.numbered(candidate);
            self.likely.push_back(candidate);
        }
    }

    /// Numbers a low-confidence candidate. An earlier entry of the same object is skipped in the queue.
    fn numbered(&mut self, candidate: Candidate) -> Candidate {
        self.numbered_candidates += 1;
        let queued = self.queued.entry(candidate.wanted.key()).or_insert(Some(self.numbered_candidates));
        *queued = queued.map(|_| self.numbered_candidates);
        Candidate { number: self.numbered_candidates, ..candidate }
    }

    /// Sends requests for the next candidates to the store.
    pub(super) fn send_requests(&mut self, core: &Arc<Core>) {
        while self.failures < FAILURES_MAX
            && self.under_way.len() < UNDER_WAY_MAX
            && self.bytes_under_way() < UNDER_WAY_BYTES
        {
            let Some(Candidate { wanted, size, folder, .. }) = self.next(core) else { return };
            self.announce_folder(core, folder);
            let key = wanted.key();
            self.under_way.insert(key, size);
            let core_then = self.core.clone();
            let came = move |answer: Result<Warmed, _>| {
                let outcome = match answer {
                    Ok(Warmed::Fetched(_)) => Outcome::Fetched,
                    Ok(Warmed::Here) => Outcome::WasThere,
                    Err(_) => Outcome::Failed,
                };
                if let Some(core) = core_then.upgrade() {
                    core.prefetch.tell(Event::Warmed { key, outcome });
                }
            };
            core.store.warm(wanted, &core.prefetch.cancel_token, Callback::new(came));
        }
    }

    /// Reports that reads in a folder are expected. Candidates of one folder mostly come one after the other.
    fn announce_folder(&mut self, core: &Core, folder: Option<Rc<Folder>>) {
        let Some(folder) = folder else { return };
        let is_large = folder.files.len() + folder.folders.len() > ANNOUNCED_FOLDER_MAX;
        if !is_large
            && self.last_folder.as_ref().is_none_or(|last| !Rc::ptr_eq(last, &folder))
            && let Some(tell) = core.prefetch.listener.get()
        {
            tell(PrefetchEvent::Folder(&folder.path));
        }
        self.last_folder = Some(folder);
    }

    /// Returns the next candidate that a budget allows and that is not requested yet.
    fn next(&mut self, core: &Core) -> Option<Candidate> {
        let Prefetch { learned, published, budget, starved, .. } = &core.prefetch;
        let queued = &mut self.queued;
        if let Some(candidate) = affordable(&mut self.sequence_objects, learned, queued, starved)
            .or_else(|| affordable(&mut self.bundle_objects, published, queued, starved))
        {
            return Some(candidate);
        }
        while let Some(candidate) = self.remaining.take_soon() {
            if queued.remove(&candidate.wanted.key()).is_some() {
                return Some(candidate);
            }
        }
        if let Some(candidate) = affordable(&mut self.likely, budget, queued, starved) {
            return Some(candidate);
        }
        if self.bytes_under_way() >= REST_BYTES {
            return None;
        }
        self.remaining.take(|key| self.queued.contains_key(key) || self.under_way.contains_key(key))
    }

    fn bytes_under_way(&self) -> u64 {
        self.under_way.values().sum()
    }

    fn warmed(&mut self, core: &Arc<Core>, key: &CacheKey, outcome: Outcome) {
        self.under_way.remove(key);
        let is_here = outcome != Outcome::Failed;
        self.module_prefetched(core, key, is_here);
        self.elf_prefetched(core, key, is_here);
        let arrived = self.pending.take(key).filter(|_| is_here);
        if let (Some(arrival), Some(tell)) = (arrived, core.prefetch.listener.get()) {
            tell(PrefetchEvent::Bytes(&arrival));
        }
        if outcome != Outcome::Fetched {
            core.prefetch.budget.forget(key);
            core.prefetch.published.forget(key);
            core.prefetch.learned.forget(key);
        }
        self.failures = if is_here { 0 } else { self.failures + 1 };
        if self.failures >= FAILURES_MAX {
            self.sequence_objects.clear();
            self.bundle_objects.clear();
            self.likely.clear();
            self.remaining.clear();
            self.queued.clear();
            self.pending.clear();
            self.python_modules.clear();
            self.elf_files.clear();
        }
    }
}

/// Returns the path of a file; `None` if it needs a catalog that is not attached.
fn path_of(core: &Core, info: &NodeInfo) -> Option<Vec<u8>> {
    let revision = core.current.load();
    Snapshot::new(core, &revision).path_of(info).ok()
}

/// Returns true if a file is a library or executable.
fn is_program(snapshot: &Snapshot<'_>, node: &Node) -> Result<bool, Blocked> {
    snapshot.with_row(node, |_, row| Ok(row.mode() & EXECUTABLE != 0 || is_library(row.name())))
}
