//! State that the threads of a session share, and the replies.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_threads::{Pool, waits};
use esker_vfs::{Attr, Data, DirEntry, ErrorKind, Kind, Listing, NodeWithAttr, Tree, TreeError};

use crate::abi::XattrSize;
use crate::caller_state::{self, Reader};
use crate::channel::Channel;
use crate::counters::LiveCounters;
use crate::data::{self, Failure};
use crate::deadlines::Timer;
use crate::inflight::{InflightRequests, Request, TreeOp};
use crate::kernel::Negotiated;
use crate::known_dentries::KnownDentries;
use crate::listing::DirentBuffer;
use crate::nodes::{Forgotten, NodeId, NodeTable};
use crate::notify::Invalidations;
use crate::options::SessionOptions;
use crate::shared_deadline::SharedDeadlines;
use crate::trace::Tracers;
use crate::trusted;
use crate::wire;
use crate::worker_count::WorkerCount;
use crate::workers::WorkerPool;

/// Maximum length of a name that is looked up.
const LONGEST_NAME: usize = 255;

/// First pause before a read behind a page fault is retried; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time to inform the tree of an error before its caller gets it.
const ERROR_REPORT_TIMEOUT: Duration = Duration::from_millis(20);

thread_local! {
    /// Buffer for listings.
    static LISTING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted connection in service.
pub(crate) struct Connection {
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) options: SessionOptions,
    pub(crate) negotiated: Negotiated,
    pub(crate) table: NodeTable,
    pub(crate) inflight: InflightRequests,
    pub(crate) shared_deadlines: SharedDeadlines,
    pub(crate) counters: LiveCounters,
    pub(crate) tracers: Tracers,
    pub(crate) invalidations: Invalidations,
    /// Names that the kernel may have cached, if it can't expire all names at once.
    pub(crate) names: Option<KnownDentries>,
    pub(crate) timer: Timer,
    /// All descriptors of the connection; the first is the one it was mounted with.
    pub(crate) channels: Vec<Arc<Channel>>,
    pub(crate) workers: WorkerPool,
    /// Threads for calls of the tree that the thread of deadlines must not wait for: a disk may not answer.
    pub(crate) background: Pool,
    pub(crate) worker_count: WorkerCount,
    /// True if an overlay covers the tree: see [`crate::Session::put_below_overlay`].
    pub(crate) below_overlay: AtomicBool,
}

impl Connection {
    /// Runs code of the tree; logs a panic and continues.
    pub(crate) fn catch_panic<T>(&self, what: &str, run: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(value) => Some(value),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                tracing::error!(what, "the tree panicked in {what}: {text}");
                None
            }
        }
    }

    /// Calls the tree. The reply may be sent before this returns, or later by another thread.
    pub(crate) fn ask(self: &Arc<Self>, request: &Arc<Request>) {
        let (conn, tree, node) = (Arc::clone(self), &self.tree, &request.node);
        match &request.op {
            TreeOp::Lookup { name } if name.len() > LONGEST_NAME => {
                self.reply_lookup(request, Err(ErrorKind::NameTooLong.into()));
            }
            TreeOp::Lookup { name } => {
                tree.lookup(node, name, request.reply(move |asked, answer| conn.reply_lookup(asked, answer)));
            }
            TreeOp::Itself => {
                let itself = move |asked: &Arc<Request>, answer| {
                    let attr = conn.or_last_known(asked, answer);
                    conn.reply_lookup(asked, attr.map(|attr| NodeWithAttr { node: asked.node, attr }));
                };
                tree.attributes(node, request.reply(itself));
            }
            TreeOp::Attributes => {
                tree.attributes(node, request.reply(move |asked, answer| conn.reply_attr(asked, answer)));
            }
            TreeOp::List { offset, .. } => {
                let after = TreeOp::cookie(*offset);
                tree.list(node, after, request.reply(move |asked, answer| conn.reply_readdir(asked, answer)));
            }
            TreeOp::Read { .. } if node.kind == Kind::Directory => {
                self.read(request, Err(ErrorKind::IsADirectory.into()));
            }
            TreeOp::Read { offset, len } => {
                tree.read(node, *offset, *len, request.reply(move |asked, answer| conn.read(asked, answer)));
            }
            TreeOp::LinkTarget => {
                tree.link_target(
                    node,
                    request.reply(move |asked, answer| conn.reply_readlink(asked, answer)),
                );
            }
            TreeOp::Xattr { name, size } => {
                let size = *size;
                tree.xattr(
                    node,
                    name,
                    request.reply(move |asked, answer| conn.reply_xattr(asked, size, answer)),
                );
            }
            TreeOp::XattrNames { size, trusted } => {
                let (size, trusted) = (*size, *trusted);
                let join = move |names: Vec<Vec<u8>>| {
                    let shown = names.into_iter().filter(|name| trusted || !trusted::is_trusted(name));
                    shown.flat_map(|name| name.into_iter().chain([0])).collect::<Vec<u8>>()
                };
                tree.xattr_names(
                    node,
                    request.reply(move |asked, a| conn.reply_xattr(asked, size, a.map(join))),
                );
            }
        }
    }

    fn reply_lookup(&self, request: &Request, answer: Result<NodeWithAttr, TreeError>) {
        if request.is_answered() {
            return;
        }
        let lasts = self.note_name(request, &answer);
        let (channel, unique) = (&request.channel, request.unique);
        let found = match answer {
            Ok(found) => found,
            Err(_) if !self.inflight.claim(request) => return,
            Err(error) if error.kind == ErrorKind::NotFound && lasts => {
                if let Some(trace) = &request.trace {
                    trace.failed(libc::ENOENT);
                }
                return self.done(request, channel.plain(unique, &wire::absent()));
            }
            Err(error) => return self.fail(request, &error),
        };
        // Holding a node may read its catalog, so it comes before the claim.
        match self.catch_panic("hold", || self.table.intern(&found, self.dir(request))) {
            Some(Some(id)) if !self.inflight.claim(request) => self.take_back(id),
            Some(Some(id)) => {
                if let Some(trace) = &request.trace {
                    trace.found(&found.node);
                }
                let out = wire::entry_out(id, &found.attr, self.is_current(request));
                let sent = channel.plain(unique, &out);
                if sent.is_err() {
                    self.take_back(id);
                }
                self.done(request, sent);
            }
            none if self.inflight.claim(request) => {
                self.refuse(request, if none.is_some() { libc::ENOMEM } else { libc::EIO });
            }
            _ => {}
        }
    }

    /// Returns the directory of a lookup, which the kernel keeps locked until it has processed the reply.
    fn dir(&self, request: &Request) -> Option<NodeId> {
        matches!(request.op, TreeOp::Lookup { .. }).then_some(request.id)
    }

    /// Returns true if no change was announced since the tree was called. If one was, the attributes in its
    /// result may be outdated, and the announcement may have come too early for them: see `notify`. To be
    /// called after the result's nodes were interned.
    fn is_current(&self, request: &Request) -> bool {
        self.invalidations.batches() == request.asked_at
    }

    /// Notes a name in a reply; returns whether the kernel may cache it.
    fn note_name(&self, request: &Request, answer: &Result<NodeWithAttr, TreeError>) -> bool {
        match (&self.names, &request.op) {
            (Some(names), TreeOp::Lookup { name }) => {
                names.note(request.id, name, answer.as_ref().ok().map(|found| found.node.kind))
            }
            _ => true,
        }
    }

    /// Handles a FORGET of `count` lookups. Returns false if the kernel had fewer.
    pub(crate) fn forget(&self, id: NodeId, count: u64) -> bool {
        match self.table.forget(id, count) {
            Forgotten::Gone => {
                if let Some(names) = &self.names {
                    names.take(id);
                }
                true
            }
            Forgotten::Known => true,
            Forgotten::Impossible => false,
        }
    }

    /// Undoes the lookup count of a reply that was not delivered.
    fn take_back(&self, id: NodeId) {
        self.catch_panic("release", || self.forget(id, 1));
    }

    /// Returns the last known attributes of a node that no longer exists in the tree.
    fn or_last_known(&self, request: &Request, answer: Result<Attr, TreeError>) -> Result<Attr, TreeError> {
        match answer {
            Err(error) if error.kind == ErrorKind::Stale => self.table.attr(request.id).ok_or(error),
            answer => answer,
        }
    }

    fn reply_attr(&self, request: &Request, answer: Result<Attr, TreeError>) {
        if !self.inflight.claim(request) {
            return;
        }
        match self.or_last_known(request, answer) {
            Ok(attr) => {
                self.table.remember(request.id, &attr);
                let sent = request.channel.plain(request.unique, &wire::attr_out(&attr));
                self.done(request, sent);
            }
            Err(error) => self.fail(request, &error),
        }
    }

    fn reply_readdir(&self, request: &Request, answer: Result<Listing, TreeError>) {
        if request.is_answered() {
            return;
        }
        let listing = match answer {
            Ok(listing) => listing,
            Err(error) if self.inflight.claim(request) => return self.fail(request, &error),
            Err(_) => return,
        };
        let TreeOp::List { offset, size, plus } = request.op else { return };
        LISTING.with_borrow_mut(|out| {
            let mut names = DirentBuffer::new(out, size);
            names.dots(offset, request.node.ino, listing.parent, plus);
            let give = |entry: &DirEntry| {
                let found = NodeWithAttr { node: entry.node, attr: entry.attr };
                let id = self.table.intern(&found, Some(request.id))?;
                Some((id, wire::entry_out(id, &entry.attr, self.is_current(request))))
            };
            let filled = self.catch_panic("hold", || names.entries(&listing, plus.then_some(&give)));
            let given = std::mem::take(&mut names.given);
            if let (Some(known), true) = (&self.names, plus) {
                known.note_listing(request.id, &listing, given.len());
            }
            let is_ours = self.inflight.claim(request);
            let sent = filled.filter(|()| is_ours).map(|()| request.channel.bytes(request.unique, out));
            if !matches!(sent, Some(Ok(()))) {
                given.into_iter().for_each(|id| self.take_back(id));
            }
            match sent {
                Some(sent) => self.done(request, sent),
                None if is_ours => self.refuse(request, libc::EIO),
                None => {}
            }
        });
    }

    fn read(self: &Arc<Self>, request: &Arc<Request>, answer: Result<Data, TreeError>) {
        if request.is_answered() {
            return;
        }
        let TreeOp::Read { offset, len } = request.op else { return };
        match answer {
            Ok(data) => {
                if let Some(trace) = &request.trace {
                    trace.sent(data.len().min(len) as u64, data.has_file());
                }
                let claim = || self.inflight.claim(request);
                let before = waits::tally();
                let sent = data::send(&request.channel, request.unique, &data, len, claim);
                if request.was_left() {
                    let waits = waits::tally().since(before);
                    self.counters.waits(request.opcode, waits);
                    request.trace.iter().for_each(|trace| trace.waited(waits));
                }
                match sent {
                    Ok(()) => self.done(request, Ok(())),
                    Err(Failure::Kernel(error)) => self.done(request, Err(error)),
                    Err(Failure::Source(_)) if !request.reread.swap(true, Ordering::Relaxed) => {
                        // The bytes may be elsewhere, too: on another file, or a server.
                        self.catch_panic("unreadable", || self.tree.unreadable(&request.node, offset, len));
                        self.ask(request);
                    }
                    Err(Failure::Source(error)) if self.inflight.claim(request) => {
                        self.fail(request, &TreeError::new(ErrorKind::Local).because(error));
                    }
                    Err(Failure::Source(_) | Failure::Late) => {}
                }
            }
            Err(error) => self.read_failed(request, &error),
        }
    }

    fn read_failed(&self, request: &Request, error: &TreeError) {
        let reader = if error.may_pass() { self.reader(request) } else { Reader::Calls };
        match reader {
            Reader::Calls if self.inflight.claim(request) => self.fail(request, error),
            Reader::Calls => {}
            Reader::Faults => {
                request.patient.store(true, Ordering::Relaxed);
                self.ask_again_later(request, error);
            }
            Reader::Unseen => self.ask_again_later(request, error),
        }
    }

    /// Determines how the caller of a read came to wait for it. Faults past their own deadline count as calls.
    pub(crate) fn reader(&self, request: &Request) -> Reader {
        if self.options.deadlines.fault.is_some_and(|limit| request.quiet_since().elapsed() >= limit) {
            return Reader::Calls;
        }
        if let TreeOp::Read { offset, .. } = request.op
            && self.catch_panic("may_be_mapped", || self.tree.may_be_mapped(&request.node, offset))
                == Some(false)
        {
            return Reader::Calls;
        }
        match &self.options.helper {
            Some(helper) => helper.reader(request.caller, request.node.ino),
            None => caller_state::reader(self.options.proc.as_deref(), request.caller, request.node.ino),
        }
    }

    fn ask_again_later(&self, request: &Request, error: &TreeError) {
        let failures = request.failures.fetch_add(1, Ordering::Relaxed);
        if failures == 0 {
            // No caller gets an error, but the status of the mount should show why the program hangs.
            self.tell_tree(request, error);
        }
        let pause = FIRST_PAUSE * (1 << failures.min(7));
        *request.again.lock() = Some(Instant::now() + pause.min(LONGEST_PAUSE));
        self.timer.wake();
    }

    fn reply_readlink(&self, request: &Request, answer: Result<Vec<u8>, TreeError>) {
        if !self.inflight.claim(request) {
            return;
        }
        match answer {
            Ok(target) => self.done(request, request.channel.bytes(request.unique, &target)),
            Err(error) => self.fail(request, &error),
        }
    }

    /// Replies with a value of unknown size: a caller with `room` 0 asks for the size.
    fn reply_xattr(&self, request: &Request, room: usize, answer: Result<Vec<u8>, TreeError>) {
        if !self.inflight.claim(request) {
            return;
        }
        let (channel, unique) = (&request.channel, request.unique);
        match answer {
            Ok(value) if room == 0 => {
                let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
                self.done(request, channel.plain(unique, &XattrSize { size, padding: 0 }));
            }
            Ok(value) if value.len() > room => self.refuse(request, libc::ERANGE),
            Ok(value) => self.done(request, channel.bytes(unique, &value)),
            Err(error) => self.fail(request, &error),
        }
    }

    /// Replies to a claimed request with an error number and reports the failure to the tree.
    pub(crate) fn fail(&self, request: &Request, error: &TreeError) {
        if error.may_pass() || matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Interrupted) {
            self.shared_deadlines.failed(request);
        }
        if error.is_news() {
            self.tell_tree(request, error);
        }
        self.refuse(request, error.errno());
    }

    /// Replies to a claimed request whose deadline passed. Never blocks: another thread informs the tree.
    pub(crate) fn expire(self: &Arc<Self>, request: &Arc<Request>) {
        let error = TreeError::from(ErrorKind::TimedOut);
        self.shared_deadlines.failed(request);
        let (conn, late) = (Arc::clone(self), Arc::clone(request));
        // First, so that a reader of the error finds the reason in the status.
        self.background.run_and_wait(move || conn.tell_tree(&late, &error), ERROR_REPORT_TIMEOUT);
        self.refuse(request, esker_vfs::errno(ErrorKind::TimedOut));
    }

    fn tell_tree(&self, request: &Request, error: &TreeError) {
        let caller = (request.caller != 0).then_some(request.caller);
        self.catch_panic("failed", || self.tree.failed(&request.node, error, caller));
    }

    /// Replies to a claimed request with an error number.
    pub(crate) fn refuse(&self, request: &Request, errno: i32) {
        self.counters.error(request.opcode);
        if let Some(trace) = &request.trace {
            trace.failed(errno);
        }
        self.done(request, request.channel.error(request.unique, errno));
    }

    fn done(&self, request: &Request, sent: io::Result<()>) {
        if request.was_left() {
            self.counters.waits(request.opcode, request.waits());
            self.counters.late_reply(request.opcode, request.received.elapsed());
        }
        self.inflight.answered(request);
        if let Some(trace) = &request.trace {
            trace.end(request);
        }
        match sent {
            // The caller is gone, or the mount is.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => {
                tracing::error!(
                    opcode = request.opcode,
                    inode = request.node.ino.0,
                    "the kernel refused an answer: {e}"
                );
                // It keeps waiting for one that it accepts.
                let _ = request.channel.error(request.unique, libc::EIO);
            }
            _ => {}
        }
    }
}
