//! Replaces the head of a repository: its lock, and the history, reflog and manifest that are written under it.
//!
//! Object storage has no lock. There the head is replaced only if its bytes are still those that were read.

mod exclusive;
mod history;
mod kept;
mod lease;
mod lock;
pub(crate) mod pending;
mod publication;

pub(crate) use exclusive::exclusively;
pub(crate) use history::read_history;
pub(crate) use lock::{ATTEMPTS, HeadLock, RootLock, wait as wait_for_lock};
pub(crate) use publication::Next;
