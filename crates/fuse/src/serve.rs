//! Requests, as they come.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_vfs::{ErrorKind, Node};

use crate::abi::{BatchForgetIn, ForgetOne, InHeader, OpenOut, ReadIn, XattrSize, opcode, open};
use crate::arena::Slot;
use crate::channel::Channel;
use crate::connection::Connection;
use crate::crew::Luck;
use crate::nodes::NodeId;
use crate::options::Severity;
use crate::sys::read_plain;
use crate::trusted;
use crate::waiting::{Question, Request, User};
use crate::wire;

/// Marks the number of an INTERRUPT; without it, it is the number of the request that is meant.
const INTERRUPT_BIT: u64 = 1;

/// When a request is asked that was put off.
const PUT_OFF: Duration = Duration::from_millis(100);

impl Connection {
    /// Serves one descriptor until the mount is gone, as the worker of this number; one who was hired only as long as
    /// nobody else listens. Tells whether it is.
    pub(crate) fn work(self: &Arc<Self>, channel: &Arc<Channel>, worker: usize, is_hired: bool) -> bool {
        let mut luck = Luck::default();
        if !is_hired {
            self.crew.rest();
        }
        loop {
            let mut slot = self.arena.slot(worker);
            match slot.fill(|buffer| channel.receive(buffer)) {
                Ok(()) => {
                    luck.came();
                    self.serve(channel, slot);
                    if is_hired {
                        if self.crew.dismisses() {
                            return false;
                        }
                    } else if !luck.linger(&self.crew, channel) {
                        self.crew.rest();
                    }
                }
                Err(e) => match e.raw_os_error() {
                    // A signal, or a request that was taken back while it was being read.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => break,
                    _ => {
                        self.log(Severity::Error, &format!("/dev/fuse can't be read: {e}"));
                        break;
                    }
                },
            }
        }
        self.crew.end();
        true
    }

    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot) {
        let Some(header) = read_plain::<InHeader>(slot.request()) else {
            return self.log(Severity::Error, "the kernel sent less than a request");
        };
        let since = Instant::now();
        let quick = !matches!(header.opcode, opcode::READ | opcode::READDIR | opcode::READDIRPLUS);
        self.crew.begin(channel, header.pid, quick, since);
        self.tally.request(header.opcode);
        if self.guard("a request", || self.dispatch(channel, slot, &header)).is_none() {
            // The answer of a request that waits was given when its reply was dropped.
            let waits = self.waiting.find(header.unique).is_some();
            let silent = matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
            if !waits && !silent {
                let _ = channel.error(header.unique, libc::EIO);
            }
        }
        self.tally.busy(header.opcode, since.elapsed());
        self.crew.done();
    }

    fn dispatch(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot, header: &InHeader) {
        let body = slot.request().get(size_of::<InHeader>()..).unwrap_or_default();
        let unique = header.unique;
        let sent = match header.opcode {
            opcode::FORGET => return self.forgotten(header.nodeid, read_plain(body).unwrap_or_default()),
            opcode::BATCH_FORGET => return self.forget_batch(body),
            opcode::INTERRUPT => return self.interrupt(read_plain(body).unwrap_or_default()),
            opcode::NOTIFY_REPLY => return,
            opcode::STATFS => channel.plain(unique, &wire::statfs(self.tree.statfs())),
            opcode::OPEN if !self.agreement.no_open() => channel.plain(unique, &opened(open::KEEP_CACHE)),
            opcode::OPENDIR if !self.agreement.no_opendir() => {
                let cache = if self.agreement.caches_listings() { open::CACHE_DIR } else { 0 };
                channel.plain(unique, &opened(open::KEEP_CACHE | cache))
            }
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => channel.bytes(unique, &[]),
            opcode::IOCTL => self.refuse_at_once(channel, header, libc::ENOTTY),
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
            _ => match question(header, body) {
                Some(question) => return self.put(channel, slot, header, question),
                // OPEN, FLUSH, ACCESS, LSEEK, STATX and whatever else can be done without us: the kernel
                // never asks again.
                None => self.refuse_at_once(channel, header, libc::ENOSYS),
            },
        };
        self.note_send(sent);
    }

    fn refuse_at_once(&self, channel: &Channel, header: &InHeader, errno: i32) -> io::Result<()> {
        self.tally.error(header.opcode);
        channel.error(header.unique, errno)
    }

    fn note_send(&self, sent: io::Result<()>) {
        if let Err(e) = sent
            && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED))
        {
            self.log(Severity::Error, &format!("the kernel refused an answer: {e}"));
        }
    }

    /// Whether a node may have an attribute of this name, as far as the caller can see.
    fn may_have(&self, name: &[u8], header: &InHeader) -> bool {
        let is_overlays = || self.below_overlay.load(Ordering::Relaxed) && trusted::is_of_overlay(name);
        let may_ask = self.options.xattr_guard.as_ref().is_none_or(|may_ask| may_ask(name, header.gid));
        may_ask && !is_overlays()
    }

    /// Puts a question to the tree.
    fn put(self: &Arc<Self>, channel: &Arc<Channel>, slot: Slot, header: &InHeader, question: Question) {
        if let Question::Xattr { name, .. } = &question
            && !self.may_have(name, header)
        {
            let sent = self.refuse_at_once(channel, header, esker_vfs::errno(ErrorKind::NoAttribute));
            return self.note_send(sent);
        }
        let id = NodeId(header.nodeid);
        let Some(node) = self.table.node(id) else {
            // A handle from before (NFS, open_by_handle_at): its number is not given to another node.
            let sent = self.refuse_at_once(channel, header, esker_vfs::errno(ErrorKind::Stale));
            return self.note_send(sent);
        };
        let request = self.request(channel, slot, header, (id, node), question);
        self.waiting.add(&request);
        // Before the tree is asked: a worker that it holds up can't do it afterwards.
        self.clock.stir();
        self.crew.asks();
        if self.crew.is_last() {
            self.put_off(&request);
        } else {
            self.ask(&request);
        }
        if !request.is_answered() {
            self.tally.parked(header.opcode);
            if request.generation > 0 {
                self.end_if_late(&request);
            }
            self.clock.wake();
        }
    }

    /// Everybody else is held up by the tree, and whoever hears of signals and serves what needs no tree must not be:
    /// the request is asked later, by another thread. What is known of a node is told at once.
    fn put_off(self: &Arc<Self>, request: &Arc<Request>) {
        let known = matches!(request.question, Question::Attributes).then(|| self.table.attr(request.id));
        if let Some(attr) = known.flatten() {
            if self.waiting.claim(request) {
                self.waiting.answered(request);
                self.note_send(request.channel.plain(request.unique, &wire::attr_out(&attr)));
            }
            return;
        }
        *request.again.lock() = Some(Instant::now() + PUT_OFF);
    }

    fn request(
        &self,
        channel: &Arc<Channel>,
        slot: Slot,
        header: &InHeader,
        about: (NodeId, Node),
        question: Question,
    ) -> Arc<Request> {
        let numbers = (header.unique, header.opcode);
        let from = (header.pid, self.user(header), self.batches.load(Ordering::SeqCst));
        let begun = self.behind.begun(about.0, &question);
        Arc::new(Request::new(numbers, about, from, question, begun, Arc::clone(channel), slot))
    }

    /// The user who asks. An overlay reads as whoever mounted it, so behind one it is the user of the caller's process.
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
            self.log(Severity::Error, &format!("the kernel forgot node {nodeid:#x} {count} times too often"));
        }
    }

    fn forget_batch(&self, body: &[u8]) {
        let count = read_plain::<BatchForgetIn>(body).unwrap_or_default().count as usize;
        let items = body.get(size_of::<BatchForgetIn>()..).unwrap_or_default();
        for item in items.chunks_exact(size_of::<ForgetOne>()).take(count) {
            let one = read_plain::<ForgetOne>(item).unwrap_or_default();
            self.guard("release", || self.forgotten(one.nodeid, one.nlookup));
        }
    }

    fn interrupt(&self, unique: u64) {
        if let Some(request) = self.waiting.find(unique) {
            return self.interrupted(&request);
        }
        // Either it was answered, or another thread has read it and not come around to noting it. The kernel
        // looks for it among the requests read by one descriptor; if it finds it, it repeats the INTERRUPT.
        let _ =
            self.channels.iter().any(|channel| channel.error(unique | INTERRUPT_BIT, libc::EAGAIN).is_ok());
    }
}

fn opened(open_flags: u32) -> OpenOut {
    OpenOut { open_flags, ..OpenOut::default() }
}

/// What a request asks the tree, if it asks it anything.
fn question(header: &InHeader, body: &[u8]) -> Option<Question> {
    let number = header.opcode;
    let name = |bytes: &[u8]| Some(Box::from(bytes.split(|&b| b == 0).next()?));
    Some(match number {
        opcode::LOOKUP => match name(body)? {
            name if *name == *b"." => Question::Itself,
            name => Question::Lookup { name },
        },
        opcode::GETATTR => Question::Attributes,
        opcode::READLINK => Question::LinkTarget,
        opcode::READ => {
            let read: ReadIn = read_plain(body)?;
            Question::Read { offset: read.offset, len: read.size as usize }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let read: ReadIn = read_plain(body)?;
            let plus = number == opcode::READDIRPLUS;
            Question::List { offset: read.offset, size: read.size as usize, plus }
        }
        opcode::GETXATTR => {
            let size: XattrSize = read_plain(body)?;
            Question::Xattr { name: name(body.get(size_of::<XattrSize>()..)?)?, size: size.size as usize }
        }
        opcode::LISTXATTR => {
            let size: XattrSize = read_plain(body)?;
            Question::XattrNames { size: size.size as usize, trusted: trusted::may_see(header.uid) }
        }
        _ => return None,
    })
}
