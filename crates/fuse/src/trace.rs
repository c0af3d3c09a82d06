//! Reports requests to tracers: the caller, the object, the time until the reply, and the origin of the data.
//!
//! Without a tracer a request costs one relaxed load. A tracer decides at the start of a request, while its caller
//! waits and can be looked up, if it wants to know its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use esker_threads::waits::{self, WaitTimes};
use esker_vfs::{Node, NodeKey, Origin, OriginOf};
use parking_lot::{Mutex, RwLock};

use crate::inflight::{Request, TreeOp};

/// Kind of a traced request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// LOOKUP of a name.
    Lookup,
    /// GETATTR.
    Attributes,
    /// READDIR or READDIRPLUS.
    List,
    /// READ.
    Read,
    /// READLINK.
    LinkTarget,
    /// GETXATTR or LISTXATTR.
    Xattr,
    /// IOCTL, which is always refused.
    Ioctl,
}

/// A request that was replied to.
#[derive(Clone, Debug)]
pub struct Call {
    /// Kind of the request.
    pub kind: CallKind,
    /// Node of the request; the directory of a lookup.
    pub node: Node,
    /// Name of a lookup.
    pub name: Option<Box<[u8]>>,
    /// Node that a lookup found.
    pub found: Option<NodeKey>,
    /// Calling thread, 0 if unknown.
    pub caller: u32,
    /// Time at which the request was read from the kernel.
    pub began: Instant,
    /// Time at which the reply was written.
    pub ended: Instant,
    /// Error number of the reply, 0 for success.
    pub errno: i32,
    /// Offset of a read in bytes.
    pub offset: u64,
    /// Number of bytes in the reply to a read.
    pub bytes: u64,
    /// True if bytes of the reply were read from a file of the cache.
    pub from_file: bool,
    /// Origin of data that was not here.
    pub origin: Option<Origin>,
    /// Time for which the request waited, by cause.
    pub waits: WaitTimes,
}

/// A receiver of traced requests. Workers of the mount call it, so it must not block.
pub trait Tracer: Send + Sync {
    /// Returns true if requests of this thread are to be reported. The thread waits meanwhile.
    fn wants(&self, caller: u32) -> bool;

    /// Reports a request after its reply.
    fn ended(&self, call: &Call);
}

/// A request without a reply.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Kind of the request.
    pub kind: CallKind,
    /// Node of the request; the directory of a lookup.
    pub node: Node,
    /// Name of a lookup.
    pub name: Option<Box<[u8]>>,
    /// Calling thread, 0 if unknown.
    pub caller: u32,
    /// Start of the caller's wait.
    pub since: Instant,
}

/// Tracers of a session.
#[derive(Default)]
pub(crate) struct Tracers {
    any: AtomicBool,
    all: RwLock<Vec<Arc<dyn Tracer>>>,
}

impl Tracers {
    pub(crate) fn add(&self, tracer: Arc<dyn Tracer>) {
        let mut all = self.all.write();
        all.push(tracer);
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, tracer: &Arc<dyn Tracer>) {
        let mut all = self.all.write();
        all.retain(|one| !Arc::ptr_eq(one, tracer));
        self.any.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// Returns true if requests may be traced.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Begins the trace of a request, if a tracer wants it.
    #[inline]
    pub(crate) fn begin(&self, caller: u32, received: Instant) -> Option<Box<Trace>> {
        if !self.are_any() {
            return None;
        }
        self.begin_for(caller, received)
    }

    #[cold]
    fn begin_for(&self, caller: u32, began: Instant) -> Option<Box<Trace>> {
        let all: Vec<_> = self.all.read().iter().filter(|tracer| tracer.wants(caller)).cloned().collect();
        (!all.is_empty()).then(|| {
            let worker = (std::thread::current().id(), waits::tally());
            Box::new(Trace { began, tracers: all, worker, facts: Mutex::default() })
        })
    }
}

/// Trace of one request.
pub(crate) struct Trace {
    began: Instant,
    tracers: Vec<Arc<dyn Tracer>>,
    /// Worker that received the request, and its waits until then.
    worker: (ThreadId, WaitTimes),
    facts: Mutex<Facts>,
}

/// Facts of a reply.
#[derive(Default)]
struct Facts {
    errno: i32,
    bytes: u64,
    from_file: bool,
    found: Option<NodeKey>,
    /// Node that the request concerns, if it isn't that of the request.
    node: Option<Node>,
    origins: Vec<OriginOf>,
    waits: WaitTimes,
}

impl Trace {
    pub(crate) fn failed(&self, errno: i32) {
        self.facts.lock().errno = errno;
    }

    pub(crate) fn found(&self, node: &Node) {
        self.facts.lock().found = Some(node.key);
    }

    pub(crate) fn concerns(&self, node: &Node) {
        self.facts.lock().node = Some(*node);
    }

    pub(crate) fn may_come_from(&self, origin: OriginOf) {
        self.facts.lock().origins.push(origin);
    }

    /// Records the bytes of a reply, and whether some are in a file.
    pub(crate) fn sent(&self, bytes: u64, from_file: bool) {
        let mut facts = self.facts.lock();
        (facts.bytes, facts.from_file) = (bytes, from_file);
    }

    /// Adds waits of a thread that sent the reply in place of the worker.
    pub(crate) fn waited(&self, waits: WaitTimes) {
        self.facts.lock().waits += waits;
    }

    /// Reports the request, whose reply was written.
    pub(crate) fn end(&self, request: &Request) {
        let ended = Instant::now();
        let facts = std::mem::take(&mut *self.facts.lock());
        let (worker, before) = self.worker;
        let here = (worker == std::thread::current().id()).then(|| waits::tally().since(before));
        let waits = request.waits() + facts.waits + here.unwrap_or_default();
        let (kind, name) = kind(&request.op);
        let kind = match facts.node.map(|node| node.kind) {
            Some(esker_vfs::Kind::Directory) => CallKind::List,
            Some(esker_vfs::Kind::Symlink) => CallKind::LinkTarget,
            _ => kind,
        };
        let call = Call {
            kind,
            node: facts.node.unwrap_or(request.node),
            name,
            found: facts.found,
            caller: request.caller,
            began: self.began,
            ended,
            errno: facts.errno,
            offset: if let TreeOp::Read { offset, .. } = request.op { offset } else { 0 },
            bytes: facts.bytes,
            from_file: facts.from_file,
            origin: facts.origins.iter().find_map(|origin| origin()),
            waits: waits.within(ended.saturating_duration_since(self.began)),
        };
        self.report(&call);
    }

    /// Reports a request that was refused without asking the tree.
    pub(crate) fn end_refused(&self, kind: CallKind, node: Node, caller: u32, errno: i32) {
        self.report(&Call {
            kind,
            node,
            name: None,
            found: None,
            caller,
            began: self.began,
            ended: Instant::now(),
            errno,
            offset: 0,
            bytes: 0,
            from_file: false,
            origin: None,
            waits: WaitTimes::default(),
        });
    }

    fn report(&self, call: &Call) {
        self.tracers.iter().for_each(|tracer| tracer.ended(call));
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("began", &self.began).finish_non_exhaustive()
    }
}

/// Returns the kind of an operation, and the name of a lookup.
pub(crate) fn kind(op: &TreeOp) -> (CallKind, Option<Box<[u8]>>) {
    match op {
        TreeOp::Lookup { name } => (CallKind::Lookup, Some(name.clone())),
        TreeOp::Itself | TreeOp::Attributes => (CallKind::Attributes, None),
        TreeOp::List { .. } => (CallKind::List, None),
        TreeOp::Read { .. } => (CallKind::Read, None),
        TreeOp::LinkTarget => (CallKind::LinkTarget, None),
        TreeOp::Xattr { .. } | TreeOp::XattrNames { .. } => (CallKind::Xattr, None),
    }
}
