//! The writer's side: serves the other mounts that share its cache.
//!
//! Each client costs two threads. An answer that a client has not taken yet holds an open file; a client that
//! takes none for a while is hung up on (and comes back when it runs again).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use esker_store::{Done, Errand, Handle, Holder, ObjectStore, StoreError, StoreStatus, Warmed};
use parking_lot::Mutex;

use super::Writer;
use super::address::{self, Listener};
use super::release::RemoteHolder;
use super::wire::{
    ErrorMessage, Receiver, StatusMessage, ToClient, ToWriter, VERSION, WARMING_MAX, WantedMessage,
    keys_to_text, send,
};
use crate::care;

/// Requests that one client may have under way: far more than a kernel has reads waiting. A client that
/// asks for more is broken and hung up on.
const UNDER_WAY_MAX: usize = 1 << 16;
/// How long a client may take no answer before it is hung up on.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// A writer's clients.
pub(crate) struct Broker {
    listener: Arc<Listener>,
    clients: Arc<Clients>,
    acceptor: Option<JoinHandle<()>>,
}

/// The sockets of all clients, to hang up on them.
#[derive(Default)]
struct Clients(Mutex<Vec<Weak<OwnedFd>>>);

/// What goes out to a client.
enum Out {
    Object { id: u64, handle: Handle },
    Message(ToClient),
}

impl Broker {
    /// Starts to listen in the cache directory, whose lock `writer` holds.
    pub(crate) fn start(cache: &Path, writer: Arc<dyn Writer>) -> io::Result<Self> {
        let listener = Arc::new(Listener::bind(cache)?);
        let clients = Arc::<Clients>::default();
        let (ours, theirs) = (listener.clone(), clients.clone());
        let acceptor = thread::Builder::new().name("cache-accept".into()).spawn(move || {
            while let Ok(socket) = ours.accept() {
                // No thread or descriptor for it: it hangs up and tries again.
                let _ = theirs.serve(socket, writer.clone());
            }
        })?;
        Ok(Self { listener, clients, acceptor: Some(acceptor) })
    }
}

impl Drop for Broker {
    /// Hangs up on everybody; the clients look for another writer.
    fn drop(&mut self) {
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
    fn serve(&self, socket: OwnedFd, writer: Arc<dyn Writer>) -> io::Result<()> {
        address::limit_sends(&socket, SEND_PATIENCE)?;
        let receiver = Receiver::new(socket.try_clone()?);
        let socket = Arc::new(socket);
        {
            let mut all = self.0.lock();
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(&socket));
        }
        thread::Builder::new().name("cache-client".into()).spawn(move || {
            // A client that says nonsense or goes away is simply done with.
            let _ = converse(&socket, receiver, &*writer);
        })?;
        Ok(())
    }
}

/// Serves one client until it goes away.
fn converse(socket: &Arc<OwnedFd>, mut receiver: Receiver, writer: &dyn Writer) -> io::Result<()> {
    let Some(store) = greet(socket, &mut receiver, writer)? else { return Ok(()) };
    let (outbox, inbox) = channel();
    let out = socket.clone();
    let under_way = Arc::<AtomicUsize>::default();
    let theirs = under_way.clone();
    thread::Builder::new().name("cache-answer".into()).spawn(move || answer_all(&out, &inbox, &theirs))?;
    let questions = outbox.clone();
    let holder = Arc::new(RemoteHolder::new(move |id, keys| {
        questions.send(Out::Message(ToClient::Release { id, keys: keys_to_text(keys) })).is_ok()
    }));
    let as_holder: Arc<dyn Holder> = holder.clone();
    store.add_holder(Arc::downgrade(&as_holder));
    let result = hear_all(&mut receiver, &*store, &holder, &outbox, &under_way);
    holder.gone();
    let _ = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Both);
    result
}

/// The repository that the client wants; `None` if it can't be served and was told so.
fn greet(
    socket: &OwnedFd,
    receiver: &mut Receiver,
    writer: &dyn Writer,
) -> io::Result<Option<Arc<dyn ObjectStore>>> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let (version, servers) = match receiver.next()?.0 {
        ToWriter::Hello { version, servers } => (version, servers),
        ToWriter::Care { version: VERSION, task } => {
            let cache = writer.cache().ok_or_else(nonsense)?;
            return care::serve(receiver, &cache, task).map(|()| None);
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
        let cause = esker_store::Cause::Remote { blame: esker_store::Blame::Caller, may_pass: false, text };
        refuse(&StoreError::new("the repository", cause))?;
        return Ok(None);
    }
    match writer.store(&servers) {
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

/// What one client says.
struct Hearing<'a> {
    store: &'a dyn ObjectStore,
    outbox: &'a Sender<Out>,
    under_way: &'a AtomicUsize,
    /// The client's errands that are not over, by its own numbers.
    errands: HashMap<u64, Errand>,
}

fn hear_all(
    receiver: &mut Receiver,
    store: &dyn ObjectStore,
    holder: &RemoteHolder,
    outbox: &Sender<Out>,
    under_way: &AtomicUsize,
) -> io::Result<()> {
    let mut hearing = Hearing { store, outbox, under_way, errands: HashMap::new() };
    loop {
        match receiver.next()?.0 {
            ToWriter::Get { id, object } => hearing.get(id, object)?,
            ToWriter::Warm { id, errand, object } => hearing.warm(id, errand, object)?,
            ToWriter::Over { errand } => {
                if let Some(errand) = hearing.errands.remove(&errand) {
                    errand.end();
                }
            }
            ToWriter::Released { id, held } => holder.answer(id, held),
            ToWriter::Status { id } => {
                let status = Box::new(StatusMessage::new(&store.status()));
                let _ = outbox.send(Out::Message(ToClient::Status { id, status }));
            }
            ToWriter::Hello { .. } | ToWriter::Care { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Hearing<'_> {
    fn begin(&self) -> io::Result<()> {
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= UNDER_WAY_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }

    fn get(&self, id: u64, object: WantedMessage) -> io::Result<()> {
        let wanted = object.read().ok_or(io::ErrorKind::InvalidData)?;
        self.begin()?;
        let outbox = self.outbox.clone();
        let answer = Done::new(move |outcome: Result<Handle, StoreError>| {
            let out = match outcome {
                Ok(handle) => Out::Object { id, handle },
                Err(error) => Out::Message(ToClient::Failed { id, error: ErrorMessage::new(&error) }),
            };
            // The client may be gone by now.
            let _ = outbox.send(out);
        });
        self.store.get(wanted, answer);
        Ok(())
    }

    fn warm(&mut self, id: u64, errand: u64, object: WantedMessage) -> io::Result<()> {
        let wanted = object.read().ok_or(io::ErrorKind::InvalidData)?;
        self.begin()?;
        // A client never has more errands open than prefetches.
        if self.errands.len() >= WARMING_MAX && !self.errands.contains_key(&errand) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let errand = self.errands.entry(errand).or_default();
        let outbox = self.outbox.clone();
        let answer = Done::new(move |outcome: Result<Warmed, StoreError>| {
            let message = match outcome {
                Ok(Warmed::Here) => ToClient::Warmed { id, fetched_bytes: None },
                Ok(Warmed::Fetched(bytes)) => ToClient::Warmed { id, fetched_bytes: Some(bytes) },
                Err(error) => ToClient::Failed { id, error: ErrorMessage::new(&error) },
            };
            let _ = outbox.send(Out::Message(message));
        });
        self.store.warm(wanted, errand, answer);
        Ok(())
    }
}

impl Drop for Hearing<'_> {
    /// Nobody needs what a client that is gone wanted prefetched.
    fn drop(&mut self) {
        self.errands.values().for_each(Errand::end);
    }
}

/// Sends what is to be sent; after a failure only takes it, so that the files are closed.
fn answer_all(socket: &OwnedFd, inbox: &Inbox<Out>, under_way: &AtomicUsize) {
    let mut connected = true;
    while let Ok(out) = inbox.recv() {
        let answers = matches!(
            &out,
            Out::Object { .. } | Out::Message(ToClient::Failed { .. } | ToClient::Warmed { .. })
        );
        if connected {
            let sent = match &out {
                Out::Object { id, handle } => {
                    let file = handle.file();
                    let message = ToClient::Object { id: *id, len: handle.len() };
                    send(socket.as_fd(), &message, Some(file.as_fd()))
                }
                Out::Message(message) => send(socket.as_fd(), message, None),
            };
            if sent.is_err() {
                connected = false;
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        drop(out);
        if answers {
            under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl StatusMessage {
    pub(super) fn new(status: &StoreStatus) -> Self {
        let cache = &status.cache;
        Self {
            quota: cache.quota,
            hard_limit: cache.hard_limit,
            used: cache.used,
            objects: cache.objects,
            evicted: cache.evicted,
            over_quota: cache.over_quota,
            unkept: cache.unkept,
            disk_errors: cache.disk_errors,
            damaged: cache.damaged,
            unchecked: cache.unchecked,
            opened_unclean: cache.opened_unclean,
            traffic: status.traffic.clone(),
            network: status.network.clone(),
            route: (&status.network.route).into(),
            work: status.work.clone(),
        }
    }
}
