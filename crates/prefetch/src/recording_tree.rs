//! A tree that records the requests of programs, and has a replayer repeat them ahead of the next program.
//!
//! Without cached data a program spends its time on thousands of requests, each sent when the one before was answered.
//! A program that ran here before sends the same requests in the same order. So they are recorded as sequences, and
//! when a program begins one, the replayer process sends the rest ahead of it through the same mount: it looks names
//! up, absent ones too, lists the directories and reads the parts of files. The program then finds the answers in the
//! kernel's caches, without a request to this process.
//!
//! For the first start the order is unknown, but perhaps not the folders in which programs will read, and the names
//! that they look up everywhere ([`NegativeLookups`]).
//!
//! The record is locked for a microsecond or two per request, and never during disk I/O.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_vfs::{
    Attr, Cookie, Data, ErrorKind, Listing, Node, NodeKey, NodeWithAttr, Reply, StatFs, Tree, TreeError,
    Watcher,
};
use parking_lot::{Condvar, Mutex};

use crate::negative_lookups::NegativeLookups;
use crate::node_paths::{NodePaths, ROOT, join, split};
use crate::replayer::Replayer;
use crate::sequences::UNIT;
use crate::{NAME, NAMES, NamedStep, Observation, SequenceStore, Sequences, StartReplayer};

/// Idle time after which the sequences are saved and the replayer process ends.
const QUIET: Duration = Duration::from_secs(5);
/// Time after an arrival in which reads may be those of the replayer.
const ARRIVING: Duration = Duration::from_secs(10);
/// Timeout for pausing the replayer.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of steps that wait for the replayer.
const WAITING_MAX: usize = 1 << 16;

/// Returns true if no recent request had to wait for a server.
///
/// Otherwise a replayer would delay the programs that wait.
pub type ReplayGate = Box<dyn Fn() -> bool + Send + Sync>;

/// Records requests to a tree and passes them on.
pub struct RecordingTree {
    tree: Arc<dyn Tree>,
    shared: Arc<RecorderState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct RecorderState {
    recorded: Mutex<Recorded>,
    queue: ReplayQueue,
    near: ReplayGate,
    /// Number of reasons not to replay: see [`RecordingTree::hold_back`].
    held_back: AtomicUsize,
}

struct Recorded {
    sequences: Sequences,
    paths: NodePaths,
    negative: NegativeLookups,
    /// Time of the last arrival: see [`RecordingTree::arrived`].
    arrived: Option<Instant>,
}

impl AsMut<Sequences> for Recorded {
    fn as_mut(&mut self) -> &mut Sequences {
        &mut self.sequences
    }
}

/// Queue of steps for the replayer's thread.
#[derive(Default)]
struct ReplayQueue {
    state: Mutex<QueueState>,
    more: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct QueueState {
    steps: Vec<NamedStep>,
    /// True if a new step was recorded.
    dirty: bool,
    /// True if the replayer has to stop first.
    pause: bool,
    closed: bool,
}

impl RecordingTree {
    /// Wraps a tree, with the sequences recorded before and what starts a replayer.
    pub fn new(
        tree: Arc<dyn Tree>,
        store: SequenceStore,
        starter: Arc<dyn StartReplayer>,
        near: ReplayGate,
    ) -> std::io::Result<Self> {
        let recorded = Recorded {
            sequences: store.load(Observation::Gaps),
            paths: NodePaths::new(tree.root().node.key),
            negative: NegativeLookups::default(),
            arrived: None,
        };
        let shared = Arc::new(RecorderState {
            recorded: Mutex::new(recorded),
            queue: ReplayQueue::default(),
            near,
            held_back: AtomicUsize::new(0),
        });
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("replayer".into())
            .spawn(move || works.work(&store, Replayer::new(starter)))?;
        Ok(Self { tree, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Replays the reads of bytes that have arrived in the cache and will be read.
    ///
    /// The kernel reads no byte beyond them unless the file `ends` there, since such bytes would have to be fetched.
    /// Meanwhile the order of a program's reads can't be observed, so it is not recorded.
    pub fn arrived(&self, path: &[u8], range: Range<u64>, ends: bool) {
        let mut recorded = self.shared.recorded.lock();
        recorded.arrived = Some(Instant::now());
        let mut steps = split(path).map_or_else(Vec::new, |(folder, _)| recorded.negative.ahead(folder));
        drop(recorded);
        let end = if ends { range.end.div_ceil(UNIT) } else { range.end / UNIT };
        let path: Arc<[u8]> = path.into();
        let units = range.start.div_ceil(UNIT)..end.min(NAMES.into());
        let units = units.take(WAITING_MAX.saturating_sub(steps.len()));
        steps.extend(units.filter_map(|unit| Some((Arc::clone(&path), u32::try_from(unit).ok()?))));
        self.shared.replay(steps);
    }

    /// Replays lookups in a folder in which programs will probably read, and whose entries are available.
    ///
    /// The replayer lists the folder and the one around it, and looks up the names that programs look up in every
    /// folder.
    pub fn expect_reads(&self, folder: &[u8]) {
        let folder = if folder.is_empty() { ROOT } else { folder };
        let steps = self.shared.recorded.lock().negative.ahead(folder);
        if !steps.is_empty() {
            self.shared.replay(steps);
        }
    }

    /// Stops the replayer, so that it holds no reference to the mount. It starts again when a program begins a
    /// sequence.
    pub fn pause(&self) {
        let queue = &self.shared.queue;
        let (mut state, until) = (queue.state.lock(), Instant::now() + PAUSE_TIMEOUT);
        state.pause = true;
        queue.more.notify_one();
        while state.pause && !state.closed && !queue.idle.wait_until(&mut state, until).timed_out() {}
    }

    /// Replays nothing until the returned guard is dropped, so that each program sends its own requests.
    pub fn hold_back(&self) -> HeldBack {
        self.shared.held_back.fetch_add(1, Ordering::Relaxed);
        self.pause();
        HeldBack(Arc::clone(&self.shared))
    }

    /// Stops the replayer and saves the sequences.
    pub fn close(&self) {
        self.shared.queue.state.lock().closed = true;
        self.shared.queue.more.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // The panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

/// A reason not to replay, until it is dropped.
pub struct HeldBack(Arc<RecorderState>);

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.held_back.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for RecordingTree {
    fn drop(&mut self) {
        self.close();
    }
}

impl RecorderState {
    /// Returns true if recorded requests may be replayed for programs that run now.
    fn may_replay(&self) -> bool {
        self.held_back.load(Ordering::Relaxed) == 0
    }

    /// Queues steps for the replayer, unless it is held back.
    fn replay(&self, steps: Vec<NamedStep>) {
        self.queue.put(if self.may_replay() { steps } else { Vec::new() });
    }

    fn work(&self, store: &SequenceStore, mut replayer: Replayer) {
        while let Some(steps) = self.queue.next(|dirty| dirty || replayer.is_running()) {
            if steps.is_empty() {
                replayer.stop();
                self.recorded.lock().negative.reset();
                self.queue.has_stopped();
                store.save_shared(&self.recorded);
            } else {
                replayer.send(&steps, || self.queue.must_stop());
            }
        }
        replayer.stop();
        store.save_shared(&self.recorded);
    }

    /// Records a step to a node with a known path; returns the path.
    fn record(
        &self,
        node: NodeKey,
        name: Option<&[u8]>,
        parts: impl Iterator<Item = u32>,
    ) -> Option<Arc<[u8]>> {
        let mut recorded = self.recorded.lock();
        let known = recorded.paths.of(node)?;
        let path = name.map_or(known.clone(), |name| join(&known, name));
        let (now, was_changed) = (Instant::now(), recorded.sequences.is_changed());
        let arriving = recorded.arrived.is_some_and(|last| now.saturating_duration_since(last) < ARRIVING);
        let mut next = Vec::new();
        for part in parts {
            // A step of the replayer is not recorded as one of a program, which might never do it.
            let passes = arriving || recorded.negative.was_requested(&path, part);
            let predict = if passes { Sequences::pass } else { Sequences::read };
            next.extend(predict(&mut recorded.sequences, &path, part, now).next);
        }
        let dirties = recorded.sequences.is_changed() && !was_changed;
        drop(recorded);
        if dirties || !next.is_empty() {
            self.replay(if next.is_empty() || (self.near)() { next } else { Vec::new() });
        }
        Some(path)
    }

    /// Records that there is nothing at this path.
    fn record_negative(&self, path: &[u8]) {
        let steps = self.recorded.lock().negative.record_negative(path);
        if !steps.is_empty() {
            self.replay(steps);
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

    /// Waits for the next steps.
    ///
    /// Returns no steps if the replayer has to stop: because it is paused, or idle for long while `ends` wants that.
    /// Returns `None` once the queue is closed.
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
    fn root(&self) -> NodeWithAttr {
        self.tree.root()
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        let part = std::iter::once(NAME);
        let noted = (name != b"..").then(|| self.shared.record(dir.key, Some(name), part)).flatten();
        let Some(path) = noted else { return self.tree.lookup(dir, name, reply) };
        let shared = Arc::clone(&self.shared);
        let named = reply.through(move |answer: Result<NodeWithAttr, TreeError>, reply| {
            match &answer {
                Ok(found) => shared.recorded.lock().paths.record(found.node.key, path),
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
        let Some(path) = self.shared.record(dir.key, None, begins) else {
            return self.tree.list(dir, after, reply);
        };
        let shared = Arc::clone(&self.shared);
        let listed = reply.through(move |answer: Result<Listing, TreeError>, reply| {
            if let Ok(listing) = &answer {
                shared.recorded.lock().paths.listed(path, Arc::clone(&listing.entries));
            }
            reply.give(answer);
        });
        self.tree.list(dir, after, listed);
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        let end = offset.saturating_add(len as u64);
        // The kernel reads at most a MiB at once; offsets beyond all files have no number.
        let units = (offset / UNIT..end.div_ceil(UNIT)).filter_map(|unit| u32::try_from(unit).ok());
        self.shared.record(node.key, None, units.filter(|unit| *unit < NAMES));
        self.tree.read(node, offset, len, reply);
    }

    fn path(&self, node: &Node) -> Option<Vec<u8>> {
        self.tree.path(node).or_else(|| {
            let path = self.shared.recorded.lock().paths.of(node.key)?;
            Some(if *path == *ROOT { Vec::new() } else { path.to_vec() })
        })
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

    fn resumed(&self) {
        self.tree.resumed();
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
