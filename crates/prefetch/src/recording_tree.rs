//! A tree in which a scout goes ahead of programs.
//!
//! What takes a program's time when little is in memory are thousands of questions, each asked when the one before was
//! answered. A program that ran here before asks them again in the same order. So they are noted as trails, and when
//! somebody comes to one, a process of our own goes it ahead of them through the same mount: it looks the names up, those
//! that aren't there too, lists the directories and has the parts of files read. The program then finds the answers in
//! the kernel's memory, and nobody is asked.
//!
//! The first time nobody knows the order, but perhaps in which folders programs will read, and what they do wherever they
//! go ([`NegativeLookups`]).
//!
//! The notes are locked for a microsecond or two at a time, by those who ask anyway, and never while the disk is waited for.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_vfs::{
    Attr, Cookie, Data, ErrorKind, Found, Listing, Node, NodeKey, Reply, StatFs, Tree, TreeError, Watcher,
};
use parking_lot::{Condvar, Mutex};

use crate::negative_lookups::NegativeLookups;
use crate::node_paths::{NodePaths, ROOT, join, split};
use crate::replayer::Replayer;
use crate::sequences::UNIT;
use crate::{NAME, NAMES, NamedStep, Observation, ReplayerCommand, SequenceStore, Sequences};

/// What was learned is saved, and the scout's process ends, once nothing happened for so long.
const QUIET: Duration = Duration::from_secs(5);
/// Who reads within so long after something arrived may have been gone ahead of.
const ARRIVING: Duration = Duration::from_secs(10);
/// How long whoever calls the scout back waits for it.
const RESTING: Duration = Duration::from_secs(1);
/// Steps that wait for the scout at most. It is far behind then.
const WAITING_MAX: usize = 1 << 16;

/// Whether everything that was asked for lately was at hand. Where it isn't, a scout would be in the way of those who
/// wait for a server.
pub type ReplayGate = Box<dyn Fn() -> bool + Send + Sync>;

/// The tree. What goes through it is noted and passed on.
pub struct RecordingTree {
    tree: Arc<dyn Tree>,
    shared: Arc<RecorderState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct RecorderState {
    notes: Mutex<Recorded>,
    queue: ReplayQueue,
    near: ReplayGate,
}

struct Recorded {
    learned: Sequences,
    paths: NodePaths,
    negative: NegativeLookups,
    /// When something arrived last: see [`RecordingTree::arrived`].
    arrived: Option<Instant>,
}

impl AsMut<Sequences> for Recorded {
    fn as_mut(&mut self) -> &mut Sequences {
        &mut self.learned
    }
}

/// What the scout's thread is to do.
#[derive(Default)]
struct ReplayQueue {
    state: Mutex<QueueState>,
    more: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct QueueState {
    steps: Vec<NamedStep>,
    /// Something new was learned.
    dirty: bool,
    /// The scout is to come back first.
    pause: bool,
    closed: bool,
}

impl RecordingTree {
    /// Above a tree, with what was learned before and a way to start a scout.
    pub fn new(
        tree: Arc<dyn Tree>,
        store: SequenceStore,
        command: ReplayerCommand,
        near: ReplayGate,
    ) -> std::io::Result<Self> {
        let notes = Recorded {
            learned: store.load(Observation::Gaps),
            paths: NodePaths::new(tree.root().node.key),
            negative: NegativeLookups::default(),
            arrived: None,
        };
        let shared =
            Arc::new(RecorderState { notes: Mutex::new(notes), queue: ReplayQueue::default(), near });
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("scout".into())
            .spawn(move || works.work(&store, Replayer::new(command)))?;
        Ok(Self { tree, shared, thread: Mutex::new(Some(thread)) })
    }

    /// These bytes of a file have come, and somebody will read them: the scout has the kernel read them now, without a
    /// byte beyond them unless the file `ends` there, since that would have to be fetched. In which order programs ask
    /// can't be seen meanwhile, so it is not learned.
    pub fn arrived(&self, path: &[u8], range: Range<u64>, ends: bool) {
        let mut notes = self.shared.notes.lock();
        notes.arrived = Some(Instant::now());
        let mut steps = split(path).map_or_else(Vec::new, |(folder, _)| notes.negative.ahead(folder));
        drop(notes);
        let end = if ends { range.end.div_ceil(UNIT) } else { range.end / UNIT };
        let path: Arc<[u8]> = path.into();
        let units = range.start.div_ceil(UNIT)..end.min(NAMES.into());
        let units = units.take(WAITING_MAX.saturating_sub(steps.len()));
        steps.extend(units.filter_map(|unit| Some((Arc::clone(&path), u32::try_from(unit).ok()?))));
        self.shared.queue.put(steps);
    }

    /// Programs will probably read files of this folder, and what is in it can be told without waiting: the scout asks for
    /// the names there and around it, and for those that programs look for in vain wherever they go.
    pub fn expect_reads(&self, folder: &[u8]) {
        let folder = if folder.is_empty() { ROOT } else { folder };
        let steps = self.shared.notes.lock().negative.ahead(folder);
        if !steps.is_empty() {
            self.shared.queue.put(steps);
        }
    }

    /// Calls the scout back, so that it holds nothing of the mount. It goes again when somebody comes to a trail.
    pub fn pause(&self) {
        let queue = &self.shared.queue;
        let (mut state, until) = (queue.state.lock(), Instant::now() + RESTING);
        state.pause = true;
        queue.more.notify_one();
        while state.pause && !state.closed && !queue.idle.wait_until(&mut state, until).timed_out() {}
    }

    /// Calls the scout back and saves what was learned.
    pub fn close(&self) {
        self.shared.queue.state.lock().closed = true;
        self.shared.queue.more.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // If it panicked, there is nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Drop for RecordingTree {
    fn drop(&mut self) {
        self.close();
    }
}

impl RecorderState {
    fn work(&self, store: &SequenceStore, mut replayer: Replayer) {
        while let Some(steps) = self.queue.next(|dirty| dirty || replayer.is_running()) {
            if steps.is_empty() {
                replayer.stop();
                self.notes.lock().negative.reset();
                self.queue.has_stopped();
                store.save_shared(&self.notes);
            } else {
                replayer.send(&steps, || self.queue.must_stop());
            }
        }
        replayer.stop();
        store.save_shared(&self.notes);
    }

    /// Notes a step towards a node that is known by a path; returns the path.
    fn note(
        &self,
        node: NodeKey,
        name: Option<&[u8]>,
        parts: impl Iterator<Item = u32>,
    ) -> Option<Arc<[u8]>> {
        let mut notes = self.notes.lock();
        let known = notes.paths.of(node)?;
        let path = name.map_or(known.clone(), |name| join(&known, name));
        let (now, was_changed) = (Instant::now(), notes.learned.is_changed());
        let arriving = notes.arrived.is_some_and(|last| now.saturating_duration_since(last) < ARRIVING);
        let mut next = Vec::new();
        for part in parts {
            // What the scout was told to ask is no step of a program: nobody would come by it the next time.
            let passes = arriving || notes.negative.was_requested(&path, part);
            let predict = if passes { Sequences::pass } else { Sequences::read };
            next.extend(predict(&mut notes.learned, &path, part, now).next);
        }
        let dirties = notes.learned.is_changed() && !was_changed;
        drop(notes);
        if dirties || !next.is_empty() {
            self.queue.put(if next.is_empty() || (self.near)() { next } else { Vec::new() });
        }
        Some(path)
    }

    /// Notes that there is nothing by this path.
    fn record_negative(&self, path: &[u8]) {
        let steps = self.notes.lock().negative.record_negative(path);
        if !steps.is_empty() {
            self.queue.put(steps);
        }
    }
}

impl ReplayQueue {
    fn put(&self, steps: Vec<NamedStep>) {
        let mut state = self.state.lock();
        state.dirty = true;
        if state.steps.len() + steps.len() <= WAITING_MAX {
            state.steps.extend(steps);
        }
        drop(state);
        self.more.notify_one();
    }

    fn must_stop(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.pause
    }

    fn has_stopped(&self) {
        self.state.lock().pause = false;
        self.idle.notify_all();
    }

    /// The next steps; none for it to come back: once nothing happened for long, if `ends` wants to know of that, or
    /// because it is called. `None` when it is closed.
    fn next(&self, ends: impl Fn(bool) -> bool) -> Option<Vec<NamedStep>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if state.pause {
                state.steps.clear();
                return Some(Vec::new());
            }
            if !state.steps.is_empty() {
                return Some(std::mem::take(&mut state.steps));
            }
            if !ends(state.dirty) {
                self.more.wait(&mut state);
            } else if self.more.wait_for(&mut state, QUIET).timed_out() {
                state.dirty = false;
                return Some(Vec::new());
            }
        }
    }
}

impl Tree for RecordingTree {
    fn root(&self) -> Found {
        self.tree.root()
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<Found>) {
        let part = std::iter::once(NAME);
        let noted = (name != b"..").then(|| self.shared.note(dir.key, Some(name), part)).flatten();
        let Some(path) = noted else { return self.tree.lookup(dir, name, reply) };
        let shared = Arc::clone(&self.shared);
        let named = reply.through(move |answer: Result<Found, TreeError>, reply| {
            match &answer {
                Ok(found) => shared.notes.lock().paths.note(found.node.key, path),
                Err(error) if error.kind == ErrorKind::NotFound => shared.record_negative(&path),
                Err(_) => {}
            }
            reply.give(answer);
        });
        self.tree.lookup(dir, name, named);
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        self.tree.attributes(node, reply);
    }

    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        let begins = std::iter::once(NAMES).filter(|_| after == Cookie(0));
        let Some(path) = self.shared.note(dir.key, None, begins) else {
            return self.tree.list(dir, after, reply);
        };
        let shared = Arc::clone(&self.shared);
        let listed = reply.through(move |answer: Result<Listing, TreeError>, reply| {
            if let Ok(listing) = &answer {
                shared.notes.lock().paths.listed(path, Arc::clone(&listing.entries));
            }
            reply.give(answer);
        });
        self.tree.list(dir, after, listed);
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        let end = offset.saturating_add(len as u64);
        // The kernel asks for at most a MiB; what lies beyond all files has no number.
        let units = (offset / UNIT..end.div_ceil(UNIT)).filter_map(|unit| u32::try_from(unit).ok());
        self.shared.note(node.key, None, units.filter(|unit| *unit < NAMES));
        self.tree.read(node, offset, len, reply);
    }

    fn unreadable(&self, node: &Node, offset: u64, len: usize) {
        self.tree.unreadable(node, offset, len);
    }

    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>) {
        self.tree.link_target(node, reply);
    }

    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>) {
        self.tree.xattr(node, name, reply);
    }

    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>) {
        self.tree.xattr_names(node, reply);
    }

    fn statfs(&self) -> StatFs {
        self.tree.statfs()
    }

    fn hold(&self, node: &Node) {
        self.tree.hold(node);
    }

    fn release(&self, node: &Node) {
        self.tree.release(node);
    }

    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.tree.watch(watcher);
    }

    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        self.tree.failed(node, error, caller);
    }
}

#[cfg(test)]
mod tests;
