//! The writer's side: serves the other mounts that share its cache.
//!
//! Each client costs two threads. An answer that a client has not taken yet holds an open file; a client that
//! takes none for a while is hung up on (and comes back when it runs again).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use esker_store::{Done, Handle, Holder, ObjectStore, StoreError, StoreStatus};
use parking_lot::Mutex;

use super::Writer;
use super::address::{self, Listener};
use super::release::RemoteHolder;
use super::wire::{ErrorMessage, Receiver, StatusMessage, ToClient, ToWriter, VERSION, keys_to_text, send};

/// Requests that one client may have under way: far more than a kernel has reads waiting. A client that
/// asks for more is broken and hung up on.
const UNDER_WAY_MAX: usize = 1 << 16;
/// How long a client may take no answer before it is hung up on.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// A writer's clients.
pub(super) struct Broker {
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
    pub(super) fn start(cache: &Path, writer: Arc<dyn Writer>) -> io::Result<Self> {
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
    let (ToWriter::Hello { version, url }, _) = receiver.next()? else { return Err(nonsense()) };
    let refuse = |error: &StoreError| {
        let error = ErrorMessage::new(error);
        send(socket.as_fd(), &ToClient::Failed { id: 0, error }, None)
    };
    if version != VERSION {
        let text = format!(
            "the cache is in use by another build of this program, which can't share it (protocol {VERSION}, not {version})"
        );
        let cause = esker_store::Cause::Remote { blame: esker_store::Blame::Caller, may_pass: false, text };
        refuse(&StoreError::new(url, cause))?;
        return Ok(None);
    }
    match writer.store(&url) {
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

fn hear_all(
    receiver: &mut Receiver,
    store: &dyn ObjectStore,
    holder: &RemoteHolder,
    outbox: &Sender<Out>,
    under_way: &AtomicUsize,
) -> io::Result<()> {
    loop {
        match receiver.next()?.0 {
            ToWriter::Get { id, object } => {
                let wanted = object.read().ok_or(io::ErrorKind::InvalidData)?;
                if under_way.fetch_add(1, Ordering::Relaxed) >= UNDER_WAY_MAX {
                    return Err(io::ErrorKind::QuotaExceeded.into());
                }
                let outbox = outbox.clone();
                store.get(
                    wanted,
                    Done::new(move |outcome: Result<Handle, StoreError>| {
                        let out = match outcome {
                            Ok(handle) => Out::Object { id, handle },
                            Err(error) => {
                                Out::Message(ToClient::Failed { id, error: ErrorMessage::new(&error) })
                            }
                        };
                        // The client may be gone by now.
                        let _ = outbox.send(out);
                    }),
                );
            }
            ToWriter::Released { id, held } => holder.answer(id, held),
            ToWriter::Status { id } => {
                let status = Box::new(StatusMessage::new(&store.status()));
                let _ = outbox.send(Out::Message(ToClient::Status { id, status }));
            }
            ToWriter::Hello { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Sends what is to be sent; after a failure only takes it, so that the files are closed.
fn answer_all(socket: &OwnedFd, inbox: &Inbox<Out>, under_way: &AtomicUsize) {
    let mut connected = true;
    while let Ok(out) = inbox.recv() {
        let answers = matches!(&out, Out::Object { .. } | Out::Message(ToClient::Failed { .. }));
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
            fetched: status.traffic.fetched,
            fetched_bytes: status.traffic.fetched_bytes,
        }
    }
}
