//! User of a call, and the link between its deadline and the progress of its data.

use std::sync::Arc;
use std::time::Instant;

use esker_threads::waits::WaitTimes;

use crate::{Node, Origin};

/// Returns the time of the latest arrival of bytes for a call; `None` before the first.
pub type Progress = Box<dyn Fn() -> Option<Instant> + Send + Sync>;

/// Returns the waits of a call since it began to wait for something.
pub type Waits = Box<dyn Fn() -> WaitTimes + Send + Sync>;

/// Returns the origin of a call's data; `None` while it is unknown, and for data that was here.
pub type OriginOf = Box<dyn Fn() -> Option<Origin> + Send + Sync>;

/// A pending call with a deadline.
pub trait Pending: Send + Sync {
    /// Returns the id of the user who makes the call, if it is known.
    ///
    /// May have to look it up, so that only calls that wait pay for that.
    fn user(&self) -> Option<u32>;

    /// Extends the call's deadline from the last arrival that `progress` reports, too.
    fn follow(&self, progress: Progress);

    /// Adds waits of other threads to those of the call.
    fn add_waits(&self, waits: Waits) {
        drop(waits);
    }

    /// Returns true if the call is traced. Only then do trees report the facts of the methods below.
    fn is_traced(&self) -> bool {
        false
    }

    /// Reports a possible origin of the call's data.
    fn may_come_from(&self, origin: OriginOf) {
        drop(origin);
    }

    /// Reports the node that the call concerns, if that isn't the node of the request.
    fn concerns(&self, node: &Node) {
        let _ = node;
    }
}

/// User of a call, and the pending call.
///
/// Trees that fetch pass the user on, so that connections are shared fairly, and let the call follow the
/// progress of its transfers, so that a slow transfer is no failure.
#[derive(Clone, Default)]
pub struct Requester {
    pending: Option<Arc<dyn Pending>>,
}

impl Requester {
    /// Creates the requester of a call.
    pub fn new(pending: Arc<dyn Pending>) -> Self {
        Self { pending: Some(pending) }
    }

    /// Returns the number of the user, if it is known: see [`Pending::user`].
    pub fn user(&self) -> Option<u32> {
        self.pending.as_ref()?.user()
    }

    /// Makes the call's deadline follow the progress of an operation.
    pub fn follow(&self, progress: impl Fn() -> Option<Instant> + Send + Sync + 'static) {
        if let Some(pending) = &self.pending {
            pending.follow(Box::new(progress));
        }
    }

    /// Counts waits of other threads as waits of the call, by their causes.
    pub fn add_waits(&self, waits: impl Fn() -> WaitTimes + Send + Sync + 'static) {
        if let Some(pending) = &self.pending {
            pending.add_waits(Box::new(waits));
        }
    }

    /// Returns the pending call if it is traced.
    fn traced(&self) -> Option<&dyn Pending> {
        self.pending.as_deref().filter(|pending| pending.is_traced())
    }

    /// Reports a possible origin of the call's data; `make` is called only for a traced call.
    pub fn may_come_from(&self, make: impl FnOnce() -> OriginOf) {
        if let Some(pending) = self.traced() {
            pending.may_come_from(make());
        }
    }

    /// Reports the node that a traced call concerns, if that isn't the node of the request.
    pub fn concerns(&self, node: &Node) {
        if let Some(pending) = self.traced() {
            pending.concerns(node);
        }
    }
}

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").finish_non_exhaustive()
    }
}
