//! A tree in which a scout goes ahead of programs.
//!
//! What takes a program's time when little is in memory are thousands of questions, each asked when the one before was
//! answered. A program that ran here before asks them again in the same order. So they are noted as trails, and when
//! somebody comes to one, a process of our own goes it ahead of them through the same mount: it looks the names up, those
//! that aren't there too, lists the directories and has the parts of files read. The program then finds the answers in
//! the kernel's memory, and nobody is asked.
//!
//! The first time nobody knows the order, but perhaps in which folders programs will read, and what they do wherever they
//! go ([`Customs`]).
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

use crate::customs::Customs;
use crate::learned::UNIT;
use crate::paths::{Paths, ROOT, join, split};
use crate::scout::Scout;
use crate::{Keeper, Launch, Learned, NAME, NAMES, NamedStep, Sight};

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
pub type Near = Box<dyn Fn() -> bool + Send + Sync>;

/// The tree. What goes through it is noted and passed on.
pub struct Scouted {
    tree: Arc<dyn Tree>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    notes: Mutex<Notes>,
    inbox: Inbox,
    near: Near,
}

struct Notes {
    learned: Learned,
    paths: Paths,
    customs: Customs,
    /// When something arrived last: see [`Scouted::arrived`].
    arrived: Option<Instant>,
}

impl AsMut<Learned> for Notes {
    fn as_mut(&mut self) -> &mut Learned {
        &mut self.learned
    }
}

/// What the scout's thread is to do.
#[derive(Default)]
struct Inbox {
    state: Mutex<Orders>,
    more: Condvar,
    rested: Condvar,
}

#[derive(Default)]
struct Orders {
    steps: Vec<NamedStep>,
    /// Something new was learned.
    stirred: bool,
    /// The scout is to come back first.
    rest: bool,
    closed: bool,
}

impl Scouted {
    /// Above a tree, with what was learned before and a way to start a scout.
    pub fn new(tree: Arc<dyn Tree>, keeper: Keeper, launch: Launch, near: Near) -> std::io::Result<Self> {
        let notes = Notes {
            learned: keeper.load(Sight::Gaps),
            paths: Paths::new(tree.root().node.key),
            customs: Customs::default(),
            arrived: None,
        };
        let shared = Arc::new(Shared { notes: Mutex::new(notes), inbox: Inbox::default(), near });
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("scout".into())
            .spawn(move || works.work(&keeper, Scout::new(launch)))?;
        Ok(Self { tree, shared, thread: Mutex::new(Some(thread)) })
    }

    /// These bytes of a file have come, and somebody will read them: the scout has the kernel read them now, without a
    /// byte beyond them unless the file `ends` there, since that would have to be fetched. In which order programs ask
    /// can't be seen meanwhile, so it is not learned.
    pub fn arrived(&self, path: &[u8], range: Range<u64>, ends: bool) {
        let mut notes = self.shared.notes.lock();
        notes.arrived = Some(Instant::now());
        let mut steps = split(path).map_or_else(Vec::new, |(folder, _)| notes.customs.ahead(folder));
        drop(notes);
        let end = if ends { range.end.div_ceil(UNIT) } else { range.end / UNIT };
        let path: Arc<[u8]> = path.into();
        let units = range.start.div_ceil(UNIT)..end.min(NAMES.into());
        let units = units.take(WAITING_MAX.saturating_sub(steps.len()));
        steps.extend(units.filter_map(|unit| Some((Arc::clone(&path), u32::try_from(unit).ok()?))));
        self.shared.inbox.put(steps);
    }

    /// Programs will probably read files of this folder, and what is in it can be told without waiting: the scout asks for
    /// the names there and around it, and for those that programs look for in vain wherever they go.
    pub fn foreseen(&self, folder: &[u8]) {
        let folder = if folder.is_empty() { ROOT } else { folder };
        let steps = self.shared.notes.lock().customs.ahead(folder);
        if !steps.is_empty() {
            self.shared.inbox.put(steps);
        }
    }

    /// Calls the scout back, so that it holds nothing of the mount. It goes again when somebody comes to a trail.
    pub fn rest(&self) {
        let inbox = &self.shared.inbox;
        let (mut state, until) = (inbox.state.lock(), Instant::now() + RESTING);
        state.rest = true;
        inbox.more.notify_one();
        while state.rest && !state.closed && !inbox.rested.wait_until(&mut state, until).timed_out() {}
    }

    /// Calls the scout back and saves what was learned.
    pub fn close(&self) {
        self.shared.inbox.state.lock().closed = true;
        self.shared.inbox.more.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // If it panicked, there is nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Drop for Scouted {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work(&self, keeper: &Keeper, mut scout: Scout) {
        while let Some(steps) = self.inbox.next(|stirred| stirred || scout.is_out()) {
            if steps.is_empty() {
                scout.call_back();
                self.notes.lock().customs.begin_anew();
                self.inbox.has_rested();
                keeper.save_shared(&self.notes);
            } else {
                scout.go(&steps, || self.inbox.calls_back());
            }
        }
        scout.call_back();
        keeper.save_shared(&self.notes);
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
            let passes = arriving || notes.customs.has_told(&path, part);
            let hear = if passes { Learned::pass } else { Learned::read };
            next.extend(hear(&mut notes.learned, &path, part, now).next);
        }
        let stirs = notes.learned.is_changed() && !was_changed;
        drop(notes);
        if stirs || !next.is_empty() {
            self.inbox.put(if next.is_empty() || (self.near)() { next } else { Vec::new() });
        }
        Some(path)
    }

    /// Notes that there is nothing by this path.
    fn in_vain(&self, path: &[u8]) {
        let steps = self.notes.lock().customs.in_vain(path);
        if !steps.is_empty() {
            self.inbox.put(steps);
        }
    }
}

impl Inbox {
    fn put(&self, steps: Vec<NamedStep>) {
        let mut state = self.state.lock();
        state.stirred = true;
        if state.steps.len() + steps.len() <= WAITING_MAX {
            state.steps.extend(steps);
        }
        drop(state);
        self.more.notify_one();
    }

    fn calls_back(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.rest
    }

    fn has_rested(&self) {
        self.state.lock().rest = false;
        self.rested.notify_all();
    }

    /// The next steps; none for it to come back: once nothing happened for long, if `ends` wants to know of that, or
    /// because it is called. `None` when it is closed.
    fn next(&self, ends: impl Fn(bool) -> bool) -> Option<Vec<NamedStep>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if state.rest {
                state.steps.clear();
                return Some(Vec::new());
            }
            if !state.steps.is_empty() {
                return Some(std::mem::take(&mut state.steps));
            }
            if !ends(state.stirred) {
                self.more.wait(&mut state);
            } else if self.more.wait_for(&mut state, QUIET).timed_out() {
                state.stirred = false;
                return Some(Vec::new());
            }
        }
    }
}

impl Tree for Scouted {
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
                Err(error) if error.kind == ErrorKind::NotFound => shared.in_vain(&path),
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
