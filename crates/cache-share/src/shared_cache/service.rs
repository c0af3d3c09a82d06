//! Keeps a writer available: holds elections, returns to a broker, leaves a removed folder.
//!
//! All of it runs on one thread, never on a caller's.

use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_store::{Blame, Cause, Holder, StoreError};

use super::broker::Broker;
use super::client::{Client, GREETING_TIMEOUT, Owner, Refused, WriterSocket};
use super::writer::{BrokerAddress, Writer};
use super::{Event, Role, SharedCache, leave};

/// Minimum pause between attempts, which doubles each time
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Maximum pause between elections.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Time limit for the return of a broker, after which the private cache is used.
const BROKER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a broker that clients can do without.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of checks after which a client tries a broker again that refused it: the broker's rules may have
/// changed.
const PROBES_AFTER_REFUSAL: u32 = 12;

/// Serves until the cache is closed.
pub(super) fn run(shared: &Weak<SharedCache>, inbox: &Inbox<Event>) {
    let mut looks = 0;
    loop {
        let event = inbox.recv();
        let Some(shared) = shared.upgrade() else { return };
        match event {
            Ok(Event::Close) | Err(_) => return,
            Ok(Event::SlotFree) => {
                shared.received.unpark().into_iter().for_each(|parked| shared.submit(parked));
            }
            Ok(Event::Lost(was_broker)) => {
                // The next writer may evict before it knows of us; a file that is gone there must not take room because
                // we keep it open for later.
                shared.received.forget_all();
                // A broker that served us comes back soon, most likely. If another process did, there is none.
                let patience = if was_broker { BROKER_TIMEOUT } else { Duration::ZERO };
                if let Some(role) = shared.join_broker(patience, inbox) {
                    shared.take_role(role);
                }
                if !shared.settle(inbox) {
                    return;
                }
                if was_broker || shared.broker.as_ref().is_some_and(|broker| broker.is_named) {
                    shared.tell_of_own_cache();
                }
            }
            Ok(Event::Look) => {
                looks += 1;
                shared.look_for_broker(looks);
                shared.look_for_disk(inbox);
                if shared.has_lost_folder() {
                    tracing::warn!("the cache {} was removed; creating it again", shared.cache.display());
                    shared.exchange(Role::Electing);
                    if !shared.settle(inbox) {
                        return;
                    }
                }
            }
        }
    }
}

impl SharedCache {
    /// Holds elections until this process has a role; returns false at the end.
    fn settle(&self, inbox: &Inbox<Event>) -> bool {
        while matches!(&*self.role.read(), Role::Electing) {
            match self.elect(None, inbox) {
                Ok(role) => self.take_role(role),
                Err(error) if self.take_spare(&error) => {}
                Err(error) => {
                    // Waiting requests fail with the reason; later requests trigger the next attempt.
                    let waiting = std::mem::take(&mut *self.queue.lock());
                    waiting.into_iter().for_each(|pending| pending.done.err(error.clone()));
                    if let Ok(Event::Close) = inbox.recv_timeout(PAUSE_MAX) {
                        return false;
                    }
                }
            }
        }
        // An election that noticed the close took the event with it.
        if matches!(&*self.role.read(), Role::Closed) {
            return false;
        }
        // Wake-ups that the election swallowed.
        self.received.unpark().into_iter().for_each(|parked| self.submit(parked));
        true
    }

    /// Serves without the cache's disk if the disk fails; returns true if it does.
    fn take_spare(&self, error: &StoreError) -> bool {
        if error.blame() != Blame::Disk {
            return false;
        }
        let spare = self.open.open_spare().and_then(|writer| self.become_writer(writer, true).ok());
        let Some(role) = spare else { return false };
        let why = error.full_text();
        tracing::warn!("{why}; until it works, objects are fetched without being cached");
        self.take_role(role);
        true
    }

    /// Returns to the cache if its disk works again.
    fn look_for_disk(&self, inbox: &Inbox<Event>) {
        if !matches!(&*self.role.read(), Role::Writer { is_spare: true, .. }) {
            return;
        }
        // One attempt.
        if let Ok(role) = self.elect(Some(Instant::now()), inbox) {
            tracing::info!("the cache {} can be used again", self.cache.display());
            self.exchange(role);
        }
    }

    fn tell_of_own_cache(&self) {
        if let (Some(broker), false) = (&self.broker, self.is_through_broker()) {
            let (socket, cache) = (broker.socket.display(), self.cache.display());
            tracing::warn!("no broker serves at {socket}; until one does, objects are in {cache}");
        }
    }

    fn is_through_broker(&self) -> bool {
        matches!(&*self.role.read(), Role::Client(client) if client.broker().is_some())
    }

    /// Returns to the broker if it is back.
    fn look_for_broker(&self, looks: u32) {
        let Some(broker) = self.broker.as_ref().filter(|_| !self.is_through_broker()) else { return };
        if self.refusal().is_some() && !looks.is_multiple_of(PROBES_AFTER_REFUSAL) {
            return;
        }
        if let Ok(client) = self.ask_broker(broker, PROBE_TIMEOUT) {
            tracing::info!("the broker at {} serves again", broker.socket.display());
            self.exchange(Role::Client(client));
        }
    }

    /// Returns true if the folder to which this process writes was removed.
    fn has_lost_folder(&self) -> bool {
        let writer = match &*self.role.read() {
            Role::Writer { writer, .. } => writer.clone(),
            _ => return false,
        };
        writer.is_lost()
    }

    /// Replaces a role. Pending requests of the old role are answered by it.
    fn exchange(&self, role: Role) {
        let old = {
            let mut mine = self.role.write();
            if matches!(&*mine, Role::Closed) {
                drop(mine);
                return leave(role);
            }
            std::mem::replace(&mut *mine, role)
        };
        // The next writer doesn't know the files that this process keeps open.
        self.received.forget_all();
        leave(old);
    }

    fn connect(&self, door: WriterSocket<'_>, patience: Duration) -> Result<Arc<Client>, Refused> {
        let owner: Weak<dyn Owner> = self.me.clone();
        Client::connect(door, &self.servers, self.received.clone(), owner, (patience, self.pace.silence))
    }

    /// Connects to the node's broker once, and records the reason of a refusal.
    fn ask_broker(&self, broker: &BrokerAddress, patience: Duration) -> Result<Arc<Client>, Refused> {
        let asked = self.connect(WriterSocket::Broker(broker), patience);
        match &asked {
            Ok(_) => *self.refusal.lock() = None,
            Err(Refused::Error(error)) => *self.refusal.lock() = Some(error.full_text()),
            Err(Refused::Gone) => {}
        }
        asked
    }

    /// Connects to the node's broker, if there is one, within a time limit.
    pub(super) fn join_broker(&self, patience: Duration, inbox: &Inbox<Event>) -> Option<Role> {
        let broker = self.broker.as_ref()?;
        let deadline = Instant::now() + patience;
        loop {
            match self.ask_broker(broker, if broker.is_named { GREETING_TIMEOUT } else { PROBE_TIMEOUT }) {
                Ok(client) => return Some(Role::Client(client)),
                Err(Refused::Error(_)) => return None,
                Err(Refused::Gone) if Instant::now() >= deadline => return None,
                Err(Refused::Gone) => {
                    tracing::debug!("waiting for a broker at {}", broker.socket.display());
                }
            }
            match inbox.recv_timeout(PAUSE_MAX.min(deadline.saturating_duration_since(Instant::now()))) {
                Ok(Event::Close) | Err(RecvTimeoutError::Disconnected) => return Some(Role::Closed),
                Ok(Event::Lost(_) | Event::SlotFree | Event::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Tries to become the writer or a client, until `deadline` or for ever.
    pub(super) fn elect(&self, deadline: Option<Instant>, inbox: &Inbox<Event>) -> Result<Role, StoreError> {
        let mut pause = PAUSE_MIN;
        loop {
            let busy = match self.open.open() {
                Ok(writer) => return self.become_writer(writer, false),
                Err(error) if matches!(error.cause(), Cause::Busy { .. }) => error,
                Err(error) => return Err(error),
            };
            match self.connect(WriterSocket::Folder(&self.cache), GREETING_TIMEOUT) {
                Ok(client) => return Ok(Role::Client(client)),
                Err(Refused::Error(error)) => return Err(error),
                Err(Refused::Gone) => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(busy);
            }
            // As long as there is nothing better, a broker that comes back late is welcome, too.
            if let Some(role) = self.join_broker(Duration::ZERO, inbox) {
                return Ok(role);
            }
            // Sleeps, but not through a close.
            match inbox.recv_timeout(pause) {
                Ok(Event::Close) | Err(RecvTimeoutError::Disconnected) => return Ok(Role::Closed),
                Ok(Event::Lost(_) | Event::SlotFree | Event::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn become_writer(&self, writer: Arc<dyn Writer>, is_spare: bool) -> Result<Role, StoreError> {
        let store = match writer.store(&self.servers) {
            Ok(store) => store,
            Err(error) => {
                writer.close();
                return Err(error);
            }
        };
        let holders: Arc<dyn Holder> = self.holders.clone();
        store.add_holder(Arc::downgrade(&holders));
        // From now on the cache itself tracks open files.
        self.received.forget_all();
        // A file system without sockets makes the cache private to this process; that is no failure.
        let broker = if is_spare { None } else { Broker::start(&self.cache, writer.clone()).ok() };
        Ok(Role::Writer { store, writer, broker, is_spare })
    }
}
