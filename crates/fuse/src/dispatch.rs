//! Dispatch of requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_kernel_mount::may_see_trusted;
use esker_threads::waits;
use esker_vfs::{ErrorKind, Node};

use crate::abi::{BatchForgetIn, ForgetOne, InHeader, OpenOut, ReadIn, XattrSize, opcode, open};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::inflight::{Request, TreeOp, User};
use crate::nodes::NodeId;
use crate::shared_memory::Slot;
use crate::sys::read_plain;
use crate::trace::CallKind;
use crate::trusted;
use crate::wire;
use crate::workers::Spinner;

/// Marks the number of an INTERRUPT; without the bit it is the number of the interrupted request.
const INTERRUPT_BIT: u64 = 1;

/// Delay of a deferred request.
const DEFER_DELAY: Duration = Duration::from_millis(100);

impl Connection {
    /// Serves one descriptor as a worker until the mount is gone, or as an extra worker until another worker
    /// listens; returns true if the mount is gone.
    pub(crate) fn work(self: &Arc<Self>, channel: &Arc<Channel>, worker: usize, is_extra: bool) -> bool {
        let mut spinner = Spinner::default();
        if !is_extra {
            self.workers.park();
        }
        loop {
            if self.worker_count.is_retiring() {
                return false;
            }
            let mut slot = self.table.memory().slot(worker);
            match slot.fill(channel.number, |buffer| channel.receive(buffer)) {
                // The process that takes over serves it.
                Ok(()) if self.worker_count.is_retiring() => {
                    std::mem::forget(slot);
                    return false;
                }
                Ok(()) => {
                    spinner.came();
                    self.serve(channel, slot);
                    if is_extra {
                        if self.workers.retire_extra() {
                            return false;
                        }
                    } else if !spinner.spin(&self.workers, channel) {
                        self.workers.park();
                    }
                }
                Err(e) => match e.raw_os_error() {
                    // A signal, or a request that was withdrawn while it was being read.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => break,
                    _ => {
                        tracing::error!("/dev/fuse can't be read: {e}");
                        break;
                    }
                },
            }
        }
        self.workers.end();
        true
    }

    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot) {
        let Some(header) = read_plain::<InHeader>(slot.request()) else {
            return tracing::error!("the kernel sent less than a request");
        };
        let since = Instant::now();
        let quick = !matches!(header.opcode, opcode::READ | opcode::READDIR | opcode::READDIRPLUS);
        self.workers.begin(channel, header.pid, quick, since);
        self.handle(channel, slot, &header, since);
        self.workers.done();
    }

    /// Serves a request that a previous process has read and not answered.
    pub(crate) fn serve_left_over(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot) {
        if let Some(header) = read_plain::<InHeader>(slot.request()) {
            self.handle(channel, slot, &header, Instant::now());
        }
    }

    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot, header: &InHeader, since: Instant) {
        self.counters.request(header.opcode);
        let waits_before = waits::tally();
        let is_answered = self.catch_panic("a request", || self.dispatch(channel, slot, header, since));
        if is_answered.is_none() {
            // A request in flight was replied to when its `Reply` was dropped.
            let waits = self.inflight.find(header.unique).is_some();
            let silent = matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
            if !waits && !silent {
                let _ = channel.error(header.unique, libc::EIO);
            }
        }
        // Before the latency: a reader finds the waits of each request that has one.
        self.counters.waits(header.opcode, waits::tally().since(waits_before));
        self.counters.busy(header.opcode, since.elapsed(), is_answered != Some(false));
    }

    /// Returns false if another thread will reply.
    fn dispatch(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        slot: Slot,
        header: &InHeader,
        since: Instant,
    ) -> bool {
        let body = slot.request().get(size_of::<InHeader>()..).unwrap_or_default();
        let unique = header.unique;
        let sent = match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => {
                // Subtracting twice would release a node that the kernel has; not at all keeps one until it is
                // unmounted.
                slot.serve_once();
                if header.opcode == opcode::BATCH_FORGET {
                    self.forget_batch(body);
                } else {
                    self.forgotten(header.nodeid, read_plain(body).unwrap_or_default());
                }
                return true;
            }
            opcode::INTERRUPT => {
                self.interrupt(read_plain(body).unwrap_or_default());
                return true;
            }
            opcode::NOTIFY_REPLY => return true,
            opcode::STATFS => channel.plain(unique, &wire::statfs(self.tree.statfs())),
            opcode::OPEN if !self.negotiated.no_open() => channel.plain(unique, &opened(open::KEEP_CACHE)),
            opcode::OPENDIR if !self.negotiated.no_opendir() => {
                let cache = if self.negotiated.caches_listings() { open::CACHE_DIR } else { 0 };
                channel.plain(unique, &opened(open::KEEP_CACHE | cache))
            }
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => channel.bytes(unique, &[]),
            opcode::IOCTL => self.refuse_ioctl(channel, header, since),
            opcode::SETATTR
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::WRITE
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::CREATE
            | opcode::FALLOCATE
            | opcode::TMPFILE => self.refuse_at_once(channel, header, libc::EROFS),
            _ => match tree_op(header, body) {
                Some(op) => return self.submit(channel, slot, (header, since), op),
                // OPEN, FLUSH, ACCESS, LSEEK, STATX and whatever else can be done without us: the kernel
                // never asks again.
                None => self.refuse_at_once(channel, header, libc::ENOSYS),
            },
        };
        self.note_send(sent);
        true
    }

    fn refuse_at_once(&self, channel: &Channel, header: &InHeader, errno: i32) -> io::Result<()> {
        self.counters.error(header.opcode);
        channel.error(header.unique, errno)
    }

    /// Refuses an ioctl and reports it to tracers, because some programs send one for each file that they open.
    fn refuse_ioctl(&self, channel: &Channel, header: &InHeader, since: Instant) -> io::Result<()> {
        // Without a tracer its node is of no use.
        let node = if self.tracers.are_any() { self.table.node(NodeId(header.nodeid)) } else { None };
        let trace = node.and_then(|node| Some((node, self.tracers.begin(header.pid, since)?)));
        let sent = self.refuse_at_once(channel, header, libc::ENOTTY);
        if let Some((node, trace)) = trace {
            trace.end_refused(CallKind::Ioctl, node, header.pid, libc::ENOTTY);
        }
        sent
    }

    fn note_send(&self, sent: io::Result<()>) {
        if let Err(e) = sent
            && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED))
        {
            tracing::error!("the kernel refused an answer: {e}");
        }
    }

    /// Returns true if a node may have an attribute of this name that is visible to the caller.
    fn may_have(&self, name: &[u8], header: &InHeader) -> bool {
        let is_overlays = || self.below_overlay.load(Ordering::Relaxed) && trusted::is_of_overlay(name);
        let may_ask = self.options.xattr_guard.as_ref().is_none_or(|may_ask| may_ask(name, header.gid));
        may_ask && !is_overlays()
    }

    /// Passes an operation to the tree; returns false if another thread will reply.
    fn submit(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        slot: Slot,
        (header, since): (&InHeader, Instant),
        op: TreeOp,
    ) -> bool {
        if let TreeOp::Xattr { name, .. } = &op
            && !self.may_have(name, header)
        {
            let sent = self.refuse_at_once(channel, header, esker_vfs::errno(ErrorKind::NoAttribute));
            self.note_send(sent);
            return true;
        }
        let id = NodeId(header.nodeid);
        let Some(node) = self.table.node(id) else {
            // A handle from before (NFS, open_by_handle_at): its number is not given to another node.
            let sent = self.refuse_at_once(channel, header, esker_vfs::errno(ErrorKind::Stale));
            self.note_send(sent);
            return true;
        };
        let trace = self.tracers.begin(header.pid, since);
        let request = self.request(channel, slot, (header, since), (id, node), op).traced(trace);
        let request = Arc::new(request);
        self.inflight.add(&request);
        // Before the tree is called: a worker that it blocks can't do it afterwards.
        self.timer.note_activity();
        self.workers.asks();
        if self.workers.is_last() {
            self.defer(&request);
        } else {
            self.ask(&request);
        }
        let is_left = request.leave();
        if is_left {
            self.counters.parked(header.opcode);
            if request.generation > 0 {
                self.end_if_late(&request);
            }
            self.timer.wake();
        }
        !is_left
    }

    /// Defers a request to another thread, because all other workers are blocked and this one must stay free
    /// for interrupts. Known attributes are sent at once.
    fn defer(self: &Arc<Self>, request: &Arc<Request>) {
        let known = matches!(request.op, TreeOp::Attributes).then(|| self.table.attr(request.id));
        if let Some(attr) = known.flatten() {
            if self.inflight.claim(request) {
                self.inflight.answered(request);
                self.note_send(request.channel.plain(request.unique, &wire::attr_out(&attr)));
                if let Some(trace) = &request.trace {
                    trace.end(request);
                }
            }
            return;
        }
        *request.again.lock() = Some(Instant::now() + DEFER_DELAY);
    }

    fn request(
        &self,
        channel: &Arc<Channel>,
        slot: Slot,
        (header, since): (&InHeader, Instant),
        about: (NodeId, Node),
        op: TreeOp,
    ) -> Request {
        let numbers = (header.unique, header.opcode);
        let from = (header.pid, self.user(header), self.invalidations.batches());
        let deadline = self.shared_deadlines.inherited(about.0, &op);
        Request::new(numbers, about, from, op, (since, deadline), Arc::clone(channel), slot)
    }

    /// Returns the calling user. An overlay reads as the user who mounted it, so behind one it is the user of the
    /// caller's process.
    fn user(&self, header: &InHeader) -> User {
        let is_read = header.opcode == opcode::READ;
        match &self.options.proc {
            Some(proc) if is_read && self.below_overlay.load(Ordering::Relaxed) => {
                User::OfProcess(Arc::clone(proc), header.uid)
            }
            _ => User::Known(header.uid),
        }
    }

    fn forgotten(&self, nodeid: u64, count: u64) {
        if !self.forget(NodeId(nodeid), count) {
            tracing::error!(nodeid, count, "the kernel forgot node {nodeid:#x} {count} times too often");
        }
    }

    fn forget_batch(&self, body: &[u8]) {
        let count = read_plain::<BatchForgetIn>(body).unwrap_or_default().count as usize;
        let items = body.get(size_of::<BatchForgetIn>()..).unwrap_or_default();
        for item in items.chunks_exact(size_of::<ForgetOne>()).take(count) {
            let one = read_plain::<ForgetOne>(item).unwrap_or_default();
            self.catch_panic("release", || self.forgotten(one.nodeid, one.nlookup));
        }
    }

    fn interrupt(&self, unique: u64) {
        if let Some(request) = self.inflight.find(unique) {
            return self.interrupted(&request);
        }
        // Either it was replied to, or another thread has read it and not added it yet. The kernel looks for it among
        // the requests read by one descriptor; if it finds it, it repeats the INTERRUPT.
        let _ =
            self.channels.iter().any(|channel| channel.error(unique | INTERRUPT_BIT, libc::EAGAIN).is_ok());
    }
}

fn opened(open_flags: u32) -> OpenOut {
    OpenOut { open_flags, ..OpenOut::default() }
}

/// Returns the tree operation of a request, if it is one.
fn tree_op(header: &InHeader, body: &[u8]) -> Option<TreeOp> {
    let number = header.opcode;
    let name = |bytes: &[u8]| Some(Box::from(bytes.split(|&b| b == 0).next()?));
    Some(match number {
        opcode::LOOKUP => match name(body)? {
            name if *name == *b"." => TreeOp::Itself,
            name => TreeOp::Lookup { name },
        },
        opcode::GETATTR => TreeOp::Attributes,
        opcode::READLINK => TreeOp::LinkTarget,
        opcode::READ => {
            let read: ReadIn = read_plain(body)?;
            TreeOp::Read { offset: read.offset, len: read.size as usize }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let read: ReadIn = read_plain(body)?;
            let plus = number == opcode::READDIRPLUS;
            TreeOp::List { offset: read.offset, size: read.size as usize, plus }
        }
        opcode::GETXATTR => {
            let size: XattrSize = read_plain(body)?;
            TreeOp::Xattr { name: name(body.get(size_of::<XattrSize>()..)?)?, size: size.size as usize }
        }
        opcode::LISTXATTR => {
            let size: XattrSize = read_plain(body)?;
            TreeOp::XattrNames { size: size.size as usize, trusted: may_see_trusted(header.uid) }
        }
        _ => return None,
    })
}
