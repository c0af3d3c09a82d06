//! The user a call is made for, and the means to tell whether its data keeps coming.

use std::sync::Arc;
use std::time::Instant;

/// Returns when bytes that a call waits for last arrived; `None` if none did yet.
pub type Progress = Box<dyn Fn() -> Option<Instant> + Send + Sync>;

/// A call that waits for its answer and has a deadline.
pub trait Pending: Send + Sync {
    /// Makes the call's deadline count from the last progress of `progress`, too.
    fn follow(&self, progress: Progress);
}

/// The user who makes a call, and the call that waits.
///
/// Trees that fetch hand the user on to what fetches, so that it can share its connections fairly, and have the call
/// follow the progress of what they wait for, so that a slow transfer is no failure.
#[derive(Clone, Default)]
pub struct Requester {
    user: Option<u32>,
    pending: Option<Arc<dyn Pending>>,
}

impl Requester {
    /// Creates the requester of a call by this user.
    pub fn new(user: Option<u32>, pending: Arc<dyn Pending>) -> Self {
        Self { user, pending: Some(pending) }
    }

    /// Returns the number of the user, if it is known.
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// Makes the call follow the progress of something that it waits for.
    pub fn follow(&self, progress: impl Fn() -> Option<Instant> + Send + Sync + 'static) {
        if let Some(pending) = &self.pending {
            pending.follow(Box::new(progress));
        }
    }
}

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").field("user", &self.user).finish_non_exhaustive()
    }
}
