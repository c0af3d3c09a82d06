//! Sends notifications that invalidate the kernel's caches.
//!
//! A notification can wait inside the kernel. INVAL_ENTRY takes the directory's lock, which every LOOKUP and
//! READDIR of that directory holds while it is in progress; so requests that wait for the network must not
//! keep it:
//!
//! * The caller of [`Connection::changed`] holds no lock of ours while it writes.
//! * A LOOKUP that waits in the directory gets `ESTALE` once the notification is seen to be stuck;
//!   the kernel walks the path again by itself, and that walk queues behind the notification. It does so once,
//!   so no other notification goes to that directory until the lookup came again and was answered.
//! * A directory with a listing in progress is left for later; that listing has a deadline.
//! * A file whose last user was killed keeps pages locked until its read is answered, and INVAL_ENTRY may
//!   wait for them; such reads have no reader and are ended.
//!
//! INVAL_INODE takes no lock, so by itself it could overtake a reply that carries old names or attributes
//! and that the kernel has not processed yet. Two things prevent that:
//!
//! * A reply sent after a batch of changes began, to a request from before, is marked as expired
//!   ([`Connection::is_current`]).
//! * Before INVAL_INODE for a node goes an INVAL_ENTRY for a name that can't exist, in the directory of
//!   the node's last reply (for a listing: in the directory itself). When it returns, the kernel has
//!   processed every earlier reply for that directory.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_vfs::{Change, ErrorKind, Kind};
use parking_lot::Mutex;

use crate::abi::{InvalEntry, InvalInode, notify};
use crate::caller_state;
use crate::connection::Connection;
use crate::inflight::{Request, TreeOp};
use crate::nodes::NodeId;

/// A name that no directory can contain.
const NO_NAME: &[u8] = b"/";

/// Time after which a notification counts as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(10);
/// Time after which reads without a reader are ended as well.
const STUCK_LONG: Duration = Duration::from_millis(100);

/// Notifications that are in progress inside the kernel, and the batches of changes that they belong to.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    under_way: Mutex<Vec<(NodeId, Instant)>>,
    /// Number of batches of changes so far.
    batches: AtomicU64,
}

impl Invalidations {
    /// Returns the number of batches of changes that have begun.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::SeqCst)
    }

    /// Sends a notification about a node.
    fn send<T>(&self, about: NodeId, send: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        self.under_way.lock().push((about, since));
        let sent = send();
        let mut under_way = self.under_way.lock();
        if let Some(at) = under_way.iter().position(|entry| *entry == (about, since)) {
            under_way.swap_remove(at);
        }
        sent
    }

    pub(crate) fn any(&self) -> bool {
        !self.under_way.lock().is_empty()
    }

    fn older_than(&self, age: Duration) -> Vec<NodeId> {
        self.under_way.lock().iter().filter(|(_, since)| since.elapsed() >= age).map(|(id, _)| *id).collect()
    }
}

/// Directories for which the kernel has processed all replies from before a batch of changes.
type Passed = HashSet<NodeId>;

impl Connection {
    /// Invalidates the kernel's caches; returns once it was notified.
    pub(crate) fn changed(&self, changes: &[Change]) {
        // Answers to questions from before this line don't last.
        self.invalidations.batches.fetch_add(1, Ordering::SeqCst);
        // Every listing and lookup in progress has ended by then. Later ones need no wait, since they read the current
        // tree.
        let deadlines = &self.options.deadlines;
        let deadline = Instant::now() + deadlines.list.max(deadlines.lookup) + Duration::from_secs(1);
        let mut passed = Passed::new();
        let mut left: Vec<&Change> = changes.iter().collect();
        while !left.is_empty() && !self.timer.is_over() {
            let late = Instant::now() >= deadline;
            let mut held_up = HashSet::new();
            left.retain(|change| {
                // Order within a directory is kept: once one change waits, all of them do.
                let dir = self.locks(change).find(|dir| held_up.contains(dir) || self.inflight.holds(*dir));
                match dir {
                    Some(dir) if !late => {
                        held_up.insert(dir);
                        true
                    }
                    _ => {
                        self.tell_change(change, &mut passed);
                        false
                    }
                }
            });
            if !left.is_empty() {
                self.inflight.until_free(&held_up, deadline);
            }
        }
    }

    /// Returns the directories that the notifications of a change lock.
    fn locks(&self, change: &Change) -> impl Iterator<Item = NodeId> + use<> {
        let (own, given_in) = match change {
            Change::Name { dir, .. } => (self.table.id_of(dir), None),
            Change::Listing { dir } => {
                let id = self.table.id_of(dir);
                (id, id.and_then(|id| self.table.dir_of(id)))
            }
            Change::Attributes { node } => {
                (None, self.table.id_of(node).and_then(|id| self.table.dir_of(id)))
            }
            Change::Everything => (None, None),
        };
        own.into_iter().chain(given_in)
    }

    fn tell_change(&self, change: &Change, passed: &mut Passed) {
        match change {
            Change::Name { dir, name } => {
                if let Some(dir) = self.table.id_of(dir) {
                    self.entry(dir, name, 0);
                    passed.insert(dir);
                }
            }
            Change::Listing { dir } => {
                if let Some(dir) = self.table.id_of(dir) {
                    self.listing_changed(dir, passed);
                }
            }
            Change::Attributes { node } => {
                if let Some(id) = self.table.id_of(node) {
                    self.attributes_changed(id, passed);
                }
            }
            Change::Everything => self.everything_changed(passed),
        }
    }

    /// Returns once the kernel has processed every reply for `dir` from before the batch.
    fn pass(&self, dir: Option<NodeId>, passed: &mut Passed) {
        if let Some(dir) = dir
            && passed.insert(dir)
        {
            self.entry(dir, NO_NAME, 0);
        }
    }

    fn listing_changed(&self, dir: NodeId, passed: &mut Passed) {
        self.pass(Some(dir), passed);
        self.pass(self.table.dir_of(dir), passed);
        self.inode(dir, 0);
    }

    fn attributes_changed(&self, id: NodeId, passed: &mut Passed) {
        self.pass(self.table.dir_of(id), passed);
        // A negative offset leaves cached content alone.
        self.inode(id, -1);
    }

    fn everything_changed(&self, passed: &mut Passed) {
        let bumped = self.negotiated.has_epochs() && self.channel().notify_bare(notify::INC_EPOCH).is_ok();
        self.counters.notifications.fetch_add(1, Ordering::Relaxed);
        let mut known = Vec::new();
        self.table.each(|id, node| known.push((id, node.kind)));
        for (id, kind) in known {
            if kind != Kind::Directory {
                self.attributes_changed(id, passed);
                continue;
            }
            self.listing_changed(id, passed);
            if !bumped {
                self.names_changed(id);
            }
        }
    }

    /// Invalidates every name of a directory. Earlier replies for it were processed, so their names are known.
    fn names_changed(&self, dir: NodeId) {
        let Some(names) = &self.names else { return };
        for (name, kind) in names.take(dir) {
            // Removing a directory's name unmounts mounts below it; expiring it is enough.
            let doubt = kind == Some(Kind::Directory) && self.negotiated.can_expire();
            self.entry(dir, &name, if doubt { notify::EXPIRE_ONLY } else { 0 });
        }
    }

    fn channel(&self) -> &crate::channel::Channel {
        &self.channels[0]
    }

    fn entry(&self, parent: NodeId, name: &[u8], flags: u32) {
        let value = InvalEntry { parent: parent.0, namelen: name.len() as u32, flags };
        self.tell(parent, || self.channel().notify(notify::INVAL_ENTRY, &value, name));
    }

    fn inode(&self, id: NodeId, offset: i64) {
        let value = InvalInode { nodeid: id.0, offset, len: 0 };
        self.tell(id, || self.channel().notify(notify::INVAL_INODE, &value, &[]));
    }

    fn tell(&self, about: NodeId, send: impl FnOnce() -> io::Result<()>) {
        let sent = self.invalidations.send(about, send);
        self.counters.notifications.fetch_add(1, Ordering::Relaxed);
        let Err(error) = sent else { return };
        // ENOENT: it had nothing cached under that name. ENOTDIR: a number that was a directory's. ENODEV:
        // the mount is gone.
        let expected = [libc::ENOENT, libc::ENOTDIR, libc::ENODEV, libc::ECONNABORTED];
        if !error.raw_os_error().is_some_and(|e| expected.contains(&e)) {
            tracing::error!("the kernel refused a notification: {error}");
        }
    }

    /// Ends the requests that block a notification.
    pub(crate) fn unblock_invalidations(&self) {
        let stuck = self.invalidations.older_than(STUCK_AFTER);
        if stuck.is_empty() {
            return;
        }
        let lookup = |r: &Request| matches!(r.op, TreeOp::Lookup { .. }) && stuck.contains(&r.id);
        for request in self.inflight.select(lookup) {
            if self.inflight.retries_lookup(&request) && self.inflight.claim(&request) {
                self.fail(&request, &ErrorKind::Stale.into());
            }
        }
        if self.invalidations.older_than(STUCK_LONG).is_empty() {
            return;
        }
        for request in self.inflight.select(|r| matches!(r.op, TreeOp::Read { .. })) {
            self.end_without_reader(&request);
        }
    }

    /// Ends a read if the thread that caused it has ended.
    pub(crate) fn end_without_reader(&self, request: &Arc<Request>) {
        let proc = self.options.proc.as_deref().filter(|_| request.caller != 0);
        let gone = proc.is_some_and(|p| caller_state::is_gone(p, request.caller));
        // It was read-ahead, or the reader would be waiting. Another process that waits for the same page
        // asks anew when this one fails.
        if gone && self.inflight.claim(request) {
            self.refuse(request, libc::EIO);
        }
    }
}
