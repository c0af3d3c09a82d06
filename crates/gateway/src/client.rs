//! Publishes through a gateway: the side of a publisher without keys of the repository.
//!
//! ```text
//!   put ─► batch ─► which are missing? ─► pack ─► gateway        several at once, a bounded number of bytes
//!   flush: all are stored        commit: flush, then the request, which may be repeated
//!   a task renews the lease; the session gives it up at its end unless it is to be kept
//! ```
//!
//! All requests are repeated for as long as the gateway is away, so a restart of it is a pause. The gateway of the reference is
//! asked for nothing that it doesn't have: objects are sent one pack at a time, and a lost answer to a commit is replaced by a
//! look at the lease, which ends with a commit.

mod failure;
mod operator;
mod requests;
mod session;
mod uploads;

pub use operator::{HeldLease, Operator};
pub use requests::GatewayAddress;
pub use session::{LeaseWish, Session};
