//! Replaces the head of a repository: its lock, and the history, reflog and manifest that are written under it.
//!
//! Object storage has no lock. There the head is replaced only if its bytes are still those that were read.

mod carried_over;
mod exclusive;
mod history;
mod lease;
mod lock;
pub mod pending;
mod publication;

pub use exclusive::{exclusively, sign_head};
pub use history::read_history;
pub use lock::{ATTEMPTS, HeadLock, RootLock, wait as wait_for_lock};
pub use publication::Next;
