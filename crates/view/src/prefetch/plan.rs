//! From misses to guesses, and from guesses to requests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_store::{CacheKey, Callback, Handle, Warmed};
use esker_vfs::{Node, NodeKey};

use crate::core::Core;
use crate::failure::Blocked;
use crate::lookup::Scene;
use crate::payload::Notes;

use super::again::{Again, TRIES_MAX, attach};
use super::announced::{Announced, Cluster, Next, Recent, fetch_spec};
use super::arriving::{Arriving, Foreseen};
use super::guess::{Guess, affordable};
use super::modules::{Modules, is_module};
use super::near::{Listings, Near};
use super::neighbours::{Folder, Neighbours, is_library};
use super::programs::{Program, Programs};
use super::rest::{self, Readers, Rests};
use super::{Event, Found, Miss, Outcome, Prefetch, Touch, objects};
use esker_trails::{Heard, Learned, PART};

/// Most objects that the store is asked for at once. It asks for as many of them as the path to the server holds; the
/// rest of the guesses stays here, where what is more likely can still overtake it.
const UNDER_WAY_MAX: usize = 256;
/// Most plain bytes of them, so that few large ones don't hold up many small ones.
const UNDER_WAY_BYTES: u64 = 256 << 20;
/// The same of what follows when nothing else happens: what begins meanwhile must not find the way full.
const REST_BYTES: u64 = 32 << 20;
/// Most objects that wait beside what is only likely, which nobody may be able to pay for: of that the least likely
/// gives way.
const QUEUE_MAX: usize = 1 << 16;
const LIKELY_MAX: usize = 1 << 15;
/// A library or executable above this is not fetched whole because a part of it is used.
const WHOLE_MAX: u64 = 2 << 30;
/// After so many failures in a row nothing more is asked for until the next miss.
const FAILURES_MAX: u32 = 8;
/// Of a folder with more in it than this nobody is told that programs are expected there: to list it takes too long.
const FORESEEN_MAX: usize = 1 << 12;

/// The round trip from which on a miss costs more than what a guess in vain, or the rest of a library's code, takes of the
/// processors.
const FAR: Duration = Duration::from_millis(2);

/// What was read from the cache's disk is not read ahead again for so long.
const IN_MEMORY: Duration = Duration::from_secs(60);

const EXECUTABLE: u32 = 0o111;

/// Guesses, and keeps the store busy with them.
pub(super) struct Planner {
    core: Weak<Core>,
    pub(super) listings: Listings,
    pub(super) neighbours: Neighbours,
    readers: Readers,
    /// The same for what is in the cache and comes from its disk, since a while ago.
    cached_neighbours: Neighbours,
    cached_readers: Readers,
    cached_since: Instant,
    recent: Recent,
    /// What followed what on this node.
    pub(super) learned: Learned,
    clusters: u64,
    /// What was learned here, in order; paid for with credit of its own.
    trails: VecDeque<Guess>,
    /// What publishers announce, in order, that of the newest trigger first; paid for with credit of its own.
    announced: BTreeMap<(Reverse<u64>, usize, usize), Guess>,
    /// What is likely to be read, most likely first; paid for with credit.
    likely: VecDeque<Guess>,
    guesses: u64,
    pub(super) programs: Programs,
    pub(super) modules: Modules,
    pub(super) rest: Rests,
    /// The keys of all, with the number of the guess if it is only likely.
    queued: HashMap<CacheKey, Option<u64>>,
    under_way: HashMap<CacheKey, u64>,
    /// Of what is announced, where it will be read.
    arriving: Arriving,
    /// The folder that was foreseen last.
    foreseen: Option<Rc<Folder>>,
    failures: u32,
    /// Whether a miss costs more than what comes in vain: the server is far.
    pub(super) far: bool,
}

impl Planner {
    pub(super) fn new(core: Weak<Core>, learned: Learned) -> Self {
        Self {
            core,
            listings: Listings::default(),
            neighbours: Neighbours::default(),
            readers: Readers::default(),
            cached_neighbours: Neighbours::once(),
            cached_readers: Readers::default(),
            cached_since: Instant::now(),
            recent: Recent::default(),
            learned,
            clusters: 0,
            trails: VecDeque::new(),
            announced: BTreeMap::new(),
            likely: VecDeque::new(),
            guesses: 0,
            programs: Programs::default(),
            modules: Modules::default(),
            rest: Rests::default(),
            queued: HashMap::new(),
            under_way: HashMap::new(),
            arriving: Arriving::default(),
            foreseen: None,
            failures: 0,
            far: false,
        }
    }

    /// Guesses.
    pub(super) fn handle(&mut self, core: &Arc<Core>, event: Event) {
        match event {
            Event::Missed(miss) => self.missed(core, miss),
            Event::Touched(touch) => self.touched(core, &touch),
            Event::Catalogs { path, attached, tries } => {
                self.near(core, &path, false, tries);
                // Mounted by now, if they were of any use.
                drop(attached);
            }
            Event::Warmed { key, outcome } => self.warmed(core, &key, outcome),
            Event::Announced(node) => {
                if let Ok(notes) = Notes::of(&node) {
                    self.announced(core, node.key, &notes);
                }
            }
            Event::Spec { trigger, directory, handle } => {
                if handle.is_none() {
                    self.recent.forget(&trigger);
                }
                self.spec_came(core, &directory, handle);
            }
            Event::Module { module, handle, attached } => {
                self.module_came(core, module, handle);
                drop(attached);
            }
            Event::Part { file, number, handle } => self.program_came(core, file, number, handle.as_ref()),
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

    /// Nothing has happened for a while: lets go of what only saves time.
    pub(super) fn quiet(&mut self) {
        self.listings.forget();
    }

    /// Notes what an event tells of reads, though nothing is fetched ahead any more.
    pub(super) fn note(&mut self, core: &Core, event: &Event) {
        if let Event::Missed(Miss { node, read, .. }) | Event::Touched(Touch { node, read, .. }) = event
            && let Ok(notes) = Notes::of(node)
            && let Some(path) = path_of(core, &notes)
        {
            self.learn(&path, &read.range);
        }
    }

    /// Notes a read. The next steps of its trail, if it is on one, and whether they say what comes next.
    fn learn(&mut self, path: &[u8], range: &Range<u64>) -> Heard {
        let mut all = Heard::default();
        let now = Instant::now();
        for part in range.start / PART..range.end.div_ceil(PART) {
            let Ok(part) = u32::try_from(part) else { break };
            let Heard { guided, next } = self.learned.read(path, part, now);
            all.guided |= guided;
            all.next.extend(next);
        }
        all
    }

    /// Notes a read, and fetches ahead what followed it the last time. Whether that says what comes next.
    fn follow(&mut self, core: &Arc<Core>, path: &[u8], range: &Range<u64>) -> bool {
        let Heard { guided, next } = self.learn(path, range);
        if !next.is_empty() {
            self.clusters += 1;
            self.cluster(core, Box::new(Cluster::of_steps(self.clusters, &next)));
        }
        guided
    }

    fn missed(&mut self, core: &Arc<Core>, miss: Miss) {
        let Ok(notes) = Notes::of(&miss.node) else { return };
        self.failures = 0;
        self.far = core.store.round_trip().is_some_and(|round_trip| round_trip >= FAR);
        self.arriving.take(&miss.read.key);
        // Whoever waits has fetched it already.
        let expected = self.queued.remove(&miss.read.key).is_some()
            || miss.guessed
            || self.under_way.contains_key(&miss.read.key);
        let path = path_of(core, &notes);
        let guided = path.as_ref().is_some_and(|path| self.follow(core, path, &miss.read.range));
        if notes.bundle {
            self.announced(core, miss.node.key, &notes);
        }
        if notes.chunked {
            self.chunk_missed(core, &miss, &notes, &path.unwrap_or_default(), (expected, guided));
        } else if !notes.bundle
            && !guided
            && let Some(path) = path
        {
            self.small_read(core, &miss.node, &notes, &path, !expected);
        }
    }

    /// Has the bundle of a trigger fetched.
    fn announced(&mut self, core: &Arc<Core>, trigger: NodeKey, notes: &Notes) {
        if !self.recent.begin(trigger, Instant::now()) {
            return;
        }
        if fetch_spec(core, trigger, notes) {
            self.rest.await_spec();
        } else {
            self.recent.forget(&trigger);
        }
    }

    /// The bundle of a trigger in this directory is there, or is not to be had now.
    fn spec_came(&mut self, core: &Arc<Core>, directory: &[u8], handle: Option<Handle>) {
        self.rest.spec_came();
        self.clusters += 1;
        if let Some(cluster) = handle.and_then(|it| Cluster::of_spec(self.clusters, &it, directory)) {
            for key in self.rest.leave(cluster.files()) {
                self.queued.remove(&key);
            }
            self.cluster(core, Box::new(cluster));
        }
        self.programs_go_on(core);
    }

    /// Queues the next objects of a cluster.
    fn cluster(&mut self, core: &Arc<Core>, mut cluster: Box<Cluster>) {
        let turn = {
            let revision = core.current.load();
            cluster.turn(&Scene::new(core, &revision))
        };
        for Announced { place: (read, part), wanted, size, range, arrival, chunk } in turn.objects {
            if cluster.learned {
                // Most of it is in the cache, and comes from its disk.
                if !core.store.read_ahead(&wanted, range) && self.admit(wanted.key()) {
                    self.trails.push_back(Guess::new(wanted, size));
                }
                continue;
            }
            if chunk {
                self.rest.announce(&arrival.path);
            }
            let key = wanted.key();
            if self.admit(key) {
                let place = (Reverse(cluster.serial), read, part);
                self.announced.insert(place, Guess::new(wanted, size));
            }
            let is_coming = self.queued.contains_key(&key) || self.is_under_way(&key);
            if is_coming && core.prefetch.foresight.get().is_some() {
                self.arriving.expect(key, arrival);
            }
        }
        match turn.next {
            Next::Turn => core.prefetch.tell(Event::Cluster { cluster, attached: Vec::new() }),
            Next::Catalogs(missing) => attach(core, Again::Cluster(cluster), missing),
            Next::Done => {}
        }
    }

    /// Something was in the cache. If it came from disk, has what will probably be read next come from there, too.
    fn touched(&mut self, core: &Arc<Core>, touch: &Touch) {
        let Touch { node, read, found } = touch;
        let Ok(notes) = Notes::of(node) else { return };
        let path = path_of(core, &notes);
        let guided = path.as_ref().is_some_and(|path| self.follow(core, path, &read.range));
        if guided || *found == Found::Memory {
            return;
        }
        if *found == Found::Guess {
            if notes.chunked {
                self.program_touched(core, node.key, read.at);
            } else if !notes.bundle
                && let Some(path) = path
            {
                self.small_read(core, node, &notes, &path, false);
            }
            return;
        }
        if self.cached_since.elapsed() > IN_MEMORY {
            (self.cached_neighbours, self.cached_since) = (Neighbours::once(), Instant::now());
        }
        let revision = core.current.load();
        let scene = Scene::new(core, &revision);
        if !notes.chunked {
            let Some(path) = path else { return };
            let mut near = Near::new(&scene, &mut self.listings, self.far);
            for leaf in self.cached_neighbours.missed(&mut near, &path) {
                core.store.read_ahead(&leaf.wanted(), 0..u64::MAX);
            }
        } else if let Some(chunks) = core.held.chunks(&node.key)
            && let Some(compression) = notes.compression
        {
            let here = rest::chunk_at(&chunks, read.at);
            let ahead = self.cached_readers.missed(node.key, &chunks, here);
            for chunk in chunks.get(here).into_iter().chain(ahead) {
                core.store.read_ahead(&objects::chunk(chunk, compression, ""), 0..u64::MAX);
            }
        }
    }

    /// Guesses what is read with a small file that a program reads, or waits for though nothing foresaw it.
    fn small_read(&mut self, core: &Arc<Core>, node: &Node, notes: &Notes, path: &[u8], missed: bool) {
        let content = objects::of_notes(notes);
        if let Some(content) = content.filter(|_| is_module(path)) {
            return self.module_read(core, path, objects::file(content, notes.size, path), missed);
        }
        let revision = core.current.load();
        if let Some(content) = content
            && is_program(&Scene::new(core, &revision), node).unwrap_or(false)
        {
            self.program_used(core, node.key, &Program::whole(path, content, notes.size), 0);
        }
        self.near(core, path, missed, 0);
    }

    /// Guesses what is read with a small file, by where it is.
    pub(super) fn near(&mut self, core: &Arc<Core>, path: &[u8], missed: bool, tries: u32) {
        let revision = core.current.load();
        let scene = Scene::new(core, &revision);
        let mut near = Near::new(&scene, &mut self.listings, self.far);
        let guess = if self.modules.lie_around(path) && !self.far {
            // Most of what is read there its modules tell, and a miss takes less than what else would come in vain.
            Neighbours::beside
        } else if missed {
            Neighbours::missed
        } else {
            // One that was guessed says what comes next as well, but not that anything was evicted.
            Neighbours::came
        };
        let files = guess(&mut self.neighbours, &mut near, path);
        let missing = near.missing;
        // The newest miss tells best what comes next.
        for leaf in files.into_iter().rev() {
            if self.is_new(&leaf.key()) {
                self.queue_first(Guess::of(&leaf));
            }
        }
        if tries < TRIES_MAX {
            attach(core, Again::Near { path: path.to_vec(), tries: tries + 1 }, missing);
        }
    }

    fn chunk_missed(
        &mut self,
        core: &Arc<Core>,
        miss: &Miss,
        notes: &Notes,
        path: &[u8],
        (expected, guided): (bool, bool),
    ) {
        let Some(compression) = notes.compression else { return };
        let revision = core.current.load();
        let scene = Scene::new(core, &revision);
        let chunks = core.held.chunks(&miss.node.key);
        let Some(chunks) = chunks.or_else(|| scene.chunks(&miss.node).ok()) else { return };
        let missed = rest::chunk_at(&chunks, miss.read.at);
        let whole = notes.size <= WHOLE_MAX && is_program(&scene, &miss.node).unwrap_or(false);
        if whole && !self.rest.is_announced(path) {
            let program = Program::chunked(path, chunks, compression);
            self.program_missed(core, miss.node.key, &program, (missed, expected));
        } else if !(guided || whole && expected) {
            // Otherwise it is followed as it was read the last time.
            let what = String::from_utf8_lossy(path);
            for chunk in self.readers.missed(miss.node.key, &chunks, missed) {
                let wanted = objects::chunk(chunk, compression, &what);
                if self.is_new(&wanted.key()) {
                    self.queue_last(Guess::new(wanted, chunk.size));
                }
            }
        }
    }

    /// Whether the store has been asked for an object, and has not answered yet.
    pub(super) fn is_under_way(&self, key: &CacheKey) -> bool {
        self.under_way.contains_key(key)
    }

    /// Whether an object is neither queued nor under way.
    fn is_new(&self, key: &CacheKey) -> bool {
        !self.queued.contains_key(key) && !self.is_under_way(key)
    }

    /// Whether an object is to be queued that is more than likely. One that was only likely is passed over there.
    pub(super) fn admit(&mut self, key: CacheKey) -> bool {
        let is_sure = self.queued.get(&key).is_some_and(Option::is_none);
        if is_sure || self.is_under_way(&key) || self.queued.len() >= QUEUE_MAX + LIKELY_MAX {
            return false;
        }
        self.queued.insert(key, None);
        true
    }

    /// Queues a guess before all others that are as likely.
    pub(super) fn queue_first(&mut self, guess: Guess) {
        if self.is_under_way(&guess.wanted.key()) {
            return;
        }
        let guess = self.numbered(guess);
        self.likely.push_front(guess);
        if self.likely.len() > LIKELY_MAX
            && let Some(last) = self.likely.pop_back()
            && self.queued.get(&last.wanted.key()) == Some(&Some(last.number))
        {
            self.queued.remove(&last.wanted.key());
        }
    }

    /// Queues a guess after all others.
    fn queue_last(&mut self, guess: Guess) {
        if self.likely.len() < LIKELY_MAX {
            let guess = self.numbered(guess);
            self.likely.push_back(guess);
        }
    }

    /// A guess that is only likely. What is queued already is passed over where it was.
    fn numbered(&mut self, guess: Guess) -> Guess {
        self.guesses += 1;
        let queued = self.queued.entry(guess.wanted.key()).or_insert(Some(self.guesses));
        *queued = queued.map(|_| self.guesses);
        Guess { number: self.guesses, ..guess }
    }

    /// Asks the store for the next guesses.
    pub(super) fn go_on(&mut self, core: &Arc<Core>) {
        while self.failures < FAILURES_MAX
            && self.under_way.len() < UNDER_WAY_MAX
            && self.bytes_under_way() < UNDER_WAY_BYTES
        {
            let Some(Guess { wanted, size, folder, .. }) = self.next(core) else { return };
            self.foresee(core, folder);
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
            core.store.warm(wanted, &core.prefetch.errand, Callback::new(came));
        }
    }

    /// Tells that programs are expected in a folder. Most guesses at one come one after the other.
    fn foresee(&mut self, core: &Core, folder: Option<Rc<Folder>>) {
        let Some(folder) = folder else { return };
        let is_large = folder.files.len() + folder.folders.len() > FORESEEN_MAX;
        if !is_large
            && self.foreseen.as_ref().is_none_or(|last| !Rc::ptr_eq(last, &folder))
            && let Some(tell) = core.prefetch.foresight.get()
        {
            tell(Foreseen::Folder(&folder.path));
        }
        self.foreseen = Some(folder);
    }

    /// The next guess that is allowed and that nobody has asked for in the meantime.
    fn next(&mut self, core: &Core) -> Option<Guess> {
        let Prefetch { learned, published, credit, starved, .. } = &core.prefetch;
        let queued = &mut self.queued;
        if let Some(guess) = affordable(&mut self.trails, learned, queued, starved)
            .or_else(|| affordable(&mut self.announced, published, queued, starved))
        {
            return Some(guess);
        }
        while let Some(guess) = self.rest.take_soon() {
            if queued.remove(&guess.wanted.key()).is_some() {
                return Some(guess);
            }
        }
        if let Some(guess) = affordable(&mut self.likely, credit, queued, starved) {
            return Some(guess);
        }
        if self.bytes_under_way() >= REST_BYTES {
            return None;
        }
        self.rest.take(|key| self.queued.contains_key(key) || self.under_way.contains_key(key))
    }

    fn bytes_under_way(&self) -> u64 {
        self.under_way.values().sum()
    }

    fn warmed(&mut self, core: &Arc<Core>, key: &CacheKey, outcome: Outcome) {
        self.under_way.remove(key);
        let is_here = outcome != Outcome::Failed;
        self.module_arrived(core, key, is_here);
        self.program_arrived(core, key, is_here);
        let arrived = self.arriving.take(key).filter(|_| is_here);
        if let (Some(arrival), Some(tell)) = (arrived, core.prefetch.foresight.get()) {
            tell(Foreseen::Bytes(&arrival));
        }
        if outcome != Outcome::Fetched {
            core.prefetch.credit.forget(key);
            core.prefetch.published.forget(key);
            core.prefetch.learned.forget(key);
        }
        self.failures = if is_here { 0 } else { self.failures + 1 };
        if self.failures >= FAILURES_MAX {
            self.trails.clear();
            self.announced.clear();
            self.likely.clear();
            self.rest.clear();
            self.queued.clear();
            self.arriving.clear();
            self.modules.clear();
            self.programs.clear();
        }
    }
}

/// Where a file is, if that can be told without waiting.
fn path_of(core: &Core, notes: &Notes) -> Option<Vec<u8>> {
    let revision = core.current.load();
    Scene::new(core, &revision).path_of(notes).ok()
}

/// Whether a file is a library or can be executed.
fn is_program(scene: &Scene<'_>, node: &Node) -> Result<bool, Blocked> {
    scene.with_row(node, |_, row| Ok(row.mode() & EXECUTABLE != 0 || is_library(row.name())))
}
