//! A tree served on a mounted connection.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_journal::Journal;
use esker_kernel_mount::{MountError, Unmount};
use esker_threads::Pool;
use esker_vfs::{Change, Node, NodeKey, Tree, Watcher};
use parking_lot::Mutex;

use crate::abi::{self, InHeader, InitIn, InitOut, opcode};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::counters::LiveCounters;
use crate::deadlines::Timer;
use crate::inflight::{InflightRequests, Request};
use crate::kernel::Negotiated;
use crate::known_dentries::KnownDentries;
use crate::nodes::NodeTable;
use crate::notify::Invalidations;
use crate::shared_deadline::SharedDeadlines;
use crate::shared_memory::{SLOT_LEN, SharedMemory};
use crate::trace::{self, Tracers};
use crate::worker_count::WorkerCount;
use crate::workers::WorkerPool;
use crate::{Counters, PendingCall, SessionOptions, Tracer, sys};

/// Timeout for INIT. It is sent before mount(2) returns; a descriptor without one is not mounted.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of background threads.
const BACKGROUND: usize = 4;

/// Pause between two checks whether all requests are answered.
const RETIRING: Duration = Duration::from_millis(1);

/// Descriptors that outlive the process of a session, for [`Session::resume`].
#[derive(Debug)]
pub struct SessionDescriptors {
    /// Descriptors of the connection: the one that was mounted, and one for each further worker.
    pub devices: Vec<OwnedFd>,
    /// Memory file with the node table and the requests in progress.
    pub memory: OwnedFd,
    /// Names that the kernel has cached, on kernels that can't expire all of them at once.
    pub names: Option<OwnedFd>,
}

/// Failure to start a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's side of the connection failed.
    #[error("{action}")]
    Device {
        /// The operation that failed.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The kernel speaks a protocol that is too old.
    #[error("the kernel speaks FUSE protocol {major}.{minor}; at least 7.{oldest} (Linux 3.15) is needed", oldest = abi::OLDEST_MINOR)]
    Protocol {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> SessionError {
    move |source| SessionError::Device { action, source: source.into() }
}

/// A tree served on a mounted connection by a few worker threads, until it is unmounted. Dropping it leaves
/// the mount and the threads as they are.
pub struct Session {
    conn: Arc<Connection>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Session {
    /// Performs the INIT exchange and starts to serve. Calls [`Tree::watch`].
    pub fn start(
        device: OwnedFd,
        tree: Arc<dyn Tree>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let main = Channel::new(0, device);
        let negotiated = greet(&main, &options)?;
        if options.enforce_acls && !negotiated.enforces_acls() {
            tracing::error!("access control lists are not enforced: the kernel can't do that");
        }
        let memory =
            Arc::new(SharedMemory::new().map_err(failed("memory for the node table can't be reserved"))?);
        note_negotiated(&memory, &negotiated);
        let names = options.outlives && !negotiated.has_epochs();
        let names = names.then(Journal::new).transpose().map_err(failed("memory for names can't be had"))?;
        let session = Self::assemble(channels(main, &options), (memory, negotiated), names, tree, options)?;
        session.spawn().map_err(failed("a thread can't be started"))?;
        Ok(session)
    }

    /// Resumes the session of a process that ended without unmounting: the kernel notices only a delay. Calls
    /// [`Tree::watch`] and [`Tree::resumed`].
    ///
    /// Requests that the other process had read and not answered are served again (see the module `resume`).
    pub fn resume(
        inherited: SessionDescriptors,
        tree: Arc<dyn Tree>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let memory = SharedMemory::attach(inherited.memory);
        let memory = Arc::new(memory.map_err(failed("the memory of the session can't be taken over"))?);
        let header = memory.header();
        let negotiated = Negotiated::again(
            header.minor.load(Ordering::Relaxed),
            header.flags.load(Ordering::Relaxed),
            u16::try_from(header.max_pages.load(Ordering::Relaxed)).unwrap_or(0),
        );
        let numbered = inherited.devices.into_iter().enumerate();
        let channels: Vec<_> =
            numbered.map(|(number, device)| Arc::new(Channel::new(number, device))).collect();
        if channels.is_empty() {
            return Err(failed("no descriptor of the session was handed over")(io::ErrorKind::InvalidInput));
        }
        let names = inherited.names.map(Journal::attach).transpose();
        let names = names.map_err(failed("the names that the kernel knows can't be taken over"))?;
        if names.is_none() && !negotiated.has_epochs() {
            return Err(failed("the names that the kernel knows were not handed over")(
                io::ErrorKind::NotFound,
            ));
        }
        let session = Self::assemble(channels, (memory, negotiated), names, tree, options)?;
        let left_over = session.conn.take_left_over();
        session.spawn().map_err(failed("a thread can't be started"))?;
        let conn = Arc::clone(&session.conn);
        let serve = move || conn.serve_all_left_over(left_over);
        esker_threads::spawn("fuse-resume", serve).map_err(failed("a thread can't be started"))?;
        session.conn.tree.resumed();
        Ok(session)
    }

    fn assemble(
        channels: Vec<Arc<Channel>>,
        (memory, negotiated): (Arc<SharedMemory>, Negotiated),
        names: Option<Journal>,
        tree: Arc<dyn Tree>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let table = NodeTable::new(memory, Arc::clone(&tree))
            .map_err(failed("memory for the node table can't be had"))?;
        let names = (!negotiated.has_epochs()).then(|| KnownDentries::new(names)).transpose();
        let names = names.map_err(failed("the names that the kernel knows can't be read"))?;
        let workers = WorkerPool::new(channels.len()).map_err(failed("a timer can't be had"))?;
        let worker_count = WorkerCount::new(channels.len());
        let conn = Arc::new(Connection {
            channels,
            workers,
            background: Pool::on_demand("fuse-background", BACKGROUND),
            worker_count,
            names,
            tree,
            options,
            negotiated,
            table,
            inflight: InflightRequests::new(),
            shared_deadlines: SharedDeadlines::default(),
            counters: LiveCounters::new(),
            tracers: Tracers::default(),
            invalidations: Invalidations::default(),
            timer: Timer::default(),
            below_overlay: AtomicBool::new(false),
        });
        conn.tree.watch(Arc::new(WeakWatcher(Arc::downgrade(&conn))));
        Ok(Self { conn, threads: Mutex::default() })
    }

    /// Records that an overlay covers the tree ([`esker_kernel_mount::mount_overlay`]). The overlay asks for marks of its
    /// own for each name; from now on they are reported absent without asking the tree.
    pub fn put_below_overlay(&self) {
        self.conn.below_overlay.store(true, Ordering::Relaxed);
    }

    fn spawn(&self) -> io::Result<()> {
        let mut threads = self.threads.lock();
        let watch = Arc::clone(&self.conn);
        threads.push(esker_threads::spawn("fuse-patience", move || watch.watch_over())?);
        let guard = Arc::clone(&self.conn);
        let spawn = move |number| guard.spawn_extra(number);
        let guard = Arc::clone(&self.conn);
        threads.push(esker_threads::spawn("fuse-guard", move || guard.workers.watchdog(spawn))?);
        for (number, channel) in self.conn.channels.iter().enumerate() {
            let (conn, channel) = (Arc::clone(&self.conn), Arc::clone(channel));
            let name = format!("fuse-{number}");
            // Not joined: one that waits for a disk would be waited for.
            esker_threads::spawn(name, move || conn.attend(&channel, number, false))?;
        }
        Ok(())
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            opcodes: self.conn.counters.opcodes(),
            nodes: self.conn.table.len(),
            waiting: self.conn.inflight.len() as u64,
            notifications: self.conn.counters.notifications.load(Ordering::Relaxed),
            hired: self.conn.workers.spawned_extra(),
        }
    }

    /// Reports requests to a tracer from now on.
    pub fn add_tracer(&self, tracer: Arc<dyn Tracer>) {
        self.conn.tracers.add(tracer);
    }

    /// Ends the reports to a tracer; requests that have begun are still reported.
    pub fn remove_tracer(&self, tracer: &Arc<dyn Tracer>) {
        self.conn.tracers.remove(tracer);
    }

    /// Makes the kernel look up each name again, and ask for attributes and listings; contents stay in its cache.
    pub fn forget_names(&self) {
        self.conn.changed(&[Change::Everything]);
    }

    /// Returns the path of a node below the root, if the tree knows it.
    pub fn path(&self, node: &Node) -> Option<Vec<u8>> {
        self.conn.catch_panic("path", || self.conn.tree.path(node)).flatten()
    }

    /// Returns the key of the root.
    pub fn root(&self) -> NodeKey {
        self.conn.tree.root().node.key
    }

    /// Returns the requests without a reply, oldest first, at most `limit`.
    pub fn pending(&self, limit: usize) -> Vec<PendingCall> {
        let mut all = self.conn.inflight.select(|_| true);
        all.sort_by_key(|request| request.since);
        let call = |request: &Arc<Request>| {
            let (kind, name) = trace::kind(&request.op);
            PendingCall { kind, node: request.node, name, caller: request.caller, since: request.since }
        };
        all.iter().take(limit).map(call).collect()
    }

    /// Returns the procfs in which callers are looked up.
    pub fn proc(&self) -> Option<Arc<Path>> {
        self.conn.options.proc.clone()
    }

    /// Returns whether the mount is gone.
    pub fn is_over(&self) -> bool {
        self.conn.worker_count.is_over()
    }

    /// Returns second descriptors of all that another process needs to go on with this session.
    pub fn descriptors(&self) -> io::Result<SessionDescriptors> {
        let device = |channel: &Arc<Channel>| channel.device().try_clone_to_owned();
        let devices = self.conn.channels.iter().map(device).collect::<io::Result<_>>()?;
        let names = self.conn.names.as_ref().and_then(KnownDentries::descriptor).transpose()?;
        Ok(SessionDescriptors { devices, memory: self.conn.table.memory().file().try_clone()?, names })
    }

    /// Stops serving, so that another process can go on: requests in progress are finished within `patience`, and the
    /// others are left to that process. This process must end then.
    pub fn retire(&self, patience: Duration) {
        self.conn.worker_count.retire();
        let deadline = Instant::now() + patience;
        while self.conn.inflight.len() > 0 && Instant::now() < deadline {
            // Replies send no notification, and this happens once in the life of a process.
            std::thread::sleep(RETIRING);
        }
    }

    /// Waits until the mount is gone and every worker has ended. Workers blocked on a disk that doesn't answer are
    /// detached after a moment, and end when it does; returns whether there are none.
    pub fn wait(&self) -> bool {
        let left = self.conn.worker_count.wait();
        if left > 0 {
            tracing::warn!("{left} threads still blocked on disk I/O; detaching");
            return false;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A worker catches panics of the tree; another panic was reported by the hook.
            let _ = thread.join();
        }
        true
    }

    /// Unmounts `options.mountpoint`.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        match &self.conn.options.helper {
            Some(helper) => helper.unmount(how),
            None => esker_kernel_mount::unmount(
                self.conn.options.mountpoint.as_deref().unwrap_or(Path::new("")),
                how,
            ),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("options", &self.conn.options).finish_non_exhaustive()
    }
}

impl Watcher for Session {
    fn changed(&self, changes: &[Change]) {
        self.conn.changed(changes);
    }
}

/// Watcher for the tree. Weak, because the connection holds the tree.
struct WeakWatcher(Weak<Connection>);

impl Watcher for WeakWatcher {
    fn changed(&self, changes: &[Change]) {
        if let Some(conn) = self.0.upgrade() {
            conn.changed(changes);
        }
    }
}

impl Connection {
    /// Serves as a worker, and cleans up if it is the last.
    fn attend(self: &Arc<Self>, channel: &Arc<Channel>, number: usize, is_extra: bool) {
        let is_gone = self.work(channel, number, is_extra);
        self.worker_count.leave(is_gone, || self.end_unless_retiring());
    }

    /// Starts a further worker; whether that could be done.
    fn spawn_extra(self: &Arc<Self>, number: u64) -> bool {
        let at = usize::try_from(number).unwrap_or(0) % self.channels.len();
        let (conn, channel) = (Arc::clone(self), Arc::clone(&self.channels[at]));
        self.worker_count.join();
        let started = esker_threads::spawn("fuse-hired", move || conn.attend(&channel, at, true));
        if started.is_err() {
            self.worker_count.leave(false, || self.end_unless_retiring());
        }
        started.is_ok()
    }

    /// Cleans up after the last worker, unless another process resumes the session.
    fn end_unless_retiring(&self) {
        if !self.worker_count.is_retiring() {
            self.end();
        }
    }

    /// Ends all requests and releases all nodes, because the mount is gone.
    fn end(&self) {
        self.timer.end();
        for request in self.inflight.select(|_| true) {
            if self.inflight.claim(&request) {
                self.inflight.answered(&request);
            }
        }
        self.catch_panic("release", || self.table.release_all());
    }
}

/// Opens one descriptor for each worker. On an old kernel, or without free descriptors, workers share one.
fn channels(main: Channel, options: &SessionOptions) -> Vec<Arc<Channel>> {
    let main = Arc::new(main);
    let mut channels = vec![Arc::clone(&main)];
    while channels.len() < options.threads.max(1) {
        channels.push(match sys::clone_device(main.device()) {
            Ok(device) => Arc::new(Channel::new(channels.len(), device)),
            Err(e) => {
                tracing::warn!("workers share one descriptor of /dev/fuse: {e}");
                Arc::clone(&main)
            }
        });
    }
    channels
}

fn note_negotiated(memory: &SharedMemory, negotiated: &Negotiated) {
    let header = memory.header();
    header.minor.store(negotiated.minor, Ordering::Relaxed);
    header.flags.store(negotiated.flags, Ordering::Relaxed);
    header.max_pages.store(u32::from(negotiated.max_pages), Ordering::Relaxed);
}

/// Performs the INIT exchange.
fn greet(channel: &Channel, options: &SessionOptions) -> Result<Negotiated, SessionError> {
    let mut buffer = vec![0; SLOT_LEN];
    loop {
        if !channel.wait(GREETING_WITHIN).map_err(failed("waiting for the kernel's greeting"))? {
            let source = io::Error::from(io::ErrorKind::TimedOut);
            return Err(SessionError::Device { action: "the kernel sends no greeting", source });
        }
        let len = channel.receive(&mut buffer).map_err(failed("the kernel's greeting can't be read"))?;
        let request = buffer.get(..len).unwrap_or_default();
        let short = || io::Error::from(io::ErrorKind::InvalidData);
        let header = sys::read_plain::<InHeader>(request).ok_or_else(short);
        let body = request.get(size_of::<InHeader>()..).unwrap_or_default();
        let offer = sys::read_plain::<InitIn>(body).ok_or_else(short);
        let header = header.map_err(failed("the kernel's greeting is too short"))?;
        let offer = offer.map_err(failed("the kernel's greeting is too short"))?;
        if header.opcode != opcode::INIT {
            return Err(failed("another process serves the connection")(short()));
        }
        if offer.major > abi::MAJOR {
            // The kernel sends INIT again with this version.
            let ours = InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() };
            channel.plain(header.unique, &ours).map_err(failed("answering the kernel's greeting"))?;
            continue;
        }
        if offer.major < abi::MAJOR || offer.minor < abi::OLDEST_MINOR {
            let _ = channel.error(header.unique, libc::EPROTO);
            return Err(SessionError::Protocol { major: offer.major, minor: offer.minor });
        }
        let flags2 = body.get(size_of::<InitIn>()..).and_then(sys::read_plain).unwrap_or(0);
        let negotiated = Negotiated::reach(&offer, flags2, options.kernel, options.enforce_acls);
        channel
            .plain(header.unique, &negotiated.answer())
            .map_err(failed("answering the kernel's greeting"))?;
        return Ok(negotiated);
    }
}
