//! Clients whose first request is not complete.
//!
//! They take a descriptor and no slot. When there are too many, the oldest is closed at once, so however many are
//! silent, a client with a request is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The clients whose first request is not complete.
#[derive(Debug)]
pub(crate) struct PendingClients {
    most: usize,
    clients: Mutex<PendingList>,
}

#[derive(Debug, Default)]
struct PendingList {
    next: u64,
    taken: BTreeMap<u64, Arc<Notify>>,
}

/// A client whose first request is not complete; removed on drop.
#[derive(Debug)]
pub(crate) struct PendingClient {
    pending_clients: Arc<PendingClients>,
    number: u64,
    leave: Arc<Notify>,
}

impl PendingClients {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, clients: Mutex::default() })
    }

    /// Adds a client; if there are too many, evicts the oldest.
    pub(crate) fn add(self: &Arc<Self>) -> PendingClient {
        let leave = Arc::new(Notify::new());
        let mut clients = self.clients.lock();
        let number = clients.next;
        clients.next += 1;
        clients.taken.insert(number, leave.clone());
        if clients.taken.len() > self.most {
            clients.evict_oldest();
        }
        drop(clients);
        PendingClient { pending_clients: self.clone(), number, leave }
    }

    /// Evicts the longest pending client; returns true if there was one.
    pub(crate) fn evict_oldest(&self) -> bool {
        self.clients.lock().evict_oldest()
    }
}

impl PendingList {
    fn evict_oldest(&mut self) -> bool {
        let first = self.taken.pop_first();
        first.map(|(_, leave)| leave.notify_one()).is_some()
    }
}

impl PendingClient {
    /// Waits until the client has to leave.
    pub(crate) async fn evicted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for PendingClient {
    fn drop(&mut self) {
        self.pending_clients.clients.lock().taken.remove(&self.number);
    }
}
