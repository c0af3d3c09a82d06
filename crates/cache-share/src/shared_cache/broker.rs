//! Server side of cache sharing: the writer serves the other processes that share its cache.
//!
//! Each client costs two threads, and a third if its requests wait for a quota slot. A reply that a client has not
//! read yet holds an open file; a client that reads none for a while is disconnected (and reconnects when it runs
//! again). The [`Host`] decides on clients, their repositories, and their quotas.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_store::{Cache, Callback, CancelToken, Cause, Handle, Holder, ObjectStore, StoreError, Warmed};
use parking_lot::{Condvar, Mutex};

use super::address::{self, Listener};
use super::admin;
use super::progress::{ProgressedRequests, Requests};
use super::quota::{Bounds, Connection, Quota, QuotaSlot, Warming};
use super::release::RemoteHolder;
use super::requests::ClientRequests;
use super::wire::{ErrorMessage, Receiver, ToClient, ToWriter, VERSION, WARMING_MAX, WantedMessage, send};
use super::writer::Writer;
use crate::peer::Peer;

/// Limits for clients of the writer's own user, and root's: far more than the waiting reads of a kernel.
pub(crate) const OWN: Bounds =
    Bounds { connections: 4096, questions: 1 << 16, answers: 1 << 16, warms: 1 << 16 };
/// Time without reading a reply after which a client is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for sending to a client of another user.
const STRANGER_SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of unread bytes of another user's client. They are some hundred replies, each with a descriptor;
/// the system limits a user's descriptors in flight.
const STRANGER_UNREAD: usize = 64 * 1024;
/// Maximum number of unread bytes for a client of another user.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted, because descriptors or memory are short.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Interval of progress messages to a client.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Access control for clients.
pub(crate) trait Host: Send + Sync {
    /// Returns the quota of a client of this user; `None` if it is not served.
    fn admit(&self, peer: &Peer) -> Option<Admission>;

    /// Returns the objects of the repository at these servers, if this user may read it.
    fn store(&self, peer: &Peer, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError>;

    /// Returns the cache, if this user may administer it.
    fn cache(&self, peer: &Peer) -> Option<Cache>;
}

/// A client that the writer admitted.
pub(crate) struct Admission {
    pub(crate) quota: Arc<Quota>,
    pub(crate) _connection: Connection,
    /// True if the client belongs to an untrusted user.
    pub(crate) is_stranger: bool,
}

/// Server of the writer of a cache for other processes of its user, and root's.
struct OwnerHost {
    writer: Arc<dyn Writer>,
    quota: Arc<Quota>,
}

impl Host for OwnerHost {
    fn admit(&self, peer: &Peer) -> Option<Admission> {
        let connection = peer.is_trusted().then(|| self.quota.connect()).flatten()?;
        Some(Admission { quota: self.quota.clone(), _connection: connection, is_stranger: false })
    }

    fn store(&self, _: &Peer, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        self.writer.store(servers)
    }

    fn cache(&self, _: &Peer) -> Option<Cache> {
        self.writer.cache()
    }
}

/// Serves the clients of a cache's writer.
pub(crate) struct Broker {
    listener: Arc<Listener>,
    clients: Arc<Clients>,
    stopping: Arc<Stopping>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stopping {
    is_so: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// Sockets of all clients, by which the writer disconnects them.
#[derive(Default)]
struct Clients(Mutex<Vec<Weak<OwnedFd>>>);

/// Outgoing message to a client.
pub(super) struct OutgoingMessage {
    /// Message to send; with none the sender checks its state.
    message: Option<ToClient>,
    /// Object to send with the message.
    handle: Option<Handle>,
    /// Quota slot that is freed when the message is sent.
    _turn: Option<QuotaSlot>,
    _warming: Option<Warming>,
}

impl From<ToClient> for OutgoingMessage {
    fn from(message: ToClient) -> Self {
        Self { message: Some(message), handle: None, _turn: None, _warming: None }
    }
}

impl OutgoingMessage {
    /// Creates a reply that frees a quota slot when it is sent.
    pub(super) fn answer(message: ToClient, handle: Option<Handle>, turn: QuotaSlot) -> Self {
        Self { message: Some(message), handle, _turn: Some(turn), _warming: None }
    }

    /// Makes an empty message, so that the sender checks the requests.
    pub(super) fn wake() -> Self {
        Self { message: None, handle: None, _turn: None, _warming: None }
    }
}

impl Broker {
    /// Starts listening in the cache folder, whose lock `writer` holds.
    pub(crate) fn start(cache: &Path, writer: Arc<dyn Writer>) -> io::Result<Self> {
        Self::start_on(Listener::bind(cache)?, writer)
    }

    /// Serves this user at a socket in the cache folder, whose lock `writer` holds.
    pub(crate) fn start_on(listener: Listener, writer: Arc<dyn Writer>) -> io::Result<Self> {
        Self::serve(listener, Arc::new(OwnerHost { writer, quota: Quota::new(OWN) }))
    }

    /// Serves all clients that the host admits.
    pub(crate) fn serve(listener: Listener, host: Arc<dyn Host>) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let (clients, stopping) = (Arc::<Clients>::default(), Arc::<Stopping>::default());
        let (ours, theirs, stop) = (listener.clone(), clients.clone(), stopping.clone());
        let acceptor = esker_threads::spawn("cache-accept", move || {
            while !stop.is_so.load(Ordering::SeqCst) {
                match ours.accept() {
                    // No thread or descriptor for it: it hangs up and tries again.
                    Ok((socket, peer)) => drop(theirs.serve(socket, peer, host.clone())),
                    Err(_) => stop.pause(ACCEPT_AGAIN),
                }
            }
        })?;
        Ok(Self { listener, clients, stopping, acceptor: Some(acceptor) })
    }
}

impl Stopping {
    fn stop(&self) {
        let _lock = self.lock.lock();
        self.is_so.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn pause(&self, time: Duration) {
        let mut lock = self.lock.lock();
        if !self.is_so.load(Ordering::SeqCst) {
            self.changed.wait_for(&mut lock, time);
        }
    }
}

impl Drop for Broker {
    /// Disconnects all clients, which then search for another writer.
    fn drop(&mut self) {
        self.stopping.stop();
        self.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // It only fails by a panic, which has been reported.
            let _ = acceptor.join();
        }
        for socket in self.clients.0.lock().drain(..).filter_map(|socket| socket.upgrade()) {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }
}

impl Clients {
    fn serve(&self, socket: OwnedFd, peer: Peer, host: Arc<dyn Host>) -> io::Result<()> {
        let Some(admission) = host.admit(&peer) else { return Ok(()) };
        if admission.is_stranger {
            address::limit_sends(&socket, STRANGER_SEND_TIMEOUT)?;
            address::limit_unread(&socket, STRANGER_UNREAD)?;
        } else {
            address::limit_sends(&socket, SEND_TIMEOUT)?;
        }
        address::limit_receives(&socket, Some(GREETING_TIMEOUT))?;
        let receiver = Receiver::new(socket.try_clone()?);
        let socket = Arc::new(socket);
        {
            let mut all = self.0.lock();
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(&socket));
        }
        esker_threads::spawn("cache-client", move || {
            // A client that says nonsense or goes away is simply done with.
            let _ = converse(&socket, receiver, &*host, &peer, &admission);
        })?;
        Ok(())
    }
}

/// Serves one client until it disconnects.
fn converse(
    socket: &Arc<OwnedFd>,
    mut receiver: Receiver,
    host: &dyn Host,
    peer: &Peer,
    admission: &Admission,
) -> io::Result<()> {
    let Some(store) = greet(socket, &mut receiver, host, peer)? else { return Ok(()) };
    address::limit_receives(socket, None)?;
    let (outbox, inbox) = channel();
    let (out, requests) = (socket.clone(), Arc::<Requests>::default());
    let open = requests.clone();
    esker_threads::spawn("cache-answer", move || answer_all(&out, &inbox, &open))?;
    let questions = outbox.clone();
    let ask =
        move |id, keys: &[_]| questions.send(ToClient::Release { id, keys: keys.to_vec() }.into()).is_ok();
    let holder = Arc::new(match admission.is_stranger {
        true => RemoteHolder::of_stranger(ask),
        false => RemoteHolder::new(ask),
    });
    let as_holder: Arc<dyn Holder> = holder.clone();
    store.add_holder(Arc::downgrade(&as_holder));
    let result = hear_all(&mut receiver, (store, requests), &holder, &outbox, (peer, &admission.quota));
    holder.gone();
    let _ = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Both);
    result
}

/// Returns the repository that the client requests; `None` if it was refused or had another request.
fn greet(
    socket: &OwnedFd,
    receiver: &mut Receiver,
    host: &dyn Host,
    peer: &Peer,
) -> io::Result<Option<Arc<dyn ObjectStore>>> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let (version, servers) = match receiver.next()?.0 {
        ToWriter::Hello { version, servers } => (version, servers),
        ToWriter::Care { version: VERSION, task } => {
            let cache = host.cache(peer).ok_or_else(nonsense)?;
            return admin::serve(receiver, &cache, task).map(|()| None);
        }
        _ => return Err(nonsense()),
    };
    let refuse = |error: &StoreError| {
        let error = ErrorMessage::new(error);
        send(socket.as_fd(), &ToClient::Failed { id: 0, error }, None)
    };
    if version != VERSION {
        let text = format!(
            "the cache is in use by another build of this program, which can't share it (protocol {VERSION}, not {version})"
        );
        let cause = Cause::Remote { blame: esker_store::Blame::Caller, may_pass: false, text };
        refuse(&StoreError::new("the repository", cause))?;
        return Ok(None);
    }
    match host.store(peer, &servers) {
        Ok(store) => {
            send(socket.as_fd(), &ToClient::Welcome, None)?;
            Ok(Some(store))
        }
        Err(error) => {
            refuse(&error)?;
            Ok(None)
        }
    }
}

/// Receiver of the messages of one client.
struct Hearing<'a> {
    store: Arc<dyn ObjectStore>,
    questions: ClientRequests,
    outbox: &'a Sender<OutgoingMessage>,
    quota: &'a Arc<Quota>,
    /// Open cancel tokens of the client, by the client's numbers.
    tokens: HashMap<u64, CancelToken>,
}

fn hear_all(
    receiver: &mut Receiver,
    (store, requests): (Arc<dyn ObjectStore>, Arc<Requests>),
    holder: &RemoteHolder,
    outbox: &Sender<OutgoingMessage>,
    (peer, quota): (&Peer, &Arc<Quota>),
) -> io::Result<()> {
    let questions = ClientRequests::new(store.clone(), quota.clone(), outbox.clone(), requests);
    let mut hearing = Hearing { store, questions, outbox, quota, tokens: HashMap::new() };
    loop {
        match receiver.next()?.0 {
            ToWriter::Get { id, user, object } => {
                let mut wanted = object.read().ok_or(io::ErrorKind::InvalidData)?;
                // Others could take every user's share of a server.
                wanted.requester.user = if peer.is_trusted() { user } else { Some(peer.uid) };
                hearing.questions.get(id, wanted);
            }
            ToWriter::Warm { id, token, object } => hearing.warm(id, token, object)?,
            ToWriter::Over { token } => {
                if let Some(token) = hearing.tokens.remove(&token) {
                    token.cancel();
                }
            }
            ToWriter::Doubt { object } => {
                hearing.store.recheck(&object.read().ok_or(io::ErrorKind::InvalidData)?);
            }
            ToWriter::Released { id, held } => holder.answer(id, held),
            ToWriter::Status { id } => hearing.status(id),
            ToWriter::Hello { .. } | ToWriter::Care { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Hearing<'_> {
    /// Sends an immediate reply. The client may be gone by now.
    fn answer(&self, message: ToClient) {
        let _ = self.outbox.send(OutgoingMessage::answer(message, None, self.quota.answer()));
    }

    fn status(&self, id: u64) {
        let status = Box::new(self.store.status());
        self.answer(ToClient::Status { id, status });
    }

    fn warm(&mut self, id: u64, token: u64, object: WantedMessage) -> io::Result<()> {
        let wanted = object.read().ok_or(io::ErrorKind::InvalidData)?;
        // A client never has more open tokens than prefetches.
        if self.tokens.len() >= WARMING_MAX && !self.tokens.contains_key(&token) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let Some(warming) = self.quota.warm() else {
            let cause = Cause::QueueFull { limit: self.quota.warms_max() };
            let error = ErrorMessage::new(&StoreError::new(wanted.label(), cause));
            self.answer(ToClient::Failed { id, error });
            return Ok(());
        };
        let token = self.tokens.entry(token).or_default();
        let outbox = self.outbox.clone();
        let answer = Callback::new(move |outcome: Result<Warmed, StoreError>| {
            let message = match outcome {
                Ok(Warmed::Here) => ToClient::Warmed { id, fetched_bytes: None },
                Ok(Warmed::Fetched(bytes)) => ToClient::Warmed { id, fetched_bytes: Some(bytes) },
                Err(error) => ToClient::Failed { id, error: ErrorMessage::new(&error) },
            };
            let _ = outbox.send(OutgoingMessage { _warming: Some(warming), ..message.into() });
        });
        self.store.warm(wanted, token, answer);
        Ok(())
    }
}

impl Drop for Hearing<'_> {
    /// Prefetches of a disconnected client are cancelled.
    fn drop(&mut self) {
        self.tokens.values().for_each(CancelToken::cancel);
    }
}

/// Sends queued messages; after a failure it only drains the queue, which closes the files.
fn answer_all(socket: &OwnedFd, inbox: &Inbox<OutgoingMessage>, requests: &Requests) {
    let mut connected = true;
    let mut told = Instant::now();
    loop {
        let out = if requests.is_empty() || !connected {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(PROGRESS_EVERY)
        };
        if connected && told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            for ProgressedRequests { ids, heard } in requests.further() {
                connected =
                    connected && send(socket.as_fd(), &ToClient::Progress { ids, heard }, None).is_ok();
            }
            if !connected {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        let out = match out {
            Ok(out) => out,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(message) = out.message.filter(|_| connected) else { continue };
        let (message, file) = with_own_descriptor(message, out.handle.as_ref());
        if send(socket.as_fd(), &message, file.as_ref().map(|file| file.as_fd())).is_err() {
            connected = false;
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Opens an object for one client alone. A shared open file description would share the effects of each client:
/// flags such as O_DIRECT, locks, the position and advice on reading.
fn with_own_descriptor(message: ToClient, handle: Option<&Handle>) -> (ToClient, Option<OwnedFd>) {
    match (message, handle) {
        (object @ ToClient::Object { id, .. }, Some(handle)) => match handle.reopen() {
            Ok(file) => (object, Some(file)),
            Err(source) => {
                let cause = Cause::Disk { doing: "opening", path: "an object of the cache".into(), source };
                let error = ErrorMessage::new(&StoreError::new("an object", cause));
                (ToClient::Failed { id, error }, None)
            }
        },
        (message, _) => (message, None),
    }
}
