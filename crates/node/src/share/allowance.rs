//! How much of a writer its clients may take up.
//!
//! Whatever a client asks, the memory that its questions and their answers take is bounded, and so is what all clients of one
//! user take together: beyond the bound the next question is not read before an answer has been taken. A client that takes
//! none is hung up on, so its bound is free again soon. Prefetches have a bound of their own, beyond which they are refused:
//! they must not stand in the way of what somebody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Bounds for one user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections.
    pub(crate) connections: usize,
    /// Questions that are not answered yet, or whose answer is not taken yet.
    pub(crate) questions: usize,
    /// Prefetches.
    pub(crate) warms: usize,
}

/// What one user's clients take up now.
pub(crate) struct Allowance {
    bounds: Bounds,
    questions: Mutex<usize>,
    fewer: Condvar,
    warms: AtomicUsize,
    connections: AtomicUsize,
}

/// A question under way; over on drop.
pub(crate) struct Turn(Arc<Allowance>);

/// A prefetch under way; over on drop.
pub(crate) struct Warming(Arc<Allowance>);

/// A connection; over on drop.
pub(crate) struct Connection(Arc<Allowance>);

impl Allowance {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            questions: Mutex::default(),
            fewer: Condvar::new(),
            warms: AtomicUsize::default(),
            connections: AtomicUsize::default(),
        })
    }

    /// Waits until another question may be asked.
    pub(crate) fn ask(self: &Arc<Self>) -> Turn {
        let mut questions = self.questions.lock();
        while *questions >= self.bounds.questions {
            self.fewer.wait(&mut questions);
        }
        *questions += 1;
        Turn(self.clone())
    }

    /// Begins a prefetch, unless there are too many.
    pub(crate) fn warm(self: &Arc<Self>) -> Option<Warming> {
        take(&self.warms, self.bounds.warms).then(|| Warming(self.clone()))
    }

    /// Begins a connection, unless there are too many.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Connection> {
        take(&self.connections, self.bounds.connections).then(|| Connection(self.clone()))
    }

    /// How many prefetches there may be.
    pub(crate) fn warms_max(&self) -> usize {
        self.bounds.warms
    }

    /// Whether no connection is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.load(Ordering::SeqCst) == 0
    }
}

fn take(count: &AtomicUsize, most: usize) -> bool {
    let more = |count: usize| (count < most).then_some(count + 1);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.questions.lock() -= 1;
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
