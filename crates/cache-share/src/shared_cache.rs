//! Shares one cache between all mounts of a user.
//!
//! A cache directory has one writer: the process that holds its lock. The first process to open it becomes the writer
//! and listens in the directory; later ones connect to it and get read-only descriptors. When the writer
//! ends or is killed, the others race for the lock: one becomes the writer (checking files after an unclean end),
//! the rest connect to that one, and every pending request is repeated. No
//! read fails because of it. If no process can become the writer, because the disk fails, each fetches for itself and
//! keeps no file content, until the disk works again.
//!
//! ```text
//!   View ──► Shared ──┬── as writer: Objects ──► cache directory ◄── Broker ◄──┐
//!                     └── as client: Client ── socket ─────────────────────────┘ (in another process)
//! ```

mod activity;
mod address;
pub(crate) mod admin;
mod broker;
mod client;
mod progress;
mod quota;
mod received;
mod release;
mod requests;
mod service;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use esker_format::object::ObjectKind;
use esker_store::{
    CacheKey, Callback, CancelToken, Cause, Handle, Holder, ObjectRequest, ObjectStore, Room, StoreError,
    StoreStatus, Warmed,
};
use parking_lot::{Mutex, RwLock};

use self::activity::Activity;
pub use self::address::{CacheSocket, set_cache_sockets};
pub(crate) use self::address::{Listener, Unnamed, dial, limit_receives};
pub(crate) use self::broker::{Admission, Broker, Host, OWN};
use self::client::{Client, Owner, SILENCE};
pub(crate) use self::quota::{Bounds, Quota};
use self::received::{Pending, Received};
pub(crate) use self::wire::{CacheTask, Receiver, ToWriter, VERSION, send};
pub use self::writer::{BrokerAddress, OpenWriter, Opener, Writer};

/// Time limit of the first attempt while the lock is taken and its holder doesn't reply: another node that mounts the
/// same network directory, or a writer that is stuck.
const FIRST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of writers that a request may outlive. A request that outlives more may be what kills them.
const ATTEMPTS_MAX: u32 = 8;
/// Maximum number of descriptors that a client keeps open.
const RECEIVED_MAX: usize = 4096;

/// Process that provides the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectProvider {
    /// This process, which writes the cache.
    Ourselves,
    /// Another process of this user.
    Another,
    /// The broker of the node.
    Broker(PathBuf),
}

enum Role {
    Writer {
        store: Arc<dyn ObjectStore>,
        writer: Arc<dyn Writer>,
        broker: Option<Broker>,
        /// True if it replaces the cache while the disk fails.
        is_spare: bool,
    },
    Client(Arc<Client>),
    /// No writer is known yet; requests queue.
    Electing,
    Closed,
}

enum Event {
    /// The writer is gone; true if it was the broker of the node.
    Lost(bool),
    SlotFree,
    /// It is time to check the broker, the disk and the folder.
    Look,
    Close,
}

/// Objects of one repository, from a cache that several processes share.
pub struct SharedCache {
    cache: PathBuf,
    servers: String,
    open: OpenWriter,
    /// Broker to try before the private cache.
    broker: Option<BrokerAddress>,
    /// Reason why the broker isn't used.
    refusal: Mutex<Option<String>>,
    role: RwLock<Role>,
    /// Requests that wait for the election. Locked before `role` where both are.
    queue: Mutex<VecDeque<Pending>>,
    received: Arc<Received>,
    holders: Arc<Holders>,
    pace: Pace,
    activity: Activity,
    events: Sender<Event>,
    me: Weak<SharedCache>,
    service: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Timeouts for other processes, and intervals of checks.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// Time without a message from a writer with pending requests.
    pub(crate) silence: Duration,
    /// Minimum time between two checks whether the broker is back, or the folder gone.
    pub(crate) look: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { silence: SILENCE, look: Duration::from_secs(5) }
    }
}

/// Holders of open objects in this process.
#[derive(Default)]
struct Holders(Mutex<Vec<Weak<dyn Holder>>>);

impl SharedCache {
    /// Connects to the writer of `cache`, or becomes the writer if there is none.
    pub fn open(cache: &Path, servers: &str, open: OpenWriter) -> Result<Arc<Self>, StoreError> {
        Self::open_with(cache, servers, open, None, Pace::default())
    }

    /// Like [`SharedCache::open`], but through the broker of the node while it runs and serves this repository.
    /// Changes are logged.
    pub fn open_through(
        cache: &Path,
        servers: &str,
        open: OpenWriter,
        broker: Option<BrokerAddress>,
    ) -> Result<Arc<Self>, StoreError> {
        Self::open_with(cache, servers, open, broker, Pace::default())
    }

    pub(crate) fn open_with(
        cache: &Path,
        servers: &str,
        open: OpenWriter,
        broker: Option<BrokerAddress>,
        pace: Pace,
    ) -> Result<Arc<Self>, StoreError> {
        let (events, inbox) = channel();
        let wake = events.clone();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit / 4).unwrap_or(RECEIVED_MAX).min(RECEIVED_MAX);
        let shared = Arc::new_cyclic(|me| Self {
            cache: cache.to_owned(),
            servers: servers.to_owned(),
            open,
            broker,
            refusal: Mutex::default(),
            role: RwLock::new(Role::Electing),
            queue: Mutex::default(),
            // A closed service has nothing to wake for.
            received: Received::new(limit, move || drop(wake.send(Event::SlotFree))),
            holders: Arc::default(),
            pace,
            activity: Activity::new(pace.look),
            events,
            me: me.clone(),
            service: Mutex::default(),
        });
        let role = match shared.join_broker(Duration::ZERO, &inbox) {
            Some(role) => role,
            None => shared.elect(Some(Instant::now() + FIRST_TIMEOUT), &inbox)?,
        };
        shared.take_role(role);
        let weak = shared.me.clone();
        let service = esker_threads::spawn("cache-share", move || service::run(&weak, &inbox));
        match service {
            Ok(service) => {
                *shared.service.lock() = Some(service);
                Ok(shared)
            }
            Err(source) => {
                shared.close();
                Err(disk("starting a thread for", cache, source))
            }
        }
    }

    /// Closes the cache. A writer shuts down cleanly, and another process becomes the writer. Pending and later
    /// requests fail.
    pub fn close(&self) {
        let (role, unanswered) = {
            let mut queue = self.queue.lock();
            (std::mem::replace(&mut *self.role.write(), Role::Closed), std::mem::take(&mut *queue))
        };
        // Dropping a request completes it with an error, which needs the locks to be free.
        drop(unanswered);
        drop(self.received.unpark_all());
        leave(role);
        // The service may have ended, or never begun. An election that is under way ends before we do,
        // because it may have the lock of the cache.
        let _ = self.events.send(Event::Close);
        let service = self.service.lock().take();
        if let Some(service) = service.filter(|service| service.thread().id() != thread::current().id()) {
            let _ = service.join();
        }
    }

    /// Returns true if this process is the writer.
    pub fn is_writer(&self) -> bool {
        matches!(&*self.role.read(), Role::Writer { .. })
    }

    /// Has the service check the broker, the disk and the folder, if the last check is long ago. A cache without
    /// requests needs no check, so a resting process has no timer for it.
    fn note_use(&self) {
        if self.activity.is_due() {
            // The service of a closed cache has ended.
            let _ = self.events.send(Event::Look);
        }
    }

    /// Returns the source of objects; `None` during an election.
    pub fn through(&self) -> Option<ObjectProvider> {
        self.note_use();
        match &*self.role.read() {
            Role::Writer { .. } => Some(ObjectProvider::Ourselves),
            Role::Client(client) => Some(match client.broker() {
                Some(socket) => ObjectProvider::Broker(socket.to_owned()),
                None => ObjectProvider::Another,
            }),
            Role::Electing | Role::Closed => None,
        }
    }

    /// Returns the reason of the node's broker, if it refused.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().clone()
    }

    /// Returns the cache folder of this user, where heads are saved even if objects come through a broker.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Returns the store of the cache that this process writes. It must not be used with the role locked: its disk may
    /// hang.
    fn own_store(&self) -> Option<Arc<dyn ObjectStore>> {
        match &*self.role.read() {
            Role::Writer { store, .. } => Some(store.clone()),
            _ => None,
        }
    }

    /// Returns a file that is still open, if it has the size of this request.
    fn kept(&self, wanted: &ObjectRequest) -> Option<Handle> {
        // The writer compares a catalog whenever it is opened.
        if wanted.name.kind == ObjectKind::Catalog {
            return None;
        }
        let handle = self.received.find(&wanted.key())?;
        (wanted.size.is_none_or(|size| size == handle.len()) && handle.len() <= wanted.limit)
            .then_some(handle)
    }

    fn submit(&self, mut pending: Pending) {
        self.note_use();
        loop {
            let role = self.role.read();
            match &*role {
                Role::Writer { store, .. } => {
                    let store = store.clone();
                    drop(role);
                    return store.get(pending.wanted.clone(), self.or_elsewhere(pending));
                }
                Role::Client(client) => {
                    let client = client.clone();
                    drop(role);
                    match client.get(pending) {
                        Ok(()) => return,
                        Err(back) => pending = back,
                    }
                    // The writer is gone; the thread that noticed it decides on the next step.
                    self.lost(Vec::new());
                }
                Role::Closed => return,
                Role::Electing => {
                    drop(role);
                    let mut queue = self.queue.lock();
                    if matches!(&*self.role.read(), Role::Electing) {
                        queue.push_back(pending);
                        return;
                    }
                }
            }
        }
    }

    /// Handles the reply of a request; one whose cache was closed is repeated in the next role.
    fn or_elsewhere(&self, mut pending: Pending) -> Callback<Handle> {
        let me = self.me.clone();
        Callback::new(move |outcome| {
            let is_closed = matches!(&outcome, Err(error) if matches!(error.cause(), Cause::Closed));
            pending.attempts += 1;
            match me.upgrade().filter(|_| is_closed && pending.attempts < ATTEMPTS_MAX) {
                Some(shared) => shared.submit(pending),
                None => pending.done.give(outcome),
            }
        })
    }

    /// Takes the role that an election found, and sends all waiting requests.
    fn take_role(&self, role: Role) {
        let waiting = {
            let mut queue = self.queue.lock();
            let mut mine = self.role.write();
            if matches!(&*mine, Role::Closed) {
                drop(mine);
                drop(queue);
                return leave(role);
            }
            *mine = role;
            std::mem::take(&mut *queue)
        };
        for pending in waiting {
            self.submit(pending);
        }
    }
}

fn leave(role: Role) {
    match role {
        Role::Writer { store, writer, broker, .. } => {
            drop(broker);
            drop(store);
            writer.close();
        }
        Role::Client(client) => client.close(),
        Role::Electing | Role::Closed => {}
    }
}

fn disk(doing: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::new("the cache", Cause::Disk { doing, path: path.to_owned(), source })
}

impl Owner for SharedCache {
    fn lost(&self, unanswered: Vec<Pending>) {
        let mut queue = self.queue.lock();
        {
            let mut role = self.role.write();
            match &*role {
                Role::Client(client) if client.is_lost() => {
                    let was_broker = client.broker().is_some();
                    *role = Role::Electing;
                    // A closed service means that we are being closed.
                    let _ = self.events.send(Event::Lost(was_broker));
                }
                Role::Closed => return,
                _ => {}
            }
        }
        for mut pending in unanswered.into_iter().rev() {
            pending.attempts += 1;
            if pending.attempts < ATTEMPTS_MAX {
                queue.push_front(pending);
            } else {
                let error = StoreError::new(pending.wanted.label(), Cause::Closed);
                drop(queue);
                pending.done.err(error);
                queue = self.queue.lock();
            }
        }
        // The election may be over by now.
        if !matches!(&*self.role.read(), Role::Electing) {
            let waiting = std::mem::take(&mut *queue);
            drop(queue);
            waiting.into_iter().for_each(|pending| self.submit(pending));
        }
    }

    fn holder(&self) -> Arc<dyn Holder> {
        self.holders.clone()
    }
}

impl ObjectStore for SharedCache {
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>) {
        match self.kept(&wanted) {
            Some(handle) => done.ok(handle),
            None => self.submit(Pending { wanted, done, attempts: 0 }),
        }
    }

    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        self.own_store().is_some_and(|store| store.read_ahead(wanted, range))
    }

    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>) {
        self.note_use();
        let role = self.role.read();
        match &*role {
            Role::Writer { store, .. } => {
                let store = store.clone();
                drop(role);
                store.warm(wanted, token, done);
            }
            Role::Client(client) => {
                let client = client.clone();
                drop(role);
                if self.kept(&wanted).is_some() {
                    return done.ok(Warmed::Here);
                }
                client.warm(&wanted, token, done);
            }
            // A prefetch has no reader, so it need not wait for a writer.
            Role::Electing | Role::Closed => {
                drop(role);
                done.err(StoreError::new(wanted.label(), Cause::Closed));
            }
        }
    }

    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        match self.own_store() {
            Some(store) => store.cached(wanted),
            None => self.kept(wanted),
        }
    }

    fn holds(&self, wanted: &ObjectRequest) -> bool {
        self.own_store().is_some_and(|store| store.holds(wanted))
    }

    fn recheck(&self, wanted: &ObjectRequest) {
        self.received.forget(&[wanted.key()]);
        let client = match &*self.role.read() {
            Role::Client(client) => Some(client.clone()),
            _ => None,
        };
        if let Some(client) = client {
            client.unreadable(wanted);
        } else if let Some(store) = self.own_store() {
            store.recheck(wanted);
        }
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.holders.0.lock().push(holder);
    }

    fn room(&self) -> Room {
        if let Some(store) = self.own_store() {
            return store.room();
        }
        match &*self.role.read() {
            Role::Client(client) => client.last_status().map_or_else(Room::default, |status| Room {
                quota: status.cache.quota,
                used: status.cache.used,
            }),
            Role::Writer { .. } | Role::Electing | Role::Closed => Room::default(),
        }
    }

    fn round_trip(&self) -> Option<Duration> {
        match self.own_store() {
            Some(store) => store.round_trip(),
            None => self.known_status().network.round_trip(),
        }
    }

    fn status(&self) -> StoreStatus {
        self.note_use();
        if let Some(store) = self.own_store() {
            return store.status();
        }
        let client = match &*self.role.read() {
            Role::Client(client) => client.clone(),
            Role::Writer { .. } | Role::Electing | Role::Closed => return StoreStatus::default(),
        };
        client.status().unwrap_or_default()
    }
}

impl SharedCache {
    /// Returns the store's status as this process knows it, without waiting for another process.
    pub fn known_status(&self) -> StoreStatus {
        if let Some(store) = self.own_store() {
            return store.status();
        }
        match &*self.role.read() {
            Role::Client(client) => client.last_status().unwrap_or_default(),
            Role::Writer { .. } | Role::Electing | Role::Closed => StoreStatus::default(),
        }
    }
}

impl Holder for Holders {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        let holders: Vec<Arc<dyn Holder>> = {
            let mut all = self.0.lock();
            all.retain(|holder| holder.strong_count() > 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let mut held = vec![false; victims.len()];
        for holder in holders {
            for (held, by_this) in held.iter_mut().zip(holder.release(victims)) {
                *held |= by_this;
            }
        }
        held
    }
}

impl Drop for SharedCache {
    fn drop(&mut self) {
        self.close();
    }
}
