//! Processes the requests of one client: from the cache at once, or through the network in order.
//!
//! The receiving thread must not wait for the network, or a silent server would delay cached objects, and pings, of
//! all clients of its user. So requests without a quota slot wait on a thread of their own, which a client has only
//! once it needs one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender, SyncSender, sync_channel};

use esker_store::{Callback, Handle, ObjectRequest, ObjectStore, StoreError};
use esker_threads::waits::WaitTimes;

use super::broker::OutgoingMessage;
use super::progress::Requests;
use super::quota::{Quota, QuotaSlot};
use super::wire::{ErrorMessage, ToClient, micros};

/// Maximum number of waiting requests of one client; the writer reads no further messages until one has a slot.
const WAITING_MAX: usize = 256;
/// Maximum total length of the object names in one waiting request, in bytes.
const NAMES_MAX: usize = 4096;

pub(super) struct ClientRequests {
    worker: Arc<RequestWorker>,
    waiting: Option<SyncSender<(u64, ObjectRequest)>>,
}

struct RequestWorker {
    store: Arc<dyn ObjectStore>,
    quota: Arc<Quota>,
    outbox: Sender<OutgoingMessage>,
    requests: Arc<Requests>,
    /// True if the client is gone.
    gone: AtomicBool,
}

impl ClientRequests {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        quota: Arc<Quota>,
        outbox: Sender<OutgoingMessage>,
        requests: Arc<Requests>,
    ) -> Self {
        let worker = RequestWorker { store, quota, outbox, requests, gone: AtomicBool::new(false) };
        Self { worker: Arc::new(worker), waiting: None }
    }

    /// Answers a request for an object.
    pub(super) fn get(&mut self, id: u64, wanted: ObjectRequest) {
        if let Some(handle) = self.worker.store.cached(&wanted) {
            let turn = self.worker.quota.answer();
            return answer(&self.worker.outbox, id, Ok(handle), WaitTimes::default(), turn);
        }
        if self.worker.requests.begin(id, &wanted.requester.progress) {
            // As long as there is any, the sender looks whether they come further.
            let _ = self.worker.outbox.send(OutgoingMessage::wake());
        }
        match self.worker.quota.try_ask() {
            Some(turn) => self.worker.ask(id, wanted, turn),
            None => {
                wanted.requester.progress.follow(self.worker.quota.progress());
                self.wait(id, wanted);
            }
        }
    }

    fn wait(&mut self, id: u64, wanted: ObjectRequest) {
        let names = wanted.what.len() + wanted.external.as_ref().map_or(0, |external| external.path.len());
        if self.waiting.is_none() {
            self.waiting = RequestWorker::start(&self.worker);
        }
        let left = match &self.waiting {
            Some(waiting) if names <= NAMES_MAX => waiting.send((id, wanted)).err().map(|refused| refused.0),
            _ => Some((id, wanted)),
        };
        if let Some((id, wanted)) = left {
            self.worker.ask(id, wanted, self.worker.quota.ask());
        }
    }
}

impl Drop for ClientRequests {
    /// Requests of a disconnected client are dropped.
    fn drop(&mut self) {
        self.worker.gone.store(true, Ordering::SeqCst);
    }
}

impl RequestWorker {
    /// Starts the thread on which requests wait; `None` if there can't be another one.
    fn start(worker: &Arc<Self>) -> Option<SyncSender<(u64, ObjectRequest)>> {
        let (waiting, inbox) = sync_channel(WAITING_MAX);
        let worker = worker.clone();
        esker_threads::spawn("cache-wait", move || worker.ask_all(&inbox)).is_ok().then_some(waiting)
    }

    fn ask_all(&self, inbox: &Inbox<(u64, ObjectRequest)>) {
        while let Ok((id, wanted)) = inbox.recv() {
            let turn = self.quota.ask();
            if self.gone.load(Ordering::SeqCst) {
                return;
            }
            self.ask(id, wanted, turn);
        }
    }

    fn ask(&self, id: u64, wanted: ObjectRequest, turn: QuotaSlot) {
        let (outbox, requests) = (self.outbox.clone(), self.requests.clone());
        let (progress, quota) = (wanted.requester.progress.clone(), self.quota.clone());
        progress.unfollow(quota.progress());
        quota.progress().follow(&progress);
        let answered = move |outcome| {
            requests.end(id);
            quota.progress().unfollow(&progress);
            answer(&outbox, id, outcome, progress.waits(), turn);
        };
        self.store.get(wanted, Callback::new(answered));
    }
}

/// Sends a reply, which frees the slot. The client may be gone by then.
fn answer(
    outbox: &Sender<OutgoingMessage>,
    id: u64,
    outcome: Result<Handle, StoreError>,
    waits: WaitTimes,
    turn: QuotaSlot,
) {
    let (message, handle) = match outcome {
        Ok(handle) => (ToClient::Object { id, len: handle.len(), waits_us: micros(waits) }, Some(handle)),
        Err(error) => (ToClient::Failed { id, error: ErrorMessage::new(&error) }, None),
    };
    let _ = outbox.send(OutgoingMessage::answer(message, handle, turn));
}
