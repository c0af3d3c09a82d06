//! Requests that the tree has not answered yet.
//!
//! A request is added before the tree is called, so that an INTERRUPT always finds it. A reply begins with a claim:
//! the tree, a deadline, an interrupt and an invalidation may all try to reply, and only one of them succeeds.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_threads::waits::WaitTimes;
use esker_vfs::{Cookie, Node, OriginOf, Pending, Progress, Reply, Requester, TreeError, Waits};
use foldhash::HashMap;
use parking_lot::{Condvar, Mutex};

use crate::caller_state;
use crate::channel::Channel;
use crate::nodes::NodeId;
use crate::shared_deadline::InheritedDeadline;
use crate::shared_memory::Slot;
use crate::trace::Trace;

/// Operation of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeOp {
    Lookup {
        name: Box<[u8]>,
    },
    /// LOOKUP of `.`: the node itself.
    Itself,
    Attributes,
    List {
        offset: u64,
        size: usize,
        plus: bool,
    },
    Read {
        offset: u64,
        len: usize,
    },
    LinkTarget,
    Xattr {
        name: Box<[u8]>,
        size: usize,
    },
    XattrNames {
        size: usize,
        /// True if the caller may see names in `trusted.`.
        trusted: bool,
    },
}

impl TreeOp {
    /// Returns the cookie to list after: those below the tree's own mean the beginning.
    pub(crate) fn cookie(offset: u64) -> Cookie {
        Cookie(if offset < esker_vfs::FIRST_COOKIE.0 { 0 } else { offset })
    }
}

/// User who made a call.
#[derive(Clone, Debug)]
pub(crate) enum User {
    Known(u32),
    /// User of the caller's process according to procfs, else this number. Looked up only when a request has to
    /// wait: that costs as much as a cached read.
    OfProcess(Arc<Path>, u32),
}

/// A request that waits for the tree.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) unique: u64,
    pub(crate) opcode: u32,
    pub(crate) id: NodeId,
    pub(crate) node: Node,
    /// The calling thread, 0 if unknown.
    pub(crate) caller: u32,
    user: User,
    pub(crate) op: TreeOp,
    pub(crate) channel: Arc<Channel>,
    /// Arrival of the request.
    pub(crate) received: Instant,
    /// Start of the caller's wait, possibly inherited (see
    /// [`SharedDeadlines`](crate::shared_deadline::SharedDeadlines)).
    pub(crate) since: Instant,
    /// Number of times that the start of the wait was inherited.
    pub(crate) generation: u8,
    /// Number of batches of changes before the call of the tree.
    pub(crate) asked_at: u64,
    /// The request in shared memory, for a daemon that takes over; released after the reply.
    slot: Mutex<Option<Slot>>,
    /// [`CLAIMED`] and [`LEFT`].
    state: AtomicU8,
    /// True if a signal arrived that did not end the wait; the kernel doesn't announce later ones.
    pub(crate) interrupted: AtomicBool,
    /// True if the deadline passed but the caller can't handle an error: the request waits without a limit.
    pub(crate) patient: AtomicBool,
    /// True if the tree was called again because the file of its result could not be read.
    pub(crate) reread: AtomicBool,
    /// When to call the tree again, after an error that may pass; the count of such errors.
    pub(crate) again: Mutex<Option<Instant>>,
    pub(crate) failures: AtomicU64,
    /// Progress of the bytes that the request waits for.
    followed: Mutex<Followed>,
    /// Trace of the request, if a tracer wants one.
    pub(crate) trace: Option<Box<Trace>>,
}

/// Set once the right to reply is taken.
const CLAIMED: u8 = 1;
/// Set if the worker went on before that: another thread sends the reply, and counts its latency.
const LEFT: u8 = 2;

/// Progress that a request follows since the tree was last called, and waits on its behalf.
#[derive(Default)]
struct Followed {
    progress: Vec<Progress>,
    waits: Vec<Waits>,
    /// Last progress and waits of earlier calls.
    before: Option<Instant>,
    waits_before: WaitTimes,
}

impl Followed {
    fn last(&self) -> Option<Instant> {
        self.progress.iter().filter_map(|progress| progress()).chain(self.before).max()
    }

    fn waits(&self) -> WaitTimes {
        self.waits.iter().fold(self.waits_before, |all, waits| all + waits())
    }
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Followed").field(&self.last()).finish()
    }
}

impl Request {
    pub(crate) fn new(
        (unique, opcode): (u64, u32),
        (id, node): (NodeId, Node),
        (caller, user, asked_at): (u32, User, u64),
        op: TreeOp,
        (received, deadline): (Instant, InheritedDeadline),
        channel: Arc<Channel>,
        slot: Slot,
    ) -> Self {
        Self {
            unique,
            opcode,
            id,
            node,
            caller,
            user,
            op,
            channel,
            received,
            since: deadline.since,
            generation: deadline.generation,
            asked_at,
            slot: Mutex::new(Some(slot)),
            state: AtomicU8::new(0),
            interrupted: AtomicBool::new(false),
            patient: AtomicBool::new(false),
            reread: AtomicBool::new(false),
            again: Mutex::new(None),
            failures: AtomicU64::new(0),
            followed: Mutex::default(),
            trace: None,
        }
    }

    /// Adds the trace that began with the request.
    pub(crate) fn traced(self, trace: Option<Box<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// Returns the reply object for a call of the tree; the result goes to `deliver`.
    pub(crate) fn reply<T>(
        self: &Arc<Self>,
        deliver: impl FnOnce(&Arc<Self>, Result<T, TreeError>) + Send + 'static,
    ) -> Reply<T> {
        {
            // Whatever it waited for before has ended.
            let mut followed = self.followed.lock();
            let (before, waits_before) = (followed.last(), followed.waits());
            *followed = Followed { before, waits_before, ..Followed::default() };
        }
        let request = Arc::clone(self);
        Reply::new(move |answer| deliver(&request, answer))
            .for_requester(Requester::new(Arc::clone(self) as _))
    }

    /// Returns the start of the deadline: the last arrival of bytes, or else the start of the caller's wait.
    pub(crate) fn quiet_since(&self) -> Instant {
        self.followed.lock().last().map_or(self.since, |last| last.max(self.since))
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLAIMED != 0
    }

    /// Records that its worker serves other requests from now on; returns false if it was answered before.
    pub(crate) fn leave(&self) -> bool {
        self.state.compare_exchange(0, LEFT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns true if its worker left it unanswered.
    pub(crate) fn was_left(&self) -> bool {
        self.state.load(Ordering::Acquire) & LEFT != 0
    }

    /// Returns the waits of other threads on behalf of it, at most as long as it lasts by now.
    pub(crate) fn waits(&self) -> WaitTimes {
        let followed = self.followed.lock();
        if followed.waits.is_empty() && followed.waits_before == WaitTimes::default() {
            return WaitTimes::default();
        }
        followed.waits().within(self.received.elapsed())
    }
}

impl Pending for Request {
    fn user(&self) -> Option<u32> {
        Some(match &self.user {
            User::Known(user) => *user,
            User::OfProcess(proc, user) => caller_state::user(proc, self.caller).unwrap_or(*user),
        })
    }

    fn follow(&self, progress: Progress) {
        self.followed.lock().progress.push(progress);
    }

    fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    fn may_come_from(&self, origin: OriginOf) {
        if let Some(trace) = &self.trace {
            trace.may_come_from(origin);
        }
    }

    fn concerns(&self, node: &Node) {
        if let Some(trace) = &self.trace {
            trace.concerns(node);
        }
    }

    fn add_waits(&self, waits: Waits) {
        self.followed.lock().waits.push(waits);
    }
}

const SHARDS: usize = 64;

/// A part of the table of requests, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<HashMap<u64, Arc<Request>>>);

/// Time within which the kernel repeats a lookup that got `ESTALE`, unless the caller was killed or the kernel
/// has the name.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// Table of all requests in flight.
#[derive(Debug)]
pub(crate) struct InflightRequests {
    shards: Box<[Shard]>,
    busy: Mutex<Busy>,
    /// True if there are retries; other lookups don't need the lock.
    has_retries: AtomicBool,
    /// Notified when a request or busy operation ends.
    ended: Condvar,
}

/// Operations in progress that lock directories in the kernel.
#[derive(Debug, Default)]
struct Busy {
    /// Number of listings in progress by directory.
    listings: HashMap<NodeId, usize>,
    retries: Vec<LookupRetry>,
}

/// A lookup that got `ESTALE`. The kernel repeats the walk once; after a second one the program gets the error.
#[derive(Debug)]
struct LookupRetry {
    caller: u32,
    dir: NodeId,
    name: Box<[u8]>,
    told: Instant,
    /// Number of the repeated lookup, once it arrived.
    lookup: Option<u64>,
}

impl Busy {
    fn holds(&self, dir: NodeId) -> bool {
        let is_awaited = |retry: &LookupRetry| retry.lookup.is_some() || retry.told.elapsed() < AGAIN_WITHIN;
        self.listings.contains_key(&dir)
            || self.retries.iter().any(|retry| retry.dir == dir && is_awaited(retry))
    }
}

impl InflightRequests {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            busy: Mutex::default(),
            has_retries: AtomicBool::new(false),
            ended: Condvar::new(),
        }
    }

    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Arc<Request>>> {
        // The kernel counts in steps of two, the lowest bit marks INTERRUPT.
        &self.shards[(unique >> 1) as usize % SHARDS].0
    }

    pub(crate) fn add(&self, request: &Arc<Request>) {
        match &request.op {
            TreeOp::List { .. } => *self.busy.lock().listings.entry(request.id).or_default() += 1,
            TreeOp::Lookup { name } if self.has_retries.load(Ordering::Acquire) => {
                let mut busy = self.busy.lock();
                let comes_again = |retry: &&mut LookupRetry| {
                    retry.lookup.is_none()
                        && (retry.caller, retry.dir) == (request.caller, request.id)
                        && retry.name == *name
                };
                if let Some(retry) = busy.retries.iter_mut().find(comes_again) {
                    retry.lookup = Some(request.unique);
                }
            }
            _ => {}
        }
        self.shard(request.unique).lock().insert(request.unique, Arc::clone(request));
    }

    /// Claims the right to reply; returns false if it was claimed. The kernel reuses numbers only after the reply.
    pub(crate) fn claim(&self, request: &Request) -> bool {
        if request.state.fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED != 0 {
            return false;
        }
        self.shard(request.unique).lock().remove(&request.unique);
        true
    }

    /// Ends a claimed request after its reply was written.
    pub(crate) fn answered(&self, request: &Request) {
        request.slot.lock().take();
        match request.op {
            TreeOp::List { .. } => self.listed(request.id),
            TreeOp::Lookup { .. } if self.has_retries.load(Ordering::Acquire) => {
                self.retry_ended(request.unique)
            }
            _ => {}
        }
    }

    fn listed(&self, dir: NodeId) {
        let mut busy = self.busy.lock();
        if let Some(count) = busy.listings.get_mut(&dir) {
            *count -= 1;
            if *count == 0 {
                busy.listings.remove(&dir);
                self.ended.notify_all();
            }
        }
    }

    fn retry_ended(&self, lookup: u64) {
        let mut busy = self.busy.lock();
        let is_over = |retry: &LookupRetry| match retry.lookup {
            Some(awaited) => awaited == lookup,
            None => retry.told.elapsed() >= AGAIN_WITHIN,
        };
        busy.retries.retain(|retry| !is_over(retry));
        self.has_retries.store(!busy.retries.is_empty(), Ordering::Release);
        self.ended.notify_all();
    }

    /// Records that a lookup is about to get `ESTALE`, which makes the kernel repeat the path walk; returns
    /// false for the second time.
    pub(crate) fn retries_lookup(&self, request: &Request) -> bool {
        let TreeOp::Lookup { name } = &request.op else { return false };
        let mut busy = self.busy.lock();
        if busy.retries.iter().any(|retry| retry.lookup == Some(request.unique)) {
            return false;
        }
        let (caller, dir, name) = (request.caller, request.id, name.clone());
        busy.retries.push(LookupRetry { caller, dir, name, told: Instant::now(), lookup: None });
        self.has_retries.store(true, Ordering::Release);
        true
    }

    pub(crate) fn find(&self, unique: u64) -> Option<Arc<Request>> {
        self.shard(unique).lock().get(&unique).cloned()
    }

    /// Returns the number of requests in flight. There is no counter, because all workers would contend for its cache
    /// line. `Timer` relies on the locks: it either sees a request here, or the request's worker, which has had its
    /// lock later, sees that it is asleep and wakes it.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }

    /// Returns the requests that `wanted` selects.
    pub(crate) fn select(&self, wanted: impl Fn(&Request) -> bool) -> Vec<Arc<Request>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.0.lock().values().filter(|r| wanted(r)).cloned());
        }
        found
    }

    /// Returns true if a listing of `dir` is in progress or a retried lookup is expected there.
    pub(crate) fn holds(&self, dir: NodeId) -> bool {
        self.busy.lock().holds(dir)
    }

    /// Waits until no operation locks one of `dirs`, or until `deadline`.
    pub(crate) fn until_free(&self, dirs: &HashSet<NodeId>, deadline: Instant) {
        let mut busy = self.busy.lock();
        while dirs.iter().all(|dir| busy.holds(*dir)) && Instant::now() < deadline {
            // A retry that never comes sends no notification.
            self.ended.wait_until(&mut busy, deadline.min(Instant::now() + AGAIN_WITHIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use esker_vfs::{Ino, Kind, NodeKey, Payload};

    use super::*;
    use crate::shared_memory::SharedMemory;

    fn read_by(user: User, caller: u32) -> Arc<Request> {
        let memory = Arc::new(SharedMemory::new().expect("an arena"));
        let channel = Arc::new(Channel::new(0, fs::File::open("/dev/null").expect("opened").into()));
        let (key, payload) = (NodeKey([0; 16]), Payload([0; 96]));
        let node = Node { key, ino: Ino(2), payload, kind: Kind::File };
        let op = TreeOp::Read { offset: 0, len: 1 };
        let deadline = InheritedDeadline { since: Instant::now(), generation: 0 };
        let numbers = (2, 15);
        Arc::new(Request::new(
            numbers,
            (NodeId(2), node),
            (caller, user, 0),
            op,
            (Instant::now(), deadline),
            channel,
            memory.slot(0),
        ))
    }

    fn asked(request: &Arc<Request>) -> Requester {
        request.reply(|_, _: Result<(), _>| {}).requester().clone()
    }

    #[test]
    fn a_repeated_request_tracks_its_current_wait() {
        let request = read_by(User::Known(0), 7);
        let arrived = Instant::now() + Duration::from_secs(1);
        asked(&request).follow(move || Some(arrived));
        for _ in 0..100 {
            asked(&request).follow(|| None);
        }
        assert_eq!(request.followed.lock().progress.len(), 1);
        assert_eq!(request.quiet_since(), arrived, "what arrived before still counts");
    }

    #[test]
    fn the_user_of_a_process_is_looked_up_on_demand() {
        let proc = tempfile::tempdir().expect("a folder");
        let me = fs::metadata(proc.path()).expect("facts").uid();
        let request = read_by(User::OfProcess(proc.path().into(), me + 1), 7);
        let requester = asked(&request);
        assert_eq!(requester.user(), Some(me + 1), "it can't be seen");
        fs::create_dir(proc.path().join("7")).expect("created");
        assert_eq!(requester.user(), Some(me));
        let unknown = read_by(User::OfProcess(proc.path().into(), me + 1), 0);
        assert_eq!(asked(&unknown).user(), Some(me + 1));
    }
}
