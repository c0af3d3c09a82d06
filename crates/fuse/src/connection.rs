//! What the threads of a session share, and the answers they give.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_vfs::{Attr, Data, DirEntry, ErrorKind, Found, Kind, Listing, Tree, TreeError};

use crate::abi::XattrSize;
use crate::arena::Arena;
use crate::attendance::Attendance;
use crate::behind::Behind;
use crate::caller::{self, Reader};
use crate::channel::Channel;
use crate::counters::Tally;
use crate::crew::Crew;
use crate::data::{self, Failure};
use crate::errands::Errands;
use crate::kernel::Agreement;
use crate::listing::Names;
use crate::names::GivenNames;
use crate::nodes::{Forgotten, NodeId, NodeTable};
use crate::notify::Notices;
use crate::options::{SessionOptions, Severity};
use crate::patience::Clock;
use crate::trusted;
use crate::waiting::{Question, Request, Waiting};
use crate::wire;

/// Names longer than any file system has are not looked up.
const LONGEST_NAME: usize = 255;

/// First pause before a read behind a page fault is asked again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long an error waits for being told to the tree before its caller gets it.
const TELLING: Duration = Duration::from_millis(20);

thread_local! {
    /// Where listings are put together.
    static LISTING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted connection that is being served.
pub(crate) struct Connection {
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) options: SessionOptions,
    pub(crate) agreement: Agreement,
    pub(crate) arena: Arc<Arena>,
    pub(crate) table: NodeTable,
    pub(crate) waiting: Waiting,
    pub(crate) behind: Behind,
    pub(crate) tally: Tally,
    pub(crate) notices: Notices,
    /// Names the kernel may know, where it can't be told to doubt all of them at once.
    pub(crate) names: Option<GivenNames>,
    pub(crate) clock: Clock,
    /// Batches of changes so far.
    pub(crate) batches: AtomicU64,
    /// All descriptors of the connection; the first is the one it was mounted with.
    pub(crate) channels: Vec<Arc<Channel>>,
    pub(crate) crew: Crew,
    pub(crate) errands: Arc<Errands>,
    pub(crate) attendance: Attendance,
    /// Whether an overlay shows the tree: see [`crate::Session::put_below_overlay`].
    pub(crate) below_overlay: AtomicBool,
}

impl Connection {
    pub(crate) fn log(&self, severity: Severity, text: &str) {
        (self.options.log)(severity, text);
    }

    /// Runs code of the tree; if it panics, says so and goes on.
    pub(crate) fn guard<T>(&self, what: &str, run: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(value) => Some(value),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                self.log(Severity::Error, &format!("the tree panicked in {what}: {text}"));
                None
            }
        }
    }

    /// Asks the tree. The answer may be given before this returns, or later by another thread.
    pub(crate) fn ask(self: &Arc<Self>, request: &Arc<Request>) {
        let (conn, tree, node) = (Arc::clone(self), &self.tree, &request.node);
        match &request.question {
            Question::Lookup { name } if name.len() > LONGEST_NAME => {
                self.looked_up(request, Err(ErrorKind::NameTooLong.into()));
            }
            Question::Lookup { name } => {
                tree.lookup(node, name, request.reply(move |asked, answer| conn.looked_up(asked, answer)));
            }
            Question::Itself => {
                let itself = move |asked: &Arc<Request>, answer| {
                    let attr = conn.or_last_known(asked, answer);
                    conn.looked_up(asked, attr.map(|attr| Found { node: asked.node, attr }));
                };
                tree.attributes(node, request.reply(itself));
            }
            Question::Attributes => {
                tree.attributes(node, request.reply(move |asked, answer| conn.described(asked, answer)));
            }
            Question::List { offset, .. } => {
                let after = Question::cookie(*offset);
                tree.list(node, after, request.reply(move |asked, answer| conn.listed(asked, answer)));
            }
            Question::Read { .. } if node.kind == Kind::Directory => {
                self.read(request, Err(ErrorKind::IsADirectory.into()));
            }
            Question::Read { offset, len } => {
                tree.read(node, *offset, *len, request.reply(move |asked, answer| conn.read(asked, answer)));
            }
            Question::LinkTarget => {
                tree.link_target(node, request.reply(move |asked, answer| conn.linked(asked, answer)));
            }
            Question::Xattr { name, size } => {
                let size = *size;
                tree.xattr(node, name, request.reply(move |asked, answer| conn.valued(asked, size, answer)));
            }
            Question::XattrNames { size, trusted } => {
                let (size, trusted) = (*size, *trusted);
                let join = move |names: Vec<Vec<u8>>| {
                    let shown = names.into_iter().filter(|name| trusted || !trusted::is_trusted(name));
                    shown.flat_map(|name| name.into_iter().chain([0])).collect::<Vec<u8>>()
                };
                tree.xattr_names(node, request.reply(move |asked, a| conn.valued(asked, size, a.map(join))));
            }
        }
    }

    fn looked_up(&self, request: &Request, answer: Result<Found, TreeError>) {
        if request.is_answered() {
            return;
        }
        let lasts = self.note_name(request, &answer);
        let (channel, unique) = (&request.channel, request.unique);
        let found = match answer {
            Ok(found) => found,
            Err(_) if !self.waiting.claim(request) => return,
            Err(error) if error.kind == ErrorKind::NotFound && lasts => {
                return self.done(request, channel.plain(unique, &wire::absent()));
            }
            Err(error) => return self.fail(request, &error),
        };
        // To hold a node may take a look into its catalog, so it comes before the right to answer.
        match self.guard("hold", || self.table.intern(&found, self.dir(request))) {
            Some(Some(id)) if !self.waiting.claim(request) => self.take_back(id),
            Some(Some(id)) => {
                let out = wire::entry_out(id, &found.attr, self.is_current(request));
                let sent = channel.plain(unique, &out);
                if sent.is_err() {
                    self.take_back(id);
                }
                self.done(request, sent);
            }
            none if self.waiting.claim(request) => {
                self.refuse(request, if none.is_some() { libc::ENOMEM } else { libc::EIO });
            }
            _ => {}
        }
    }

    /// The directory of a lookup, which the kernel keeps locked until it has taken the answer in.
    fn dir(&self, request: &Request) -> Option<NodeId> {
        matches!(request.question, Question::Lookup { .. }).then_some(request.id)
    }

    /// Whether no change was announced since the tree was asked. If one was, the attributes in its answer
    /// may be those from before, and the announcement may have come too early for them: see `notify`. To be
    /// called after the answer's nodes were interned.
    fn is_current(&self, request: &Request) -> bool {
        self.batches.load(Ordering::SeqCst) == request.asked_at
    }

    /// Whether the kernel may keep what it is about to be told of a name.
    fn note_name(&self, request: &Request, answer: &Result<Found, TreeError>) -> bool {
        match (&self.names, &request.question) {
            (Some(names), Question::Lookup { name }) => {
                names.note(request.id, name, answer.as_ref().ok().map(|found| found.node.kind))
            }
            _ => true,
        }
    }

    /// The kernel gave back a node `count` times. Returns whether it had been given it as often.
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

    /// The kernel did not get what it was to be given.
    fn take_back(&self, id: NodeId) {
        self.guard("release", || self.forget(id, 1));
    }

    /// A node that the tree has moved on from keeps the attributes it had.
    fn or_last_known(&self, request: &Request, answer: Result<Attr, TreeError>) -> Result<Attr, TreeError> {
        match answer {
            Err(error) if error.kind == ErrorKind::Stale => self.table.attr(request.id).ok_or(error),
            answer => answer,
        }
    }

    fn described(&self, request: &Request, answer: Result<Attr, TreeError>) {
        if !self.waiting.claim(request) {
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

    fn listed(&self, request: &Request, answer: Result<Listing, TreeError>) {
        if request.is_answered() {
            return;
        }
        let listing = match answer {
            Ok(listing) => listing,
            Err(error) if self.waiting.claim(request) => return self.fail(request, &error),
            Err(_) => return,
        };
        let Question::List { offset, size, plus } = request.question else { return };
        LISTING.with_borrow_mut(|out| {
            let mut names = Names::new(out, size);
            names.dots(offset, request.node.ino, listing.parent, plus);
            let give = |entry: &DirEntry| {
                let found = Found { node: entry.node, attr: entry.attr };
                let id = self.table.intern(&found, Some(request.id))?;
                Some((id, wire::entry_out(id, &entry.attr, self.is_current(request))))
            };
            let filled = self.guard("hold", || names.entries(&listing, plus.then_some(&give)));
            let given = std::mem::take(&mut names.given);
            if let (Some(known), true) = (&self.names, plus) {
                known.note_listing(request.id, &listing, given.len());
            }
            let is_ours = self.waiting.claim(request);
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
        let Question::Read { offset, len } = request.question else { return };
        match answer {
            Ok(data) => {
                let claim = || self.waiting.claim(request);
                match data::send(&request.channel, request.unique, &data, len, claim) {
                    Ok(()) => self.done(request, Ok(())),
                    Err(Failure::Kernel(error)) => self.done(request, Err(error)),
                    Err(Failure::Source(_)) if !request.reread.swap(true, Ordering::Relaxed) => {
                        // The bytes may be elsewhere, too: on another file, or a server.
                        self.guard("unreadable", || self.tree.unreadable(&request.node, offset, len));
                        self.ask(request);
                    }
                    Err(Failure::Source(error)) if self.waiting.claim(request) => {
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
            Reader::Calls if self.waiting.claim(request) => self.fail(request, error),
            Reader::Calls => {}
            Reader::Faults => {
                request.patient.store(true, Ordering::Relaxed);
                self.ask_again_later(request, error);
            }
            Reader::Unseen => self.ask_again_later(request, error),
        }
    }

    /// How the caller of a read came to wait for it. Once faults have waited for their own deadline, they are as good
    /// as calls.
    pub(crate) fn reader(&self, request: &Request) -> Reader {
        if self.options.deadlines.fault.is_some_and(|limit| request.quiet_since().elapsed() >= limit) {
            return Reader::Calls;
        }
        if let Question::Read { offset, .. } = request.question
            && self.guard("may_be_mapped", || self.tree.may_be_mapped(&request.node, offset)) == Some(false)
        {
            return Reader::Calls;
        }
        caller::reader(self.options.proc.as_deref(), request.caller, request.node.ino)
    }

    fn ask_again_later(&self, request: &Request, error: &TreeError) {
        let failures = request.failures.fetch_add(1, Ordering::Relaxed);
        if failures == 0 {
            // Nobody is told an error, but the status of the mount should show why the program hangs.
            self.tell_tree(request, error);
        }
        let pause = FIRST_PAUSE * (1 << failures.min(7));
        *request.again.lock() = Some(Instant::now() + pause.min(LONGEST_PAUSE));
        self.clock.wake();
    }

    fn linked(&self, request: &Request, answer: Result<Vec<u8>, TreeError>) {
        if !self.waiting.claim(request) {
            return;
        }
        match answer {
            Ok(target) => self.done(request, request.channel.bytes(request.unique, &target)),
            Err(error) => self.fail(request, &error),
        }
    }

    /// A value of unknown size: a caller that offers no room asks for the size.
    fn valued(&self, request: &Request, room: usize, answer: Result<Vec<u8>, TreeError>) {
        if !self.waiting.claim(request) {
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

    /// Answers a claimed request with the error's number and tells the tree.
    pub(crate) fn fail(&self, request: &Request, error: &TreeError) {
        if error.may_pass() || matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Interrupted) {
            self.behind.failed(request);
        }
        if error.is_news() {
            self.tell_tree(request, error);
        }
        self.refuse(request, error.errno());
    }

    /// Answers a claimed request whose time is over. Waits for nothing: the tree is told by another thread.
    pub(crate) fn expire(self: &Arc<Self>, request: &Arc<Request>) {
        let error = TreeError::from(ErrorKind::TimedOut);
        self.behind.failed(request);
        let (conn, late) = (Arc::clone(self), Arc::clone(request));
        // First, so that whoever reads the error finds why in the status.
        self.errands.send_and_wait(move || conn.tell_tree(&late, &error), TELLING);
        self.refuse(request, esker_vfs::errno(ErrorKind::TimedOut));
    }

    fn tell_tree(&self, request: &Request, error: &TreeError) {
        let caller = (request.caller != 0).then_some(request.caller);
        self.guard("failed", || self.tree.failed(&request.node, error, caller));
    }

    /// Answers a claimed request with an error number.
    pub(crate) fn refuse(&self, request: &Request, errno: i32) {
        self.tally.error(request.opcode);
        self.done(request, request.channel.error(request.unique, errno));
    }

    fn done(&self, request: &Request, sent: io::Result<()>) {
        self.waiting.answered(request);
        match sent {
            // Whoever asked is gone, or the whole mount is.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => {
                self.log(Severity::Error, &format!("the kernel refused an answer: {e}"));
                // It keeps waiting for one that it accepts.
                let _ = request.channel.error(request.unique, libc::EIO);
            }
            _ => {}
        }
    }
}
