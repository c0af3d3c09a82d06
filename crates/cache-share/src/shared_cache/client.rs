//! A connection to the writer of a cache.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as Inbox, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_store::{
    CacheKey, Callback, CancelToken, Cause, Handle, Holder, ObjectOrigin, ObjectRequest, StoreError,
    StoreStatus, Warmed,
};
use esker_threads::waits::WaitTimes;
use parking_lot::{Condvar, Mutex};

use super::address;
use super::received::{Pending, Received};
use super::wire::{Receiver, ToClient, ToWriter, VERSION, WARMING_MAX, WantedMessage, send, waits};
use super::writer::BrokerAddress;
use crate::peer;

/// Timeout for a new writer's reply to a greeting: it may be checking its index.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that `esker status` waits for the writer's numbers.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Time without a message after which a writer with pending requests is pinged, and time after that until the requests
/// fail. It answers a ping without waiting for anything, so a writer that doesn't is stopped, or worse.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// Socket of a writer.
#[derive(Clone, Copy)]
pub(super) enum WriterSocket<'a> {
    /// The writer of this cache folder.
    Folder(&'a Path),
    /// The broker of the node, at this socket.
    Broker(&'a BrokerAddress),
}

/// Reason of a failed connection.
pub(super) enum Refused {
    /// No process listens, or it is closing: try again.
    Gone,
    /// The writer can't serve this repository.
    Error(StoreError),
}

/// Callbacks of a client to its owner.
pub(super) trait Owner: Send + Sync {
    /// Called when the writer is gone; these requests are unanswered.
    fn lost(&self, unanswered: Vec<Pending>);
    /// Returns the holders of open objects in this process.
    fn holder(&self) -> Arc<dyn Holder>;
}

pub(super) struct Client {
    socket: OwnedFd,
    /// The cache folder, or the broker's socket.
    place: PathBuf,
    is_broker: bool,
    outbox: Sender<ToWriter>,
    received: Arc<Received>,
    state: Mutex<State>,
    status_came: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    pending: HashMap<u64, Pending>,
    warming: HashMap<u64, Warming>,
    /// Cancel tokens whose end has to be sent to the writer.
    tokens: HashSet<u64>,
    /// The latest reply, and the number of the request it answers.
    status: Option<(u64, StoreStatus)>,
    /// True if the writer was pinged and has sent nothing since.
    silent: bool,
    lost: bool,
}

/// A prefetch in progress.
struct Warming {
    label: String,
    done: Callback<Warmed>,
}

impl Client {
    /// Connects to a writer within a timeout, and requests a repository.
    pub(super) fn connect(
        door: WriterSocket<'_>,
        servers: &str,
        received: Arc<Received>,
        owner: Weak<dyn Owner>,
        (patience, silence): (Duration, Duration),
    ) -> Result<Arc<Self>, Refused> {
        let gone = |_: io::Error| Refused::Gone;
        let (place, socket) = match door {
            WriterSocket::Folder(cache) => (cache, address::dial(cache)),
            WriterSocket::Broker(broker) => (broker.socket.as_path(), address::dial_broker(broker)),
        };
        let socket = socket.map_err(gone)?;
        address::limit_receives(&socket, Some(patience)).map_err(gone)?;
        let mut receiver = Receiver::new(socket.try_clone().map_err(gone)?);
        let hello = ToWriter::Hello { version: VERSION, servers: servers.to_owned() };
        send(socket.as_fd(), &hello, None).map_err(gone)?;
        match receiver.next::<ToClient>().map_err(gone)? {
            (ToClient::Welcome, _) => {}
            (ToClient::Failed { error, .. }, _) => {
                return Err(Refused::Error(error.read("the repository".to_owned())));
            }
            _ => return Err(Refused::Gone),
        }
        address::limit_receives(&socket, Some(silence)).map_err(gone)?;
        let (outbox, inbox) = channel();
        let state = Mutex::default();
        let (place, is_broker) = (place.to_owned(), matches!(door, WriterSocket::Broker(_)));
        let client =
            Arc::new(Self { socket, place, is_broker, outbox, received, state, status_came: Condvar::new() });
        // So that a status is known to callers that can't wait.
        client.ask_status(&mut client.state.lock());
        let start = || -> io::Result<()> {
            let out = client.socket.try_clone()?;
            esker_threads::spawn("cache-ask", move || send_all(&out, &inbox))?;
            let me = Arc::clone(&client);
            esker_threads::spawn("cache-hear", move || me.hear(receiver, &owner))?;
            Ok(())
        };
        start().map_err(gone)?;
        Ok(client)
    }

    /// Returns the socket of the broker, if the connection is to one.
    pub(super) fn broker(&self) -> Option<&Path> {
        self.is_broker.then_some(self.place.as_path())
    }

    /// Requests an object; returns the request if the writer is gone.
    pub(super) fn get(&self, pending: Pending) -> Result<(), Pending> {
        let mut state = self.state.lock();
        if state.lost {
            return Err(pending);
        }
        let id = state.take_id();
        let (object, user) = (WantedMessage::new(&pending.wanted), pending.wanted.requester.user);
        state.pending.insert(id, pending);
        // If the sending thread has ended, so will the hearing one, which hands the request back.
        let _ = self.outbox.send(ToWriter::Get { id, user, object });
        Ok(())
    }

    /// Requests that an object be fetched into the cache; refused if the writer is gone.
    pub(super) fn warm(
        self: &Arc<Self>,
        wanted: &ObjectRequest,
        token: &CancelToken,
        done: Callback<Warmed>,
    ) {
        let (label, number) = (wanted.label(), token.number());
        let object = WantedMessage::new(wanted);
        let mut state = self.state.lock();
        let refused = if state.lost {
            Some(Cause::Closed)
        } else if state.warming.len() >= WARMING_MAX {
            Some(Cause::QueueFull { limit: WARMING_MAX })
        } else if token.is_cancelled() {
            Some(Cause::Cancelled)
        } else {
            None
        };
        if let Some(cause) = refused {
            drop(state);
            return done.err(StoreError::new(label, cause));
        }
        let id = state.take_id();
        state.warming.insert(id, Warming { label, done });
        let is_new = state.tokens.insert(number);
        let _ = self.outbox.send(ToWriter::Warm { id, token: number, object });
        drop(state);
        if is_new {
            let me = Arc::downgrade(self);
            token.on_cancel(move || {
                if let Some(client) = me.upgrade() {
                    client.state.lock().tokens.remove(&number);
                    let _ = client.outbox.send(ToWriter::Over { token: number });
                }
            });
        }
    }

    /// Reports to the writer that the file of an object can't be read.
    pub(super) fn unreadable(&self, wanted: &ObjectRequest) {
        let _ = self.outbox.send(ToWriter::Doubt { object: WantedMessage::new(wanted) });
    }

    /// Requests the status from the writer; returns the last known one if no reply arrives in time.
    pub(super) fn status(&self) -> Option<StoreStatus> {
        let deadline = Instant::now() + STATUS_TIMEOUT;
        let mut state = self.state.lock();
        let id = self.ask_status(&mut state);
        while !state.lost && state.status.as_ref().is_none_or(|(answered, _)| *answered < id) {
            if self.status_came.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.status.as_ref().map(|(_, status)| status.clone())
    }

    /// Returns the writer's last status without waiting, and requests the next one.
    pub(super) fn last_status(&self) -> Option<StoreStatus> {
        let mut state = self.state.lock();
        self.ask_status(&mut state);
        state.status.as_ref().map(|(_, status)| status.clone())
    }

    fn ask_status(&self, state: &mut State) -> u64 {
        let id = state.take_id();
        // As with other requests: if the sender is gone, the connection is about to be lost.
        let _ = self.outbox.send(ToWriter::Status { id });
        id
    }

    /// Returns true if the writer is known to be gone.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        // Fails only if the connection is gone already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn hear(&self, mut receiver: Receiver, owner: &Weak<dyn Owner>) {
        let (asked, questions) = channel();
        if let Some(owner) = owner.upgrade() {
            let (holder, outbox) = (owner.holder(), self.outbox.clone());
            let received = self.received.clone();
            // Without the thread releases stay unanswered, which means that everything is held.
            let _ = esker_threads::spawn("cache-release", move || {
                release_all(&questions, &received, &*holder, &outbox)
            });
        }
        loop {
            let (message, descriptor) = match receiver.next::<ToClient>() {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.doubt();
                    continue;
                }
                Err(_) => break,
            };
            self.state.lock().silent = false;
            match message {
                ToClient::Object { id, len, waits_us } => match descriptor {
                    Some(file) => self.answered(id, file, len, waits(waits_us)),
                    None => break,
                },
                ToClient::Warmed { id, fetched_bytes } => {
                    let warming = self.state.lock().warming.remove(&id);
                    if let Some(warming) = warming {
                        warming.done.ok(fetched_bytes.map_or(Warmed::Here, Warmed::Fetched));
                    }
                }
                ToClient::Progress { ids, heard } => {
                    let state = self.state.lock();
                    let further = |id: &u64| *id > heard || ids.binary_search(id).is_ok();
                    let pending = state.pending.iter().filter(|(id, _)| further(id));
                    pending.for_each(|(_, pending)| pending.wanted.requester.progress.mark());
                }
                ToClient::Failed { id, error } => {
                    let warming = self.state.lock().warming.remove(&id);
                    if let Some(Warming { label, done }) = warming {
                        done.err(error.read(label));
                    } else if let Some(pending) = self.take(id) {
                        let label = pending.wanted.label();
                        pending.done.err(error.read(label));
                    }
                }
                // The releasing thread ends only after this one.
                ToClient::Release { id, keys } => drop(asked.send((id, keys))),
                ToClient::Status { id, status } => {
                    self.state.lock().status = Some((id, *status));
                    self.status_came.notify_all();
                }
                ToClient::Welcome => break,
            }
        }
        self.end(owner);
    }

    fn answered(&self, id: u64, file: OwnedFd, len: u64, waits: WaitTimes) {
        let Some(pending) = self.take(id) else { return };
        let place = self.place.to_string_lossy().into();
        pending.wanted.requester.progress.came_from(ObjectOrigin::Process(place));
        pending.wanted.requester.progress.add_waits(waits);
        let Some(slot) = self.received.slot() else {
            drop(file);
            return self.received.park(pending);
        };
        let handle = Handle::from_fd(file, len, slot);
        self.received.keep(pending.wanted.key(), &handle);
        pending.done.ok(handle);
    }

    /// Handles a silent writer. Without pending requests that is fine; otherwise it is pinged, and without a reply the
    /// requests fail. The connection stays, because a stopped process may go on.
    fn doubt(&self) {
        let mut state = self.state.lock();
        if state.pending.is_empty() && state.warming.is_empty() {
            state.silent = false;
        } else if !std::mem::replace(&mut state.silent, true) {
            self.ask_status(&mut state);
        } else {
            let unanswered = std::mem::take(&mut state.pending);
            let not_warmed = std::mem::take(&mut state.warming);
            drop(state);
            let pid = peer::pid(&self.socket);
            let cause = || Cause::Silent { path: self.place.clone(), pid };
            for pending in unanswered.into_values() {
                pending.done.err(StoreError::new(pending.wanted.label(), cause()));
            }
            for warming in not_warmed.into_values() {
                warming.done.err(StoreError::new(warming.label, cause()));
            }
        }
    }

    fn take(&self, id: u64) -> Option<Pending> {
        self.state.lock().pending.remove(&id)
    }

    fn end(&self, owner: &Weak<dyn Owner>) {
        self.close();
        let (pending, warming) = {
            let mut state = self.state.lock();
            state.lost = true;
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.warming))
        };
        // Dropping completes them with an error: readers ask the next writer for the objects they need.
        drop(warming);
        self.status_came.notify_all();
        let mut unanswered: Vec<(u64, Pending)> = pending.into_iter().collect();
        unanswered.sort_by_key(|(id, _)| *id);
        if let Some(owner) = owner.upgrade() {
            owner.lost(unanswered.into_iter().map(|(_, pending)| pending).collect());
        }
    }
}

impl State {
    /// Returns a new id. Ids start at 1: 0 stands for the greeting.
    fn take_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn send_all(socket: &OwnedFd, inbox: &Inbox<ToWriter>) {
    while let Ok(message) = inbox.recv() {
        if send(socket.as_fd(), &message, None).is_err() {
            // The hearing thread must notice, too.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            return;
        }
    }
}

fn release_all(
    questions: &Inbox<(u64, Vec<CacheKey>)>,
    received: &Received,
    holder: &dyn Holder,
    outbox: &Sender<ToWriter>,
) {
    while let Ok((id, keys)) = questions.recv() {
        received.forget(&keys);
        let held = holder.release(&keys);
        if outbox.send(ToWriter::Released { id, held }).is_err() {
            return;
        }
    }
}
