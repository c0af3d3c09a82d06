//! Limits the resources of a writer that clients use.
//!
//! The memory for requests and replies is bounded for each client, and for all clients of one user together. Replies
//! from the cache wait, beyond their bound, until a reply has been read; a client that reads none is disconnected, so
//! that is soon. Requests to the network have another bound, which a silent server may exhaust for long. Prefetches
//! beyond their bound are refused: they must not delay demanded reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_store::Progress;
use parking_lot::{Condvar, Mutex};

/// Limits for one user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of connections.
    pub(crate) connections: usize,
    /// Maximum number of requests to the network without a reply, or whose reply is not sent yet.
    pub(crate) questions: usize,
    /// Maximum number of replies from the cache that are not sent yet.
    pub(crate) answers: usize,
    /// Maximum number of prefetches.
    pub(crate) warms: usize,
}

/// Resources in use by one user's clients.
pub(crate) struct Quota {
    bounds: Bounds,
    questions: Arc<Slots>,
    /// Time of the last bytes of a pending request: requests that wait for a slot count as progressing with it.
    progress: Progress,
    answers: Arc<Slots>,
    warms: AtomicUsize,
    connections: AtomicUsize,
}

/// A limited number of slots.
struct Slots {
    most: usize,
    taken: Mutex<usize>,
    fewer: Condvar,
}

/// A slot for a request or a reply, which is freed on drop.
pub(crate) struct QuotaSlot(Arc<Slots>);

/// A prefetch in progress, which ends on drop.
pub(crate) struct Warming(Arc<Quota>);

/// A connection, which ends on drop.
pub(crate) struct Connection(Arc<Quota>);

impl Quota {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            questions: Slots::new(bounds.questions),
            progress: Progress::default(),
            answers: Slots::new(bounds.answers),
            warms: AtomicUsize::default(),
            connections: AtomicUsize::default(),
        })
    }

    /// Waits for a slot for a request to the network.
    pub(crate) fn ask(&self) -> QuotaSlot {
        Slots::take(&self.questions)
    }

    /// Takes a slot without waiting.
    pub(crate) fn try_ask(&self) -> Option<QuotaSlot> {
        Slots::try_take(&self.questions)
    }

    /// Returns the time of the last bytes of a pending request.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits until another reply from the cache may be queued.
    pub(crate) fn answer(&self) -> QuotaSlot {
        Slots::take(&self.answers)
    }

    /// Begins a prefetch, unless the limit is reached.
    pub(crate) fn warm(self: &Arc<Self>) -> Option<Warming> {
        take(&self.warms, self.bounds.warms).then(|| Warming(self.clone()))
    }

    /// Begins a connection, unless the limit is reached.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Connection> {
        take(&self.connections, self.bounds.connections).then(|| Connection(self.clone()))
    }

    /// Returns the limit of prefetches.
    pub(crate) fn warms_max(&self) -> usize {
        self.bounds.warms
    }

    /// True if no connection is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.load(Ordering::SeqCst) == 0
    }
}

fn take(count: &AtomicUsize, most: usize) -> bool {
    let more = |count: usize| (count < most).then_some(count + 1);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

impl Slots {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default(), fewer: Condvar::new() })
    }

    fn take(this: &Arc<Self>) -> QuotaSlot {
        let mut taken = this.taken.lock();
        while *taken >= this.most {
            this.fewer.wait(&mut taken);
        }
        *taken += 1;
        QuotaSlot(this.clone())
    }

    fn try_take(this: &Arc<Self>) -> Option<QuotaSlot> {
        let mut taken = this.taken.lock();
        if *taken >= this.most {
            return None;
        }
        *taken += 1;
        Some(QuotaSlot(this.clone()))
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.fewer.notify_one();
    }
}

impl Drop for Warming {
    fn drop(&mut self) {
        self.0.warms.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}
